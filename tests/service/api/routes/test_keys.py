"""API keys over HTTP: who made them, until when they open anything, and what goes when one of them goes."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from service.api.events import StreamLimits
from service.db.access_tables import SignIn
from service.main import utc_now
from service.times import to_the_hour
from tests.service.api.conftest import Served
from tests.together import wait_until


@pytest.fixture(scope="module")
def ahead() -> SimpleNamespace:
    return SimpleNamespace(time=timedelta(0))


@pytest.fixture(scope="module")
def limits(ahead: SimpleNamespace) -> dict[str, Any]:
    return {"clock": lambda: utc_now() + ahead.time, "stream_limits": StreamLimits(poll_seconds=0.05)}


@pytest.fixture
def clock(ahead: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """The service's clock, which the test moves ahead."""
    yield ahead
    ahead.time = timedelta(0)


@pytest.fixture
def council(fresh: Served) -> Served:
    """Three admins of a new installation: the first, bob and carol."""
    fresh.tokens["first"] = fresh.tokens["admin"]
    fresh.admit("bob")
    fresh.approve(fresh.admit("carol")["request"]["id"], by="bob")
    return fresh


def admin_of(council: Served, name: str) -> str:
    """The id of an admin."""
    return next(str(admin["id"]) for admin in council.read("admins", scope="admin")["items"] if admin["name"] == name)


def test_with_a_removed_admin_goes_all_that_they_made(council):
    """What was found: keys without the scope admin could still read, train and delete."""
    dataset = council.dataset()
    council.make_key("carol's other", "admin", by="carol")
    council.make_key("reader", "read", by="carol")
    council.make_key("deleter", "data", by="carol's other")
    council.make_key("bob's reader", "read", by="bob")
    removal = council.send(f"admins/{admin_of(council, 'carol')}/remove", {"reason": "left"}, status=201, scope="first")
    assert council.enters("carol", "carol's other", "reader", "deleter") == [True] * 4
    done = council.approve(removal["id"], by="bob")
    assert council.enters("carol", "carol's other", "reader", "deleter") == [False] * 4
    assert council.client("deleter").delete(f"/v1/datasets/{dataset['id']}").status_code == 401
    assert council.enters("first", "bob", "bob's reader") == [True] * 3
    assert done["keys_revoked"] == 4


def test_with_a_stolen_key_goes_all_that_it_made(council):
    """What was found: whoever stole a key made others with it, which went on after it was revoked."""
    stolen = council.make_key("stolen", "admin", by="bob")
    council.make_key("thief's", "admin", by="stolen")
    council.make_key("thief's reader", "read", by="thief's")
    council.make_key("bob's reader", "read", by="bob")
    revoked = council.send(f"keys/{stolen['id']}/revoke", scope="bob")
    assert council.enters("stolen", "thief's", "thief's reader") == [False] * 3
    assert council.enters("bob", "bob's reader") == [True] * 2
    assert revoked["others_revoked"] == 2
    listed = council.read("keys", scope="bob", created_by=stolen["id"])["items"]
    assert [key["name"] for key in listed] == ["thief's reader", "thief's"]
    again = council.send(f"keys/{stolen['id']}/revoke", scope="bob")
    assert (again["others_revoked"], again["revoked_at"]) == (0, revoked["revoked_at"])


def test_what_a_key_has_made_stays_where_that_is_said(council):
    old = council.make_key("old", "admin", by="bob")
    council.make_key("reader", "read", by="old")
    revoked = council.send(f"keys/{old['id']}/revoke", {"include_created": False}, scope="bob")
    assert revoked["others_revoked"] == 0
    assert council.enters("old", "reader") == [False, True]


def test_a_rotated_key_goes_on_until_the_overlap_is_over(council):
    old = council.make_key(
        "nightly", "read", "train", expires_at=(utc_now() + timedelta(days=90)).isoformat(), by="bob"
    )

    def rotate(overlap_seconds: int, status: int = 201) -> Any:
        body = {"overlap_seconds": overlap_seconds}
        return council.send(f"keys/{old['id']}/rotate", body, status=status, scope="carol")

    def end() -> str:
        keys = council.read("keys", scope="first")["items"]
        return next(str(key["expires_at"]) for key in keys if key["id"] == old["id"])

    new = rotate(3600)
    council.tokens["new"] = new["token"]
    assert council.enters("nightly", "new") == [True, True]
    kept = {name: new[name] for name in ("name", "scopes", "project_id", "admin_id")}
    assert kept == {name: old[name] for name in kept}
    assert (new["created_by"], new["expires_at"]) == (council.key_id("carol"), None)
    overlap = end()
    assert timedelta(minutes=58) < datetime.fromisoformat(overlap) - utc_now() <= timedelta(minutes=60)
    rotate(7200)
    assert end() == overlap
    rotate(0)
    assert council.enters("nightly", "new") == [False, True]
    rotate(0, status=409)


def test_an_admins_key_is_rotated_by_that_person_alone(council):
    council.send(f"keys/{council.key_id('bob')}/rotate", {"overlap_seconds": 0}, status=403, scope="carol")
    assert council.enters("bob") == [True]
    new = council.send(f"keys/{council.key_id('bob')}/rotate", {"overlap_seconds": 0}, status=201, scope="bob")
    council.tokens["bob again"] = new["token"]
    assert (new["admin_id"], new["project_id"]) == (admin_of(council, "bob"), None)
    assert council.enters("bob", "bob again") == [False, True]


def test_no_admin_alone_revokes_the_keys_of_another(council):
    """What was found: one admin revoked the keys of all others, and was the only one who could do anything."""
    made = council.make_key("bob's other", "admin", by="bob")
    for key_id in (council.key_id("bob"), made["id"], council.key_id("carol")):
        answer = council.client("first").post(f"/v1/keys/{key_id}/revoke", json={"include_created": False})
        assert answer.status_code == 403, answer.text
        assert "obscura admins revoke" in answer.json()["detail"]
    assert council.enters("first", "bob", "bob's other", "carol") == [True] * 4
    council.make_key("reader", "read", by="bob")
    council.send(f"keys/{council.key_id('reader')}/revoke", scope="first")
    council.send(f"keys/{made['id']}/revoke", scope="bob")
    assert council.enters("reader", "bob's other", "bob") == [False, False, True]


def test_two_admins_revoke_the_key_of_a_third(council):
    council.make_key("reader", "read", by="carol")
    key_id, why = council.key_id("carol"), {"reason": "her laptop was stolen"}
    asked = council.send(f"keys/{key_id}/request-revocation", why, status=201, scope="first")
    assert (asked["action"], asked["name"], asked["key_id"]) == ("revoke", "carol", key_id)
    assert asked["introduction"] is None
    council.send(f"keys/{key_id}/request-revocation", why, status=409, scope="bob")  # it waits already
    council.approve(asked["id"], status=403, by="first")
    assert council.enters("carol", "reader") == [True, True]
    done = council.approve(asked["id"], by="bob")
    assert (done["state"], done["keys_revoked"]) == ("approved", 2)
    assert council.enters("carol", "reader") == [False, False]
    for name in ("carol", "bob"):
        council.send(f"keys/{council.key_id(name)}/request-revocation", why, status=409, scope="bob")
    council.send("keys/key_nothing/request-revocation", why, status=404, scope="bob")


def test_a_list_shows_who_made_a_key_and_the_hour_of_its_last_use(council):
    council.make_key("reader", "read", by="bob")
    before = to_the_hour(utc_now())
    assert council.enters("reader") == [True]

    def reader() -> dict[str, Any]:
        return next(key for key in council.read("keys", scope="first")["items"] if key["name"] == "reader")

    wait_until(lambda: reader()["last_used_at"] is not None, "the use was not written")
    shown = reader()
    assert (shown["created_by"], shown["created_by_name"]) == (council.key_id("bob"), "bob")
    assert shown["created_by_admin"] == admin_of(council, "bob")
    used = datetime.fromisoformat(shown["last_used_at"])
    assert before <= used <= utc_now()
    assert used == to_the_hour(used), "nobody's exact times are kept"
    assert shown["expires_at"] is None


def test_an_expired_key_is_refused_and_told_so(served, clock):
    end = (utc_now() + timedelta(days=90)).replace(second=0, microsecond=0)
    made = served.send("keys", {"name": "k", "scopes": ["read"], "expires_at": end.isoformat()}, status=201)
    assert datetime.fromisoformat(made["expires_at"]) == end
    with served.bearer(made["token"]) as client:
        assert client.get("/v1/jobs").status_code == 200
        clock.time = timedelta(days=90, seconds=1)
        refused = client.get("/v1/jobs")
        assert refused.status_code == 401
        assert f"expired at {end:%Y-%m-%d %H:%M} UTC" in refused.json()["detail"]
    mistyped = made["token"][:-1] + ("0" if made["token"][-1] != "0" else "1")
    with served.bearer(mistyped) as client:
        assert "expired" not in client.get("/v1/jobs").text, "that is for its holder alone"


def test_an_open_stream_and_a_session_end_with_their_key(served, clock):
    account = served.account()
    job = served.train(served.ready_dataset(account["id"])["id"]).json()
    end = utc_now() + timedelta(hours=1)
    made = served.send("keys", {"name": "k", "scopes": ["read"], "expires_at": end.isoformat()}, status=201)
    browser = served.client(None)
    assert browser.post("/login", data={"key": made["token"]}).status_code == 303
    assert browser.get("/jobs").status_code == 200
    with served.bearer(made["token"]) as client, client.stream("GET", f"/v1/jobs/{job['id']}/events") as stream:
        lines = stream.iter_lines()
        assert any(line.startswith("data:") for line in lines)
        clock.time = timedelta(hours=1, seconds=1)
        assert not any(json.loads(line[5:])["state"] == "succeeded" for line in lines if line.startswith("data:"))
    assert browser.get("/jobs").status_code == 303
    assert len(served.rows(SignIn)) == 1, "the session itself was not over"


def test_a_key_with_an_end_makes_none_that_outlives_it(served):
    end = utc_now().replace(second=0, microsecond=0) + timedelta(days=2)
    wanted = {"name": "k", "scopes": ["admin"], "expires_at": end.isoformat()}
    with served.bearer(served.send("keys", wanted, status=201)["token"]) as short:
        made = short.post("/v1/keys", json={"name": "x", "scopes": ["read"]})
        assert datetime.fromisoformat(made.json()["expires_at"]) == end
        longer = {"name": "x", "scopes": ["read"], "expires_at": (end + timedelta(seconds=1)).isoformat()}
        assert short.post("/v1/keys", json=longer).status_code == 422
    past = (utc_now() - timedelta(seconds=1)).isoformat()
    for wrong in (past, "2100-01-01T00:00:00", "soon"):
        served.send("keys", wanted | {"expires_at": wrong}, status=422)


def test_an_owner_neither_makes_nor_rotates_a_key_that_reads_the_metrics(served):
    """They are of all projects. Which roles read them: tests/service/test_matrix.py."""
    heart = served.project()
    owner = served.member(heart, "owner")
    scraper = served.send("keys", {"name": "scraper", "scopes": ["metrics"], "project_id": heart}, status=201)
    owner.send("keys", {"name": "another", "scopes": ["metrics"]}, status=403)
    owner.send(f"keys/{scraper['id']}/rotate", {"overlap_seconds": 0}, status=403)
    with served.bearer(scraper["token"]) as client:
        answer = client.get("/metrics")
        assert (answer.status_code, answer.headers["content-type"][:10]) == (200, "text/plain")
        assert "obscura_build_info" in answer.text
        assert client.get("/v1/jobs").status_code == 403
