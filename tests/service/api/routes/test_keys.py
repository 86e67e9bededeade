"""API keys over HTTP: who made them, until when they open anything, and what goes when one of them goes."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from service.db.access_tables import SignIn
from service.db.session import transaction
from service.identity.admins import introduce
from service.main import utc_now
from service.times import to_the_hour
from tests.service.api.conftest import OwnSettings, Served, serving
from tests.together import wait_until


class Council:
    """Three admins of a new installation: the first, bob and carol."""

    def __init__(self, served: Served) -> None:
        self.served, self.tokens, self.client = served, served.tokens, served.client
        self.tokens["first"] = self.tokens["admin"]
        self.keys: dict[str, str] = {}
        for name in ("bob", "carol"):
            self.tokens[name], introduction = introduce()
            self.keys[name] = introduction.split(":")[0]
            body = {"name": name, "introduction": introduction, "reason": "decides"}
            made = self.post("first", "admins", body, status=201)
            if made["request"]:
                self.post("bob", f"decisions/{made['request']['id']}/approve")
        self.ids = {admin["name"]: admin["id"] for admin in self.get("first", "admins")["items"]}

    def post(self, by: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        return self.served.send(path, body, scope=by, status=status)

    def get(self, by: str, path: str) -> Any:
        return self.served.ask("GET", path, scope=by)

    def make(self, by: str, name: str, *scopes: str, **more: Any) -> dict[str, Any]:
        """Make a key, whose holder is a caller of this name from then on."""
        made = self.post(by, "keys", {"name": name, "scopes": scopes, **more}, status=201)
        self.tokens[name], self.keys[name] = made["token"], made["id"]
        return dict(made)

    def may(self, *names: str) -> list[bool]:
        """Whether each of these is let in, asked for what each key may read."""
        return [self.client(name).get("/v1/datasets").status_code != 401 for name in names]


@pytest.fixture
def council(fresh: Served) -> Council:
    return Council(fresh)


def test_with_a_removed_admin_goes_all_that_they_made(council):
    """What was found: keys without the scope admin could still read, train and delete."""
    dataset = council.served.dataset()
    council.make("carol", "carol's other", "admin")
    council.make("carol", "reader", "read")
    council.make("carol's other", "deleter", "data")
    council.make("bob", "bob's reader", "read")
    removal = council.post("first", f"admins/{council.ids['carol']}/remove", {"reason": "left"}, status=201)
    assert council.may("carol", "carol's other", "reader", "deleter") == [True] * 4
    done = council.post("bob", f"decisions/{removal['id']}/approve")
    assert council.may("carol", "carol's other", "reader", "deleter") == [False] * 4
    assert council.client("deleter").delete(f"/v1/datasets/{dataset['id']}").status_code == 401
    assert council.may("first", "bob", "bob's reader") == [True] * 3
    assert done["keys_revoked"] == 4


def test_with_a_stolen_key_goes_all_that_it_made(council):
    """What was found: whoever stole a key made others with it, which went on after it was revoked."""
    stolen = council.make("bob", "stolen", "admin")
    council.make("stolen", "thief's", "admin")
    council.make("thief's", "thief's reader", "read")
    council.make("bob", "bob's reader", "read")
    revoked = council.post("bob", f"keys/{stolen['id']}/revoke")
    assert council.may("stolen", "thief's", "thief's reader") == [False] * 3
    assert council.may("bob", "bob's reader") == [True] * 2
    assert revoked["others_revoked"] == 2
    listed = council.get("bob", f"keys?created_by={stolen['id']}")["items"]
    assert [key["name"] for key in listed] == ["thief's reader", "thief's"]
    again = council.post("bob", f"keys/{stolen['id']}/revoke")
    assert (again["others_revoked"], again["revoked_at"]) == (0, revoked["revoked_at"])


def test_what_a_key_has_made_stays_where_that_is_said(council):
    old = council.make("bob", "old", "admin")
    council.make("old", "reader", "read")
    revoked = council.post("bob", f"keys/{old['id']}/revoke", {"include_created": False})
    assert revoked["others_revoked"] == 0
    assert council.may("old", "reader") == [False, True]


def test_a_rotated_key_goes_on_until_the_overlap_is_over(council):
    old = council.make("bob", "nightly", "read", "train", expires_at=(utc_now() + timedelta(days=90)).isoformat())
    new = council.post("carol", f"keys/{old['id']}/rotate", {"overlap_seconds": 3600}, status=201)
    council.tokens["new"] = new["token"]
    assert council.may("nightly", "new") == [True, True]
    kept = {name: new[name] for name in ("name", "scopes", "project_id", "admin_id")}
    assert kept == {name: old[name] for name in kept}
    assert (new["created_by"], new["expires_at"]) == (council.keys["carol"], None)
    shown = {key["id"]: key["expires_at"] for key in council.get("first", "keys")["items"]}
    ends_in = datetime.fromisoformat(shown[old["id"]]) - utc_now()
    assert timedelta(minutes=58) < ends_in <= timedelta(minutes=60)
    council.post("carol", f"keys/{old['id']}/rotate", {"overlap_seconds": 7200}, status=201)
    assert {key["id"]: key["expires_at"] for key in council.get("first", "keys")["items"]}[old["id"]] == shown[
        old["id"]
    ]
    council.post("carol", f"keys/{old['id']}/rotate", {"overlap_seconds": 0}, status=201)
    assert council.may("nightly", "new") == [False, True]
    council.post("carol", f"keys/{old['id']}/rotate", {"overlap_seconds": 0}, status=409)


def test_an_admins_key_is_rotated_by_that_person_alone(council):
    council.post("carol", f"keys/{council.keys['bob']}/rotate", {"overlap_seconds": 0}, status=403)
    assert council.may("bob") == [True]
    new = council.post("bob", f"keys/{council.keys['bob']}/rotate", {"overlap_seconds": 0}, status=201)
    council.tokens["bob again"] = new["token"]
    assert (new["admin_id"], new["project_id"]) == (council.ids["bob"], None)
    assert council.may("bob", "bob again") == [False, True]


def test_no_admin_alone_revokes_the_keys_of_another(council):
    """What was found: one admin revoked the keys of all others, and was the only one who could do anything."""
    made = council.make("bob", "bob's other", "admin")
    for key_id in (council.keys["bob"], made["id"], council.keys["carol"]):
        answer = council.client("first").post(f"/v1/keys/{key_id}/revoke", json={"include_created": False})
        assert answer.status_code == 403, answer.text
        assert "obscura admins revoke" in answer.json()["detail"]
    assert council.may("first", "bob", "bob's other", "carol") == [True] * 4
    council.make("bob", "reader", "read")
    council.post("first", f"keys/{council.keys['reader']}/revoke")
    council.post("bob", f"keys/{made['id']}/revoke")
    assert council.may("reader", "bob's other", "bob") == [False, False, True]


def test_two_admins_revoke_the_key_of_a_third(council):
    council.make("carol", "reader", "read")
    key_id, why = council.keys["carol"], {"reason": "her laptop was stolen"}
    asked = council.post("first", f"keys/{key_id}/request-revocation", why, status=201)
    assert (asked["action"], asked["name"], asked["key_id"]) == ("revoke", "carol", key_id)
    assert asked["introduction"] is None
    council.post("bob", f"keys/{key_id}/request-revocation", why, status=409)  # it waits already
    council.post("first", f"decisions/{asked['id']}/approve", status=403)
    assert council.may("carol", "reader") == [True, True]
    done = council.post("bob", f"decisions/{asked['id']}/approve")
    assert (done["state"], done["keys_revoked"]) == ("approved", 2)
    assert council.may("carol", "reader") == [False, False]
    for name, status in (("carol", 409), ("bob", 409)):
        council.post("bob", f"keys/{council.keys[name]}/request-revocation", why, status=status)
    council.post("bob", "keys/key_nothing/request-revocation", why, status=404)


def test_a_list_shows_who_made_a_key_and_the_hour_of_its_last_use(council):
    council.make("bob", "reader", "read")
    before = to_the_hour(utc_now())
    assert council.may("reader") == [True]

    def reader() -> dict[str, Any]:
        return next(key for key in council.get("first", "keys")["items"] if key["name"] == "reader")

    wait_until(lambda: reader()["last_used_at"] is not None, "the use was not written")
    shown = reader()
    assert (shown["created_by"], shown["created_by_name"]) == (council.keys["bob"], "bob")
    assert shown["created_by_admin"] == council.ids["bob"]
    used = datetime.fromisoformat(shown["last_used_at"])
    assert before <= used <= utc_now()
    assert used == to_the_hour(used), "nobody's exact times are kept"
    assert shown["expires_at"] is None


@pytest.fixture
def clock() -> list[timedelta]:
    """How far the service's clock is ahead."""
    return [timedelta(0)]


@pytest.fixture
def moved(own_settings: OwnSettings, clock: list[timedelta]) -> Iterator[Served]:
    """The running service, with a clock that the test moves."""
    with serving(own_settings(), "admin", "read", clock=lambda: utc_now() + clock[0]) as served:
        yield served


def test_an_expired_key_is_refused_and_told_so(moved, clock):
    end = (utc_now() + timedelta(days=90)).replace(second=0, microsecond=0)
    made = moved.send("keys", {"name": "k", "scopes": ["read"], "expires_at": end.isoformat()}, status=201)
    assert datetime.fromisoformat(made["expires_at"]) == end
    with moved.bearer(made["token"]) as client:
        assert client.get("/v1/jobs").status_code == 200
        clock[0] = timedelta(days=90, seconds=1)
        refused = client.get("/v1/jobs")
        assert refused.status_code == 401
        assert f"expired at {end:%Y-%m-%d %H:%M} UTC" in refused.json()["detail"]
    mistyped = made["token"][:-1] + ("0" if made["token"][-1] != "0" else "1")
    with moved.bearer(mistyped) as client:
        assert "expired" not in client.get("/v1/jobs").text, "that is for its holder alone"


def test_an_open_stream_and_a_session_end_with_their_key(moved, clock):
    account = moved.account()
    job = moved.train(moved.ready_dataset(account["id"])["id"]).json()
    end = utc_now() + timedelta(hours=1)
    made = moved.send("keys", {"name": "k", "scopes": ["read"], "expires_at": end.isoformat()}, status=201)
    browser = moved.client(None)
    assert browser.post("/login", data={"key": made["token"]}).status_code == 303
    assert browser.get("/jobs").status_code == 200
    with moved.bearer(made["token"]) as client, client.stream("GET", f"/v1/jobs/{job['id']}/events") as stream:
        lines = stream.iter_lines()
        assert any(line.startswith("data:") for line in lines)
        clock[0] = timedelta(hours=1, seconds=1)
        assert not any(json.loads(line[5:])["state"] == "succeeded" for line in lines if line.startswith("data:"))
    assert browser.get("/jobs").status_code == 303
    with transaction(moved.factory, read_only=True) as session:
        assert session.scalar(select(func.count()).select_from(SignIn)) == 1, "the session itself was not over"


def test_a_key_with_an_end_makes_none_that_outlives_it(moved):
    end = utc_now().replace(second=0, microsecond=0) + timedelta(days=2)
    wanted = {"name": "k", "scopes": ["admin"], "expires_at": end.isoformat()}
    with moved.bearer(moved.send("keys", wanted, status=201)["token"]) as short:
        made = short.post("/v1/keys", json={"name": "x", "scopes": ["read"]})
        assert datetime.fromisoformat(made.json()["expires_at"]) == end
        longer = {"name": "x", "scopes": ["read"], "expires_at": (end + timedelta(seconds=1)).isoformat()}
        assert short.post("/v1/keys", json=longer).status_code == 422
    past = (utc_now() - timedelta(seconds=1)).isoformat()
    for wrong in (past, "2100-01-01T00:00:00", "soon"):
        moved.send("keys", wanted | {"expires_at": wrong}, status=422)


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
