"""Admins, owners of projects, quotas and webhooks over HTTP: who decides what, with whom, and where."""

import base64
import json
from functools import partial

import pytest

from obscura.client import AuthError, Client, NotFoundError
from obscura.wire.words import JobState
from service.identity.admins import introduce
from service.webhooks.delivering import WEBHOOKS_MAX
from tests.service.api.conftest import OwnSettings, Served, problem, serving
from tests.service.webhooks.receiver import receiving


def test_a_person_is_admitted_and_removed_by_two_others(fresh):
    url, token = fresh.url, fresh.tokens["admin"]
    tokens, introductions = zip(*(introduce() for _ in range(2)), strict=True)
    with Client(url, token) as first, Client(url, tokens[0]) as bob, Client(url, tokens[1]) as carol:
        with pytest.raises(AuthError):
            bob.admins.list()
        first.admins.request_admission(name="bob", introduction=introductions[0], reason="the second")
        asked = first.admins.request_admission(name="carol", introduction=introductions[1], reason="the third").request
        assert asked.introduction == introductions[1]
        done = bob.decisions.approve(asked.id)
        assert len(carol.admins.list()) == 3
        removal = first.admins.request_removal(str(done.admin_id), reason="left")
        assert [row.id for row in bob.decisions.list()] == [removal.id, asked.id]
        assert bob.decisions.approve(removal.id).state == "approved"
        with pytest.raises(AuthError):
            carol.admins.list()


def test_requests_about_admins_are_for_admins_and_raises_for_all_readers(fresh):
    account_id = fresh.account()["id"]
    reader = fresh.make_key("reader", "read")["token"]
    fresh.admit("bob")
    asked = fresh.admit("carol")["request"]
    with Client(fresh.url, fresh.tokens["admin"]) as first, Client(fresh.url, reader) as anybody:
        raised = first.accounts.get(account_id).request_raise(epsilon=4.0, reason="more")
        assert [row.id for row in first.decisions.list()] == [raised.id, asked["id"]]
        assert [row.id for row in first.decisions.list(action="admit")] == [asked["id"]]
        assert list(anybody.decisions.list()) == [raised] == [anybody.decisions.get(raised.id)]
        assert list(anybody.decisions.list(action="admit")) == []
        with pytest.raises(NotFoundError):
            anybody.decisions.get(asked["id"])


def test_lists_show_neither_token_nor_hash(fresh):
    fresh.admit("bob")
    answer = fresh.client().post("/v1/keys", json={"name": "analyst", "scopes": ["read"]})
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    made = answer.json()
    for path in ("admins", "keys"):
        page = fresh.client().get(f"/v1/{path}").text
        assert not [secret for secret in (made["token"], fresh.tokens["admin"], "hash", "token") if secret in page]


class House:
    """An installation with two admins, alice and bob, and a project with an account."""

    def __init__(self, served: Served) -> None:
        self.served = served
        served.tokens["alice"] = served.tokens["admin"]
        served.admit("bob", by="alice")
        self.project = served.project("heart")
        self.account = served.account(project_id=self.project, epsilon=1.0)["id"]

    def own(self, name: str, *, by: str, approved_by: str | None = None) -> str:
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
        assert "Two people" in fresh.approve(asked, by=same_person, status=403)["detail"]
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
    shown = fresh.browser(fresh.tokens["carol"]).get("/settings/members")
    assert (shown.status_code, "carol" in shown.text, "bob" in shown.text) == (200, True, False)
    assert "Owner of heart" in fresh.browser(fresh.tokens["alice"]).get("/settings/members").text


def test_an_admin_of_the_installation_sets_quotas_and_members_see_them(served):
    heart = served.project()
    assert served.send(f"projects/{heart}/quota", {"jobs_max": 2})["jobs_max"] == 2
    assert served.send(f"projects/{heart}/quota", {"jobs_max": None})["jobs_max"] is None
    served.send(f"projects/{heart}/quota", {"jobs_max": 3})
    account = served.account(project_id=heart, name="hearts")
    owner = served.member(heart, "owner")
    owner.dataset(visibility="private", account_id=account["id"])
    seen = served.member(heart, "analyst").read(f"projects/{heart}")
    assert (seen["jobs_max"], seen["jobs_unfinished"]) == (3, 0)
    assert {name for name in seen if "bytes" in name or "hours" in name} == set()
    owner.send(f"projects/{heart}/quota", {"jobs_max": 9}, status=403)
    for wrong in ({}, {"jobs": 9}, {"jobs_max": 9, "disk_bytes_max": 9}, {"jobs_max": -1}):
        served.send(f"projects/{heart}/quota", wrong, status=422)
    served.send(f"projects/prj_{'a' * 20}/quota", {"jobs_max": 9}, status=404)


def test_a_full_quota_of_jobs_refuses_over_http_and_an_evaluation_that_a_training_brings_comes(served):
    heart = served.project()
    account = served.account(project_id=heart, name="hearts")
    owner = served.member(heart, "owner")
    dataset, public = owner.ready_dataset(account["id"])["id"], owner.public_like_a_training()
    served.send(f"projects/{heart}/quota", {"jobs_max": 1})
    asked = owner.train(dataset, evaluation_dataset_id=public, epsilon=0.5)
    assert asked.status_code == 202, asked.text
    problem(owner.train(dataset, epsilon=0.5), 409, "quota_exceeded")
    served.send(f"projects/{heart}/quota", {"jobs_max": 0})
    job_id = asked.json()["id"]
    served.publish(job_id, served.claim(job_id))
    waiting = [job for job in owner.everything("jobs") if job["state"] == JobState.QUEUED]
    assert [job["kind"] for job in waiting] == ["evaluate"]


def ran(served: Served, *words: str) -> tuple[int, str]:
    done = served.obscura(*words)
    return done.exit_code, done.stdout


def test_the_command_line_sets_and_removes_a_quota(served):
    heart, run = served.project(), partial(ran, served, "projects")
    code, told = run("quota", "heart", "--jobs", "4", "--json")
    assert code == 0, told
    assert json.loads(told)["jobs_max"] == 4
    assert run("quota", heart, "--jobs", "none")[0] == 0
    assert json.loads(run("show", "heart", "--json")[1])["jobs_max"] is None
    for wrong in (("--disk", "1GB"), ("--jobs", "-1"), ("--jobs", "some"), ()):
        assert run("quota", "heart", *wrong)[0] == 2


def test_the_page_shows_what_is_taken_and_sets_quotas(served):
    heart = served.project()
    owner = served.member(heart, "owner")
    admin = served.browser(served.tokens["admin"])
    owner.send("webhooks", {"url": "https://hooks.example.org/of-heart"}, status=201)
    shown = admin.get("/settings/projects").text
    assert "heart" in shown
    assert f'data-call="POST /v1/projects/{heart}/quota"' in shown
    served.send(f"projects/{heart}/quota", {"jobs_max": 7})
    seen = served.browser(owner.tokens["admin"]).get("/settings/projects").text
    assert "of 7" in seen
    assert "Set quota" not in seen
    assert "default" not in seen
    hooks = served.browser(owner.tokens["admin"]).get("/settings/webhooks").text
    assert "of-heart" in hooks
    assert "whsec_" not in hooks
    reader = served.member(heart, "analyst")
    assert served.browser(reader.tokens["admin"]).get("/settings/webhooks").status_code == 403


# --- webhooks ---------------------------------------------------------------------------------------------------------


URL = "https://hooks.example.org/obscura"


def test_a_secret_is_shown_once_and_never_again(served):
    made = served.send("webhooks", {"url": URL}, status=201)
    assert made["secret"].startswith("whsec_")
    assert len(base64.b64decode(made["secret"].removeprefix("whsec_"), validate=True)) == 32
    (listed,) = served.read("webhooks", scope="admin")["items"]
    assert listed == {name: value for name, value in made.items() if name != "secret"}
    assert (listed["state"], listed["project_id"]) == ("active", None)
    assert served.send("webhooks", {"url": URL}, status=201)["secret"] != made["secret"]
    assert served.send("webhooks", {"url": "https://127.0.0.1/"}, status=422)["code"] == "address_refused"
    assert served.ask("DELETE", f"webhooks/{made['id']}")["id"] == made["id"]
    assert made["id"] not in [each["id"] for each in served.read("webhooks", scope="admin")["items"]]


def test_a_name_that_leads_inside_is_refused_when_it_is_asked(served):
    made = served.send("webhooks", {"url": "https://localhost:1/"}, status=201)
    tried = served.send(f"webhooks/{made['id']}/test")
    assert (tried["delivered"], tried["status"]) == (False, None)
    assert "not public" in tried["reason"]


def test_each_project_has_a_bounded_number_that_others_do_not_see(served):
    heart, lung = (served.member(served.project(name), "owner") for name in ("heart", "lung"))
    made = [heart.send("webhooks", {"url": URL}, status=201)["id"] for _ in range(WEBHOOKS_MAX)]
    assert "Remove one first" in heart.send("webhooks", {"url": URL}, status=409)["detail"]
    assert {each["id"] for each in heart.everything("webhooks")} == {*made}
    assert lung.read("webhooks")["items"] == []
    lung.send("webhooks", {"url": URL}, status=201)


def test_the_command_line_and_the_library_do_it_all(own_settings: OwnSettings):
    with serving(own_settings(webhooks_private=True), "admin") as served, receiving() as receiver:
        run = partial(ran, served, "webhooks")
        code, told = run("create", receiver.url, "--json")
        assert code == 0
        made = json.loads(told)
        assert run("test", made["id"])[0] == 0
        assert json.loads(receiver.bodies[0])["type"] == "test"
        receiver.status = 500
        assert run("test", made["id"])[0] == 1
        with Client(served.url, served.tokens["admin"]) as client:
            assert [each.id for each in client.webhooks.list()] == [made["id"]]
            second = client.webhooks.create(receiver.url)
            client.webhooks.delete(second.id)
        assert run("remove", made["id"])[0] == 0
        assert json.loads(run("list", "--json")[1]) == []


def test_the_command_line_invites_and_revokes(served):
    run = partial(ran, served, "people")
    code, told = run("invite", "--role", "analyst", "--json")
    made = json.loads(told)
    assert (code, made["role"], made["state"]) == (0, "analyst", "open")
    assert made["link"].startswith(f"{served.url}/invitations/")
    with Client(served.url, served.tokens["admin"]) as client:
        assert client.invitations.list()[0].id == made["id"]
        second = client.invitations.create(role="viewer")
        assert client.invitations.revoke(second.id).state == "revoked"
    assert json.loads(run("uninvite", made["id"], "--json")[1])["state"] == "revoked"
    listed = run("invitations", "--json")[1]
    assert made["id"] in listed
    assert made["link"] not in listed
