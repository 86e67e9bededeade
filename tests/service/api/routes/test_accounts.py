"""Accounts, limits and the freeze switch over HTTP: a raise passes through two admins' hands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest

from service.client import AuthError, BudgetError, Client
from service.db.session import transaction
from service.db.words import EntryKind
from service.ledger.chain import GENESIS_HASH, Entry
from service.main import utc_now
from tests.service.people import make_key


def test_opening_an_account(served: Any) -> None:
    made = served.account(name="patients", epsilon=1.5)
    assert made["balance"]["limit_epsilon"] == 1.5
    assert made["balance"]["left_nano"] == made["balance"]["capacity_nano"] > 0
    assert made["balance"]["spent_nano"] == made["balance"]["held_nano"] == 0
    assert served.client("read").get(f"/v1/accounts/{made['id']}").json() == made


def test_the_answer_names_the_new_address(served: Any) -> None:
    body = {"name": "p", "owner": "o", "epsilon": 1, "delta": 1e-5, "unit": "record"}
    answer = served.client().post("/v1/accounts", json=body | {"adjacency": "add_remove"})
    assert answer.headers["location"] == f"/v1/accounts/{answer.json()['id']}"
    assert answer.json()["rate"] > 0


def test_a_name_is_taken_once(served: Any) -> None:
    served.account(name="patients")
    body = {"name": "patients", "owner": "o", "epsilon": 1, "delta": 1e-5, "unit": "record"}
    answer = served.client().post("/v1/accounts", json=body | {"adjacency": "add_remove"})
    assert answer.status_code == 409
    assert answer.json()["code"] == "conflict"


@pytest.mark.parametrize("missing", ["epsilon", "delta", "unit", "adjacency"])
def test_nothing_that_changes_privacy_has_a_default(served: Any, missing: str) -> None:
    body = {"name": "p", "owner": "o", "epsilon": 1, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}
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


@pytest.fixture
def admin(served: Any) -> Iterator[Callable[[str], httpx.Client]]:
    """A client for each new admin."""
    clients: dict[str, httpx.Client] = {}

    def named(name: str) -> httpx.Client:
        if name not in clients:
            with transaction(served.factory) as session:
                token = make_key(session, name=name, scopes=["admin"], now=utc_now())[1]
            headers = {"Authorization": f"Bearer {token}"}
            clients[name] = httpx.Client(base_url=served.url, headers=headers, timeout=20)
        return clients[name]

    named("alice"), named("bob")
    yield named
    for client in clients.values():
        client.close()


def ask(client: httpx.Client, account_id: str, **changes: Any) -> httpx.Response:
    body = {"epsilon": 5.0, "reason": "a second study"} | changes
    return client.post(f"/v1/accounts/{account_id}/limit-requests", json=body)


def test_a_raise_passes_through_two_hands(served: Any, admin: Callable[[str], httpx.Client]) -> None:
    account = served.account(epsilon=2.0)
    made = ask(admin("alice"), account["id"])
    assert made.status_code == 201
    request = made.json()
    path = made.headers["location"]
    assert (request["state"], request["epsilon_before"], request["epsilon"]) == ("pending", 2.0, 5.0)
    assert request["decided_by"] is None
    another = admin("alice").post("/v1/keys", json={"name": "mine too", "scopes": ["admin"]}).json()
    for headers in ({}, {"Authorization": f"Bearer {another['token']}"}):
        refused = admin("alice").post(f"{path}/approve", headers=headers)
        assert refused.status_code == 403
        assert "two people" in refused.json()["detail"]
    approved = admin("bob").post(f"{path}/approve").json()
    assert approved["state"] == "approved"
    assert approved["decided_by"] != approved["requested_by"]
    assert approved["decided_by_admin"] != approved["requested_by_admin"] == another["admin_id"]
    assert served.client("read").get(path).json() == approved
    after = served.client().get(f"/v1/accounts/{account['id']}").json()
    assert (after["epsilon"], after["balance"]["limit_epsilon"]) == (5.0, 5.0)
    entry = served.client().get(f"/v1/accounts/{account['id']}/entries").json()["items"][-1]
    assert entry["kind"] == "limit"
    assert entry["details"]["requested_by"] == approved["requested_by"]
    assert entry["details"]["approved_by"] == approved["decided_by"]
    assert entry["details"]["approved_by_admin"] == approved["decided_by_admin"]


def test_only_admins_ask_and_decide(served: Any, admin: Callable[[str], httpx.Client]) -> None:
    account = served.account()
    path = ask(admin("alice"), account["id"]).headers["location"]
    for scope in ("read", "train", "data"):
        assert ask(served.client(scope), account["id"]).status_code == 403
        assert served.client(scope).post(f"{path}/approve").status_code == 403
        assert served.client(scope).post(f"{path}/decline").status_code == 403


def test_requests_are_listed_and_declined(served: Any, admin: Callable[[str], httpx.Client]) -> None:
    accounts = [served.account()["id"] for _ in range(3)]
    made = [ask(admin("alice"), account_id).json()["id"] for account_id in accounts]
    assert ask(admin("bob"), accounts[0]).status_code == 409
    declined = admin("bob").post(f"/v1/limit-requests/{made[0]}/decline").json()
    assert declined["state"] == "declined"
    assert admin("bob").post(f"/v1/limit-requests/{made[0]}/approve").status_code == 409
    first = served.client("read").get("/v1/limit-requests", params={"limit": 2}).json()
    second = served.client("read").get("/v1/limit-requests", params={"cursor": first["next_cursor"]}).json()
    assert [item["id"] for item in first["items"] + second["items"]] == made[::-1]
    of_one = served.client("read").get("/v1/limit-requests", params={"account_id": accounts[0]}).json()
    assert [item["state"] for item in of_one["items"]] == ["declined"]


def test_requests_that_cannot_be(served: Any) -> None:
    account = served.account()
    for body in ({"epsilon": 1.0}, {"epsilon": 1001}, {"reason": ""}, {"reason": " "}, {"reason": "a\nb"}, {"x": 1}):
        assert ask(served.client(), account["id"], **body).status_code == 422, body
    assert ask(served.client(), "acc_x").status_code == 404
    assert served.client().post("/v1/limit-requests/lim_x/approve").status_code == 404
    assert served.client().get("/v1/limit-requests/lim_x").status_code == 404


def test_a_frozen_account_takes_no_jobs_until_it_is_opened(served: Any) -> None:
    account = served.account()
    dataset = served.ready_dataset(account["id"])
    path = f"/v1/accounts/{account['id']}"
    for _ in range(2):
        assert served.client().post(f"{path}/freeze", json={"reason": "an audit"}).json()["frozen"] is True
    refused = served.train(dataset["id"])
    assert (refused.status_code, refused.json()["code"]) == (409, "account_frozen")
    assert served.client("train").post(f"{path}/unfreeze", json={"reason": "please"}).status_code == 403
    assert served.client().post(f"{path}/unfreeze", json={}).status_code == 422
    assert served.client().post(f"{path}/unfreeze", json={"reason": "it is over"}).json()["frozen"] is False
    assert served.train(dataset["id"]).status_code == 202
    kinds = [item["kind"] for item in served.client().get(f"{path}/entries").json()["items"]]
    assert kinds == ["open", "freeze", "freeze", "hold"]


def test_one_key_lowers_a_limit(served: Any) -> None:
    account = served.account(epsilon=2.0)
    path = f"/v1/accounts/{account['id']}/lower-limit"
    assert served.client().post(path, json={"epsilon": 3.0, "reason": "more"}).status_code == 422
    lowered = served.client().post(path, json={"epsilon": 1.0, "reason": "less"}).json()
    assert (lowered["epsilon"], lowered["frozen"]) == (1.0, False)


def test_keys_say_which_key_made_them(served: Any) -> None:
    first = served.client().post("/v1/keys", json={"name": "first", "scopes": ["admin"]}).json()
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {first['token']}"}) as client:
        second = client.post("/v1/keys", json={"name": "second", "scopes": ["read"]}).json()
    assert second["created_by"] == first["id"]
    listed = {item["id"]: item for item in served.client().get("/v1/keys").json()["items"]}
    assert listed[second["id"]]["created_by"] == first["id"]


def test_the_client_has_the_same_verbs(served: Any, admin: Callable[[str], httpx.Client]) -> None:
    account_id = served.account(epsilon=2.0)["id"]
    tokens = {name: admin(name).headers["authorization"].removeprefix("Bearer ") for name in ("alice", "bob")}
    with Client(served.url, tokens["alice"]) as alice, Client(served.url, tokens["bob"]) as bob:
        assert alice.lower_limit(account_id, epsilon=1.0, reason="less").epsilon == 1.0
        asked = alice.request_raise(account_id, epsilon=4.0, reason="more")
        with pytest.raises(AuthError):
            alice.approve_raise(asked.id)
        assert bob.decline_raise(asked.id).state == "declined"
        asked = alice.request_raise(account_id, epsilon=4.0, reason="more")
        assert bob.approve_raise(asked.id).state == "approved"
        assert [request.state for request in alice.limit_requests()] == ["approved", "declined"]
        dataset = served.ready_dataset(account_id)
        assert alice.freeze(account_id, reason="an audit").frozen
        with pytest.raises(BudgetError):
            alice.train(dataset["id"], recipe="datalens", epsilon=0.1)
        assert not alice.unfreeze(account_id, reason="it is over").frozen
