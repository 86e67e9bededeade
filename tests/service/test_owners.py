"""Owners decide in one project, two of them or one and an admin of the installation, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from obscura.wire.ids import introduce
from service.db.base import new_id
from service.main import create_app
from service.settings import Settings
from tests.service.reading_routes import TestClient


class House:
    """An installation with two admins, a project of each test with an account, and short names for what people do."""

    def __init__(self, first: TestClient) -> None:
        self.clients = {"alice": first}
        self.admit("bob", by="alice")

    def begin(self) -> None:
        """Open a project; its people are others than those of the test before, whatever their names."""
        self.suffix = new_id("x")
        self.clients = {name: self.clients[name] for name in ("alice", "bob")}
        self.name = f"heart {self.suffix}"
        self.project = self.post("alice", "/v1/projects", {"name": self.name})["id"]
        body = {"name": self.name, "owner": "o", "epsilon": 1, "delta": 1e-6, "unit": "record"}
        body |= {"adjacency": "add_remove", "project_id": self.project}
        self.account = self.post("alice", "/v1/accounts", body)["id"]

    def called(self, name: str) -> str:
        return name if name in ("alice", "bob") else f"{name} {self.suffix}"

    def client(self, token: str) -> TestClient:
        client = TestClient(self.clients["alice"].app, follow_redirects=False, base_url="http://127.0.0.1:8420")
        client.headers["Authorization"] = f"Bearer {token}"
        return client

    def post(self, who: str, path: str, body: Any = None, status: int = 0) -> Any:
        answer = self.clients[who].post(path, json=body)
        assert answer.status_code == status if status else answer.is_success, (path, answer.text)
        return answer.json()

    def admit(self, name: str, *, by: str, status: int = 0, **more: str) -> Any:
        token, introduction = introduce()
        self.clients[name] = self.client(token)
        body = {"name": self.called(name), "introduction": introduction, "reason": "needed", **more}
        return self.post(by, "/v1/admins", body, status)

    def own(self, name: str, *, by: str, approved_by: str | None = None) -> str:
        """Name an owner of the project and return their id."""
        made = self.admit(name, by=by, project_id=self.project)
        if approved_by is None:
            return str(made["admin"]["id"])
        return str(self.approve(approved_by, made["request"]["id"])["admin_id"])

    def approve(self, who: str, request_id: str, status: int = 0) -> Any:
        return self.post(who, f"/v1/decisions/{request_id}/approve", status=status)

    def ask_raise(self, who: str) -> str:
        body = {"epsilon": 2, "reason": "a second study"}
        return str(self.post(who, f"/v1/accounts/{self.account}/raise-limit", body)["id"])

    def works(self, who: str) -> bool:
        return self.clients[who].get("/v1/keys").status_code == 200


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder: Path = tmp_path_factory.mktemp("owners")
    settings = Settings(data_dir=folder, database_url=f"sqlite:///{folder / 'obscura.db'}", mode="celery")
    app = create_app(settings, send=lambda _name, _args: None)
    with TestClient(app, raise_server_exceptions=False, base_url="http://127.0.0.1:8420") as client:
        client.headers["Authorization"] = f"Bearer {settings.admin_key_path.read_text('ascii').strip()}"
        yield House(client)


@pytest.fixture
def house(installation: House) -> House:
    installation.begin()
    return installation


def test_an_admin_names_the_first_owner_alone_and_any_further_one_takes_two_people(house):
    carol = house.own("carol", by="alice")
    listed = house.clients["carol"].get("/v1/admins").json()["items"]
    assert [(one["id"], one["admission"], one["project_id"]) for one in listed] == [(carol, "alone", house.project)]
    assert "request" in house.admit("dave", by="alice", project_id=house.project)
    for by in ("alice", "carol"):
        asked = house.admit("erin " + by, by=by, project_id=house.project)["request"]
        assert asked["project_id"] == house.project
        assert "count as one" in house.approve("carol" if by == "alice" else "alice", asked["id"], 403)["detail"]
        assert house.approve("bob", asked["id"])["state"] == "approved"


def test_an_owner_is_no_admin_of_the_installation(house):
    carol = house.own("carol", by="alice")
    alice = house.clients["alice"].get("/v1/admins").json()["items"][0]["id"]
    house.post("carol", f"/v1/admins/{alice}/remove", {"reason": "a coup"}, 404)
    made = house.admit("mallory", by="carol")  # of the own project, as long as nothing else is said
    assert made["request"]["project_id"] == house.project
    other = house.post("alice", "/v1/projects", {"name": f"lung {house.suffix}"})["id"]
    house.admit("mallory too", by="carol", status=404, project_id=other)
    key = house.post("carol", "/v1/keys", {"name": "k", "scopes": ["admin"]})
    assert (key["project_id"], key["admin_id"]) == (house.project, carol)


def test_a_limit_is_raised_by_two_owners_or_by_one_and_an_admin(house):
    house.own("carol", by="alice")
    house.own("dave", by="carol", approved_by="bob")
    for asks, approves in (("carol", "dave"), ("dave", "alice"), ("carol", "bob")):
        asked = house.ask_raise(asks)
        again = house.post(asks, "/v1/keys", {"name": "another key", "scopes": ["admin"]})["token"]
        house.clients["same person"] = house.client(again)
        assert "two people" in house.approve("same person", asked, 403)["detail"]
        house.approve(approves, asked)
        house.post(asks, f"/v1/accounts/{house.account}/lower-limit", {"epsilon": 1, "reason": "over"})
    assert "count as one" in house.approve("alice", house.ask_raise("carol"), 403)["detail"]


def test_with_an_admin_go_the_owners_named_alone_and_what_they_made_and_nobody_else(house):
    grace = house.approve("bob", house.admit("grace", by="alice")["request"]["id"])["admin_id"]
    house.own("carol", by="grace")
    house.own("dave", by="carol", approved_by="bob")
    for who in ("carol", "dave"):
        key = house.post(who, "/v1/keys", {"name": "reader", "role": "analyst"})
        house.clients[f"reader of {who}"] = house.client(key["token"])
    asked = house.post("alice", f"/v1/admins/{grace}/remove", {"reason": "left"})
    assert house.approve("bob", asked["id"])["keys_revoked"] == 3
    assert [who for who in ("grace", "carol", "dave", "bob") if house.works(who)] == ["dave", "bob"]
    read = {who: house.clients[f"reader of {who}"].get("/v1/accounts").status_code for who in ("carol", "dave")}
    assert read == {"carol": 401, "dave": 200}
    listed = house.clients["bob"].get("/v1/admins").json()["items"]
    removed = {one["name"] for one in listed if one["removed_at"] is not None}
    assert [who for who in ("grace", "carol", "dave") if house.called(who) in removed] == ["grace", "carol"]


def test_a_stolen_key_takes_the_owner_whom_it_named_with_it_and_another_one_can_be_named(house):
    stolen = house.post("alice", "/v1/keys", {"name": "second", "scopes": ["admin"]})
    house.clients["thief"] = house.client(stolen["token"])
    house.own("puppet", by="thief")
    assert house.works("puppet")
    revoked = house.post("alice", f"/v1/keys/{stolen['id']}/revoke")
    assert (revoked["others_revoked"], house.works("puppet")) == (1, False)
    house.own("carol", by="alice")
    assert house.works("carol")


def test_two_owners_remove_a_third(house):
    house.own("carol", by="alice")
    dave = house.own("dave", by="carol", approved_by="bob")
    asked = house.post("carol", f"/v1/admins/{dave}/remove", {"reason": "left"})
    assert house.approve("dave", asked["id"])["state"] == "approved"
    assert not house.works("dave")


def test_the_page_of_admins_shows_an_owner_the_own_project(house):
    house.own("carol", by="alice")
    client = house.clients["carol"]
    token = client.headers["Authorization"].removeprefix("Bearer ")
    assert client.post("/login", data={"key": token}).headers["location"] == "/"
    shown = client.get("/admins")
    assert (shown.status_code, house.called("carol") in shown.text, "bob" in shown.text) == (200, True, False)
    admin = house.client(house.clients["alice"].headers["Authorization"].removeprefix("Bearer "))
    assert admin.post("/login", data={"key": admin.headers["Authorization"].removeprefix("Bearer ")}).is_redirect
    assert f"Owner of {house.name}" in admin.get("/admins").text
