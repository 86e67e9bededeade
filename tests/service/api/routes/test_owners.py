"""Owners decide in one project, two of them or one and an admin of the installation, and nowhere else."""

import pytest

from tests.service.api.conftest import Served


class House:
    """An installation with two admins, alice and bob, and a project with an account."""

    def __init__(self, served: Served) -> None:
        self.served = served
        served.tokens["alice"] = served.tokens["admin"]
        served.admit("bob", by="alice")
        self.project = served.project("heart")
        self.account = served.account(project_id=self.project, epsilon=1.0)["id"]

    def own(self, name: str, *, by: str, approved_by: str | None = None) -> str:
        """Name an owner of the project; returns their id."""
        made = self.served.admit(name, by=by, project_id=self.project)
        if approved_by is None:
            return str(made["admin"]["id"])
        return str(self.served.approve(made["request"]["id"], by=approved_by)["admin_id"])

    def ask_raise(self, by: str) -> str:
        body = {"epsilon": 2, "reason": "a second study"}
        return str(self.served.send(f"accounts/{self.account}/raise-limit", body, scope=by, status=201)["id"])

    def ask_removal(self, admin_id: str, *, by: str, status: int = 201) -> dict[str, str]:
        return dict(self.served.send(f"admins/{admin_id}/remove", {"reason": "left"}, scope=by, status=status))


@pytest.fixture
def house(fresh: Served) -> House:
    return House(fresh)


def test_an_admin_names_the_first_owner_alone_and_any_further_one_takes_two_people(fresh, house):
    carol = house.own("carol", by="alice")
    listed = fresh.read("admins", scope="carol")["items"]
    assert [(one["id"], one["admission"], one["project_id"]) for one in listed] == [(carol, "alone", house.project)]
    for by, other in (("alice", "carol"), ("carol", "alice")):
        asked = fresh.admit(f"erin, named by {by}", by=by, project_id=house.project)["request"]
        assert asked["project_id"] == house.project
        assert "count as one" in fresh.approve(asked["id"], by=other, status=403)["detail"]
        assert fresh.approve(asked["id"], by="bob")["state"] == "approved"


def test_an_owner_is_no_admin_of_the_installation(fresh, house):
    carol = house.own("carol", by="alice")
    house.ask_removal(fresh.read("admins", scope="alice")["items"][0]["id"], by="carol", status=404)
    made = fresh.admit("mallory", by="carol")  # of the own project, as long as nothing else is said
    assert made["request"]["project_id"] == house.project
    fresh.admit("mallory too", by="carol", status=404, project_id=fresh.project("lung"))
    key = fresh.make_key("carol's other", "admin", by="carol")
    assert (key["project_id"], key["admin_id"]) == (house.project, carol)


def test_a_limit_is_raised_by_two_owners_or_by_one_and_an_admin(fresh, house):
    house.own("carol", by="alice")
    house.own("dave", by="carol", approved_by="bob")
    lower = {"epsilon": 1, "reason": "over"}
    for number, (asks, approves) in enumerate((("carol", "dave"), ("dave", "alice"), ("carol", "bob"))):
        asked, same_person = house.ask_raise(asks), f"{asks} {number}"
        fresh.make_key(same_person, "admin", by=asks)
        assert "two people" in fresh.approve(asked, by=same_person, status=403)["detail"]
        fresh.approve(asked, by=approves)
        fresh.send(f"accounts/{house.account}/lower-limit", lower, scope=asks)
    assert "count as one" in fresh.approve(house.ask_raise("carol"), by="alice", status=403)["detail"]


def test_with_an_admin_go_the_owners_named_alone_and_what_they_made_and_nobody_else(fresh, house):
    grace = fresh.approve(fresh.admit("grace", by="alice")["request"]["id"], by="bob")["admin_id"]
    house.own("carol", by="grace")
    house.own("dave", by="carol", approved_by="bob")
    for who in ("carol", "dave"):
        fresh.make_key(f"reader of {who}", "read", by=who)
    assert fresh.approve(house.ask_removal(grace, by="alice")["id"], by="bob")["keys_revoked"] == 3
    assert fresh.enters("grace", "carol", "reader of carol") == [False] * 3
    assert fresh.enters("dave", "reader of dave", "bob") == [True] * 3
    admins = fresh.read("admins", scope="bob")["items"]
    assert [admin["name"] for admin in admins if admin["removed_at"] is not None] == ["grace", "carol"]


def test_a_stolen_key_takes_the_owner_whom_it_named_with_it_and_another_one_can_be_named(fresh, house):
    stolen = fresh.make_key("thief", "admin", by="alice")
    house.own("puppet", by="thief")
    assert fresh.enters("puppet") == [True]
    revoked = fresh.send(f"keys/{stolen['id']}/revoke", scope="alice")
    assert (revoked["others_revoked"], fresh.enters("puppet")) == (1, [False])
    house.own("carol", by="alice")
    assert fresh.enters("carol") == [True]


def test_two_owners_remove_a_third(fresh, house):
    house.own("carol", by="alice")
    dave = house.own("dave", by="carol", approved_by="bob")
    asked = house.ask_removal(dave, by="carol")
    assert fresh.approve(asked["id"], by="dave")["state"] == "approved"
    assert fresh.enters("dave") == [False]


def test_the_page_of_admins_shows_an_owner_the_own_project(fresh, house):
    house.own("carol", by="alice")
    shown = fresh.browser(fresh.tokens["carol"]).get("/admins")
    assert (shown.status_code, "carol" in shown.text, "bob" in shown.text) == (200, True, False)
    assert "Owner of heart" in fresh.browser(fresh.tokens["alice"]).get("/admins").text
