"""Keys over HTTP: shown once, listed without secrets, revoked at once."""

from __future__ import annotations

from typing import Any

import httpx


def test_a_new_key_works_until_it_is_revoked(served: Any) -> None:
    answer = served.client().post("/v1/keys", json={"name": "analyst", "scopes": ["read", "train"]})
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {made['token']}"}) as client:
        assert client.get("/v1/jobs").status_code == 200
        assert client.post("/v1/keys", json={"name": "x", "scopes": ["read"]}).status_code == 403
        revoked = served.client().post(f"/v1/keys/{made['id']}/revoke").json()
        assert revoked["revoked_at"]
        assert client.get("/v1/jobs").status_code == 401
    assert served.client().post(f"/v1/keys/{made['id']}/revoke").json()["revoked_at"] == revoked["revoked_at"]


def test_lists_show_neither_token_nor_hash(served: Any) -> None:
    made = served.client().post("/v1/keys", json={"name": "analyst", "scopes": ["read"]}).json()
    page = served.client().get("/v1/keys")
    assert made["id"] in page.text
    assert made["token"] not in page.text
    assert "hash" not in page.text
    assert "token" not in page.text


def test_keys_that_cannot_be(served: Any) -> None:
    for body in ({"name": "x", "scopes": []}, {"name": "x", "scopes": ["root"]}, {"name": "", "scopes": ["read"]}):
        assert served.client().post("/v1/keys", json=body).status_code == 422
    assert served.client().post("/v1/keys/key_nothing/revoke").status_code == 404


def test_the_first_admin_key_is_in_the_data_directory(served: Any) -> None:
    token = (served.data_dir / "admin.key").read_text().strip()
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {token}"}) as client:
        assert client.get("/v1/keys").status_code == 200


def test_a_start_closes_what_was_open_to_others(served: Any) -> None:
    """The database of this test was copied with the usual permissions into a folder with the usual ones."""
    kept = [served.data_dir, *served.data_dir.rglob("*")]
    assert [path.name for path in kept if path.lstat().st_mode & 0o077] == []
