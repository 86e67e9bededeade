"""Admins and keys over HTTP: two others admit and remove a person; a key is shown once and revoked at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from service.admins import introduce
from service.client import AuthError, Client
from service.main import create_app
from service.settings import Settings
from tests.service.api.conftest import _broker_that_is_away, running


@pytest.fixture
def fresh(settings: Settings) -> Any:
    """A new installation with nobody but the first admin; yields its address and that admin's token."""
    with running(create_app(settings, send=_broker_that_is_away)) as url:
        yield url, (settings.data_dir / "admin.key").read_text("ascii").strip()


def test_one_person_with_two_keys_raises_nothing_and_admits_nobody(fresh: tuple[str, str]) -> None:
    """What was found: the first admin makes two keys, asks with one and approves with the other."""
    url, token = fresh
    with Client(url, token) as first:
        keys = [first.create_key(name=name, scopes=["admin"]).token for name in ("one", "two")]
        account = first.create_account(name="people", owner="clinic", epsilon=2.0, delta=1e-5, unit="record")
    with Client(url, keys[0]) as one, Client(url, keys[1]) as two:
        raised = one.request_raise(account.id, epsilon=4.0, reason="more")
        with pytest.raises(AuthError, match="two people"):
            two.approve_raise(raised.id)
        token_of_bob, introduction = introduce()
        bob = one.ask_admission(name="bob", introduction=introduction, reason="the second").admin
        assert bob is not None
        asked = one.ask_admission(name="puppet", introduction=introduce()[1], reason="a third").request
        assert asked is not None
        with pytest.raises(AuthError, match="two people"):
            two.approve_admin_request(asked.id)
        with Client(url, token_of_bob) as real:
            assert real.approve_raise(raised.id).state == "approved"
            assert real.decline_admin_request(asked.id).state == "declined"
            assert [row.name for row in real.admins()] == ["first admin", "bob"]
            made = list(real.keys())
            listed = {key.name: key.admin_id for key in made}
            assert listed["one"] == listed["two"] == listed["first admin"] != listed["bob"] == bob.id


def test_a_person_is_admitted_and_removed_by_two_others(fresh: tuple[str, str]) -> None:
    url, token = fresh
    tokens, introductions = zip(*(introduce() for _ in range(2)), strict=True)
    with Client(url, token) as first, Client(url, tokens[0]) as bob, Client(url, tokens[1]) as carol:
        with pytest.raises(AuthError):
            bob.admins()
        first.ask_admission(name="bob", introduction=introductions[0], reason="the second")
        asked = first.ask_admission(name="carol", introduction=introductions[1], reason="the third").request
        assert asked is not None
        assert asked.introduction == introductions[1]
        done = bob.approve_admin_request(asked.id)
        assert len(carol.admins()) == 3
        removal = first.ask_removal(str(done.admin_id), reason="left")
        assert [row.id for row in bob.admin_requests()] == [removal.id, asked.id]
        assert bob.approve_admin_request(removal.id).state == "approved"
        with pytest.raises(AuthError):
            carol.admins()


def test_requests_that_cannot_be(served: Any) -> None:
    good = {"name": "x", "introduction": introduce()[1], "reason": "why"}
    for body in ({"name": ""}, {"introduction": "no"}, {"reason": ""}, {"more": 1}):
        assert served.client().post("/v1/admins", json=good | body).status_code == 422, body
    assert served.client().post("/v1/admins/adm_x/remove", json={"reason": "why"}).status_code == 404
    for act in ("approve", "decline"):
        assert served.client().post(f"/v1/admin-requests/adr_x/{act}").status_code == 404
    for scope in ("read", "train", "data"):
        for method, path in (("GET", "/v1/admins"), ("POST", "/v1/admins"), ("GET", "/v1/admin-requests")):
            answer: httpx.Response = served.client(scope).request(method, path, json=good if method == "POST" else None)
            assert answer.status_code == 403


def test_no_answer_holds_a_token_or_its_hash_but_the_introduction(fresh: tuple[str, str], tmp_path: Path) -> None:
    url, token = fresh
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as client:
        client.post("/v1/admins", json={"name": "bob", "introduction": introduce()[1], "reason": "why"})
        answer = client.get("/v1/admins")
    assert token not in answer.text
    assert "hash" not in answer.text


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
