"""Admins and keys over HTTP: two others admit and remove a person; a key is shown once and revoked at once."""

import pytest

from obscura.client import AuthError, Client, NotFoundError
from service.identity.admins import introduce


def test_a_person_is_admitted_and_removed_by_two_others(fresh):
    url, token = fresh.url, fresh.tokens["admin"]
    tokens, introductions = zip(*(introduce() for _ in range(2)), strict=True)
    with Client(url, token) as first, Client(url, tokens[0]) as bob, Client(url, tokens[1]) as carol:
        with pytest.raises(AuthError):
            bob.admins()
        first.request_admission(name="bob", introduction=introductions[0], reason="the second")
        asked = first.request_admission(name="carol", introduction=introductions[1], reason="the third").request
        assert asked.introduction == introductions[1]
        done = bob.approve(asked.id)
        assert len(carol.admins()) == 3
        removal = first.request_removal(str(done.admin_id), reason="left")
        assert [row.id for row in bob.decisions()] == [removal.id, asked.id]
        assert bob.approve(removal.id).state == "approved"
        with pytest.raises(AuthError):
            carol.admins()


def test_requests_about_admins_are_for_admins_and_raises_for_all_readers(fresh):
    account_id = fresh.account()["id"]
    reader = fresh.make_key("reader", "read")["token"]
    fresh.admit("bob")
    asked = fresh.admit("carol")["request"]
    with Client(fresh.url, fresh.tokens["admin"]) as first, Client(fresh.url, reader) as anybody:
        raised = first.request_raise(account_id, epsilon=4.0, reason="more")
        assert [row.id for row in first.decisions()] == [raised.id, asked["id"]]
        assert [row.id for row in first.decisions(action="admit")] == [asked["id"]]
        assert list(anybody.decisions()) == [raised] == [anybody.decision(raised.id)]
        assert list(anybody.decisions(action="admit")) == []
        with pytest.raises(NotFoundError):
            anybody.decision(asked["id"])


def test_lists_show_neither_token_nor_hash(fresh):
    fresh.admit("bob")
    answer = fresh.client().post("/v1/keys", json={"name": "analyst", "scopes": ["read"]})
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    made = answer.json()
    for path in ("admins", "keys"):
        page = fresh.client().get(f"/v1/{path}").text
        assert not [secret for secret in (made["token"], fresh.tokens["admin"], "hash", "token") if secret in page]
