"""A rule in the one place of `service.identity.access` hides rows from every list, page, item, download and act."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import ColumnElement, false

from service.db.base import Base
from service.identity import access
from service.identity.access import Principal
from service.settings import Settings
from tests.service.reading_routes import TestClient, address, reading_routes, stocked

NOBODYS = {"/v1/recipes", "/v1/health/live", "/v1/health/ready", "/v1/ledger", "/v1/admins", "/login", "/reference"}
NOBODYS |= {"/login/provider", "/login/callback"}
ACTS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("post", "/v1/accounts/{account_id}/freeze", {"reason": "a test"}),
    ("post", "/v1/accounts/{account_id}/close", None),
    ("post", "/v1/accounts/{account_id}/withdrawals", {"subjects": ["anna"]}),
    ("post", "/v1/accounts/{account_id}/lower-limit", {"reason": "a test", "epsilon": 0.5}),
    ("post", "/v1/accounts/{account_id}/raise-limit", {"reason": "a test", "epsilon": 500}),
    ("post", "/v1/decisions/{request_id}/approve", None),
    ("post", "/v1/plans", {"dataset_id": "{dataset_id}", "recipe": "datalens", "epsilon": 0.1, "options": {}}),
    ("post", "/v1/jobs", {"dataset_id": "{dataset_id}", "recipe": "datalens", "epsilon": 0.1, "options": {}}),
    ("post", "/v1/jobs/{job_id}/cancel", None),
    ("post", "/v1/sweeps/{sweep_id}/cancel", None),
    ("post", "/v1/releases/{release_id}/samples", {"count": 1, "seed": 1, "format": "npz"}),
    ("post", "/v1/releases/{release_id}/evaluations", {"dataset_id": "{dataset_id}"}),
    ("put", "/v1/datasets/{dataset_id}/content?format=npz", None),
    ("delete", "/v1/datasets/{dataset_id}", None),
    ("post", "/v1/webhooks/{webhook_id}/test", None),
    ("delete", "/v1/webhooks/{webhook_id}", None),
    ("post", "/v1/keys/{key_id}/revoke", {}),
    ("post", "/v1/keys/{key_id}/ask-revocation", {"reason": "a test"}),
]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, TestClient, dict[str, str]]]:
    """A service with something of everything, as one caller sees it, and another, who is to see nothing; and ids."""
    folder: Path = tmp_path_factory.mktemp("access")
    settings = Settings(data_dir=folder, database_url=f"sqlite:///{folder / 'obscura.db'}", mode="celery")
    with stocked(settings) as (client, ids), pytest.MonkeyPatch.context() as patch:
        body = {"name": "other", "scopes": ["admin"]}
        made = client.post("/v1/keys", json=body).raise_for_status().json()
        others_id = made["id"]

        def seen_by(caller: Principal | None, _table: type[Base]) -> ColumnElement[bool] | None:
            return false() if caller is not None and caller.id == others_id else None

        patch.setattr(access, "seen_by", seen_by)
        hook = client.post("/v1/webhooks", json={"url": "https://localhost:1/"}).raise_for_status().json()["id"]
        (key,) = client.get("/v1/keys?limit=1").raise_for_status().json()["items"]
        others = TestClient(client.app, follow_redirects=False, base_url=str(client.base_url))
        assert others.post("/login", data={"key": made["token"]}).headers["location"] == "/"
        others.headers["Authorization"] = f"Bearer {made['token']}"
        made_id = ids["preview_id"]
        yield (
            client,
            others,
            ids | {"key_id": key["id"], "made_id": made_id, "name": "generator.json", "webhook_id": hook},
        )


def test_items_and_downloads_are_not_there(stock: tuple[TestClient, TestClient, dict[str, str]]) -> None:
    ours, theirs, ids = stock
    items = [path for path in reading_routes() if "_id}" in path or path.endswith("{made_id}/grid.png")]
    shown = {path: ours.get(address(path, ids)).status_code for path in items}
    assert sum(status == 200 for status in shown.values()) > 20
    assert {path: theirs.get(address(path, ids)).status_code for path in items} == dict.fromkeys(items, 404)
    assert theirs.get("/compare", params={"release": ids["release_id"]}).status_code == 404
    assert theirs.get("/train", params={"dataset": ids["dataset_id"]}).status_code == 404
    assert theirs.get("/train", params={"again": ids["job_id"]}).status_code == 404


def test_lists_are_empty_and_pages_name_nothing(stock: tuple[TestClient, TestClient, dict[str, str]]) -> None:
    ours, theirs, ids = stock
    for path in reading_routes():
        if "{" in path or path in NOBODYS:
            continue
        seen = theirs.get(path)
        assert seen.status_code == (422 if path == "/compare" else 200), path
        assert "acc_" not in seen.text, path
        assert not [name for name, value in ids.items() if "_" in value and value in seen.text], path
        if path == "/v1/audit-events":
            assert seen.text == ""
        elif path.startswith("/v1/"):
            assert seen.json() == {"items": [], "next_cursor": None}, path
            assert path == "/v1/people" or ours.get(path).json()["items"], path


def test_nothing_can_be_done_with_them(stock: tuple[TestClient, TestClient, dict[str, str]]) -> None:
    ours, theirs, ids = stock
    entries = ours.get(f"/v1/accounts/{ids['account_id']}/entries").json()
    for method, path, body in ACTS:
        given = body and {name: ids.get(str(value).strip("{}"), value) for name, value in body.items()}
        key = {"Idempotency-Key": path} if method == "post" else {}
        answer = theirs.request(method, address(path, ids), json=given, headers=key)
        assert answer.status_code == 404, (path, answer.text)
    assert ours.get(f"/v1/accounts/{ids['account_id']}/entries").json() == entries
