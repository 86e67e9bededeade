"""Accounts over HTTP: opening, reading, conditional reading, pages, ledger entries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from service.db.words import EntryKind
from service.ledger.chain import GENESIS_HASH, Entry


def test_opening_an_account(served: Any) -> None:
    made = served.account(name="patients", epsilon=1.5)
    assert made["balance"]["limit_epsilon"] == 1.5
    assert made["balance"]["left_nano"] == made["balance"]["capacity_nano"] > 0
    assert made["balance"]["spent_nano"] == made["balance"]["held_nano"] == 0
    assert served.client("read").get(f"/v1/accounts/{made['id']}").json() == made


def test_the_answer_names_the_new_address(served: Any) -> None:
    body = {"name": "p", "owner": "o", "epsilon": 1, "delta": 1e-5, "unit": "record"}
    answer = served.client().post("/v1/accounts", json=body | {"adjacency": "add_remove", "filter": "rdp"})
    assert answer.headers["location"] == f"/v1/accounts/{answer.json()['id']}"
    assert answer.json()["filter_order"] > 1


def test_a_name_is_taken_once(served: Any) -> None:
    served.account(name="patients")
    body = {"name": "patients", "owner": "o", "epsilon": 1, "delta": 1e-5, "unit": "record"}
    answer = served.client().post("/v1/accounts", json=body | {"adjacency": "add_remove", "filter": "gdp"})
    assert answer.status_code == 409
    assert answer.json()["code"] == "conflict"


@pytest.mark.parametrize("missing", ["epsilon", "delta", "unit", "adjacency", "filter"])
def test_nothing_that_changes_privacy_has_a_default(served: Any, missing: str) -> None:
    body = {"name": "p", "owner": "o", "epsilon": 1, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}
    body["filter"] = "gdp"
    del body[missing]
    assert served.client().post("/v1/accounts", json=body).status_code == 422


def test_an_etag_saves_the_second_transfer(served: Any) -> None:
    path = f"/v1/accounts/{served.account()['id']}"
    first = served.client().get(path)
    again = served.client().get(path, headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["etag"] == first.headers["etag"]
    other = served.client().get(path, headers={"If-None-Match": '"something-else"'})
    assert other.status_code == 200


def test_pages_go_through_all_accounts_once(served: Any) -> None:
    made = [served.account(name=f"a{number}")["id"] for number in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        params: dict[str, Any] = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = served.client().get("/v1/accounts", params=params).json()
        assert len(page["items"]) <= 3
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made


def test_a_page_is_never_longer_than_the_service_allows(served: Any) -> None:
    for number in range(7):
        served.account(name=f"a{number}")
    page = served.client().get("/v1/accounts", params={"limit": 1000}).json()
    assert len(page["items"]) == served.app.state.settings.page_size_max == 5
    assert page["next_cursor"]


def test_foreign_cursors_are_refused(served: Any) -> None:
    for path in ("accounts", "datasets", "jobs", "releases", "keys"):
        for cursor in ("garbage", "WyJhIl0", "WyJ4IiwieSJd", "W10", "é", "WzFd"):
            answer = served.client().get(f"/v1/{path}", params={"cursor": cursor})
            assert answer.status_code in (404, 422)
            assert answer.headers["content-type"] == "application/problem+json"


def test_limits_below_one_are_refused(served: Any) -> None:
    assert served.client().get("/v1/accounts", params={"limit": 0}).status_code == 422


def test_entries_show_enough_to_verify_the_chain(served: Any) -> None:
    account = served.account()
    dataset = served.ready_dataset(account["id"])
    for _ in range(3):
        answer = served.train(dataset["id"], epsilon=0.2)
        assert answer.status_code == 202, answer.text
    entries: list[dict[str, Any]] = []
    cursor = None
    while True:
        params: dict[str, Any] = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = served.client().get(f"/v1/accounts/{account['id']}/entries", params=params).json()
        entries += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [entry["kind"] for entry in entries] == ["open", "hold", "hold", "hold"]
    previous = GENESIS_HASH
    for entry in entries:
        assert entry["previous_hash"] == previous
        as_read = {"kind": EntryKind(entry["kind"]), "created_at": datetime.fromisoformat(entry["created_at"])}
        assert Entry(**entry | as_read).is_intact()
        previous = entry["hash"]
