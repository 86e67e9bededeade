"""What the provider says of people while they work here: other groups, that they have left, and nothing at all."""

from datetime import timedelta
from typing import Any

import pytest
from authlib.integrations.base_client import OAuthError

from service.api.deps import COOKIE
from service.db.access_tables import Admin, ApiKey, Person
from service.identity.auth import form_token
from service.identity.provider import ProviderUnavailable
from tests.service.sign_on.conftest import ANA, BEN, EVE, House, form_token_of, opened
from tests.together import at_once, wait_until

MINUTE = 60


def opens(program: Any) -> bool:
    """Whether a program's key is good for anything: what it may not do is refused otherwise."""
    status = program.get("/v1/recipes").status_code
    assert status in (200, 401, 403)
    return status != 401


def test_another_group_ends_sessions_and_keys_within_a_minute(house):
    browser = house.sign_in("ana")
    program = house.program(house.key_of(browser, "train"))
    others = house.program(program_key(house, house.program(house.key_of(browser))))
    assert [opens(each) for each in (program, others)] == [True, True]
    house.provider.people(ana=ANA | {"groups": ["heart-lab"]}, ben=BEN)
    assert house.confirm(MINUTE / 2) == 1
    assert browser.get("/you").status_code == 303
    assert [opens(each) for each in (program, others)] == [False, False]
    browser = house.sign_in("ana")  # as an analyst now
    refused = browser.post(
        "/you/keys", data={"token": form_token_of(browser), "name": "k", "scope": "data", "days": "7"}
    )
    assert (refused.status_code, "data" in refused.text) == (403, True)
    assert opens(house.program(house.key_of(browser)))


def program_key(house: House, owner: Any) -> str:
    made = owner.post("/v1/keys", json={"name": "handed on", "role": "analyst"})
    assert made.status_code == 201, made.text
    token: str = made.json()["token"]
    return token


def test_whoever_leaves_loses_sessions_and_keys_within_a_minute_and_for_good_after_a_week(house):
    browser = house.sign_in("ana")
    mine = house.program(house.key_of(browser))
    handed_on = house.program(program_key(house, mine))
    house.provider.people(ben=BEN)
    assert house.confirm(MINUTE / 2) == 1
    assert browser.get("/you").status_code == 303
    for program in (mine, handed_on):
        refused = program.get("/v1/accounts")
        assert refused.status_code == 401
        assert "no longer vouches for Ana Silva" in refused.json()["detail"]
    house.confirm(8 * 24 * 60 * MINUTE)
    (person,) = house.rows(Person)
    assert house.rows(ApiKey, ApiKey.person_id == person.id, ApiKey.revoked_at.is_(None)) == []
    (owner,) = house.rows(Admin, Admin.person_id == person.id)
    assert owner.removed_at is not None


def test_whoever_signs_in_again_finds_their_keys_as_they_were(house):
    browser = house.sign_in("ana")
    program = house.program(house.key_of(browser))
    house.provider.people(ben=BEN)
    house.confirm(MINUTE / 2)
    assert not opens(program)
    house.provider.people(ana=ANA, ben=BEN)
    assert house.confirm(MINUTE) == 0  # nobody may ask for her, before she signs in
    house.sign_in("ana")
    assert opens(program)
    assert browser.get("/you").status_code == 303  # sessions from before stay ended


def test_without_an_answer_sessions_go_on_for_a_minute_and_keys_for_the_grace(house):
    browser = house.sign_in("ana")
    program = house.program(house.key_of(browser))
    house.provider.stop()
    try:
        assert house.confirm(MINUTE - 10) == 0
        assert browser.get("/you").status_code == 200
        assert house.confirm(11) == 0
        page = browser.get("/you")
        assert page.status_code == 401
        assert "The sign-in provider does not answer" in page.text
        assert "last vouched for Ana Silva" in page.text
        assert opens(program)
        house.confirm(14 * MINUTE)
        refused = program.get("/v1/accounts")
        assert refused.status_code == 401
        assert "a key stays valid without a confirmation until" in refused.json()["detail"]
        assert house.admin.get("/v1/accounts").status_code == 200  # the installation's own admins get in
        assert house.admin.get("/v1/admins").status_code == 200
        house.app.state.service.provider._client = None
        new = house.browser().get("/login/provider")
        assert (new.status_code, "does not answer" in new.text) == (503, True)
    finally:
        house.provider.start()


def test_sessions_and_keys_open_again_when_it_answers(house):
    browser = house.sign_in("ana")
    program = house.program(house.key_of(browser))

    def away(*_: Any) -> None:
        raise ProviderUnavailable

    assert house.confirm(20 * MINUTE, ask=away) == 0
    assert [browser.get("/you").status_code, opens(program)] == [401, False]
    assert house.confirm(MINUTE) == 1
    assert [browser.get("/you").status_code, opens(program)] == [200, True]


def test_the_service_asks_by_itself(running, sqlite_url, tmp_path):
    running.people(ana=ANA)
    with opened(running, sqlite_url, tmp_path / "data", asks_by_itself=True, oidc_confirm_seconds=1) as house:
        browser = house.sign_in("ana")
        running.people()
        wait_until(lambda: browser.get("/you").status_code == 303, "the session went on")


def test_several_processes_ask_about_each_person_once(house):
    house.sign_in("ana")
    asked: list[str] = []

    def within(confirm: Any, subject: str, sealed: str) -> Any:
        asked.append(subject)
        assert house.confirm() == 0  # another process, while the first one waits for its answer
        return confirm(subject, sealed)

    assert house.confirm(MINUTE / 2, ask=within) == 1
    assert asked == ["ana"]


@pytest.mark.parametrize("answered", [True, False])
def test_an_answer_about_one_that_makes_no_sense_keeps_nobody_from_being_asked_about(house, monkeypatch, answered):
    """Where there is no answer at all, on the other hand, nobody else is asked about in that round."""
    monkeypatch.setattr("service.identity.people.ASKED_AT_ONCE_MAX", 1)
    for login in ("ana", "ben", "eve"):
        house.sign_in(login)
    asked: list[str] = []

    def about(confirm: Any, subject: str, sealed: str) -> Any:
        asked.append(subject)
        if subject == "ana":  # who was confirmed the longest ago
            raise ProviderUnavailable(answered=answered)
        return confirm(subject, sealed)

    assert house.confirm(MINUTE / 2, ask=about) == (2 if answered else 0)
    assert asked == (["ana", "ben", "eve"] if answered else ["ana"])
    assert house.confirm(1) == (1 if answered else 3)  # she is asked about again at once


@pytest.mark.parametrize(("said", "gone"), [("interaction_required", True), ("invalid_client", False)])
def test_only_what_is_about_the_person_ends_what_is_theirs(house, monkeypatch, said, gone):
    browser = house.sign_in("ana")

    async def refuse(*_args: Any, **_more: Any) -> None:
        raise OAuthError(said)

    with monkeypatch.context() as patch:
        patch.setattr("service.identity.provider.StarletteOAuth2App.fetch_access_token", refuse)
        assert house.confirm(MINUTE / 2) == gone
    assert browser.get("/you").status_code == (303 if gone else 200)
    assert house.confirm(1) == (not gone)


def test_nobody_without_session_and_keys_is_asked_about(house):
    browser = house.sign_in("eve")
    browser.post("/logout", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert house.confirm(MINUTE) == 0
    assert house.sign_in("eve").get("/you").status_code == 200


def test_two_people_decide_and_one_person_with_two_keys_does_not(house):
    terms = {"name": "hearts", "owner": "o", "epsilon": 2, "delta": 1e-6, "unit": "record", "adjacency": "add_remove"}
    opened = house.admin.post("/v1/accounts", json=terms | {"project_id": house.heart})
    account = opened.raise_for_status().json()["id"]
    ana, ben, second = house.caller("ana"), house.caller("ben"), house.caller("ana", name="second")
    body = {"epsilon": 4.0, "reason": "a second study"}
    refused = house.admin.post(f"/v1/accounts/{account}/raise-limit", json=body)
    assert (refused.status_code, "The sign-in provider must know both people" in refused.text) == (403, True)
    asked = ana.post(f"/v1/accounts/{account}/raise-limit", json=body)
    assert asked.status_code == 201, asked.text
    approve = f"/v1/decisions/{asked.json()['id']}/approve"
    for same in (ana, second):
        answer = same.post(approve)
        assert (answer.status_code, "Two people must decide" in answer.text) == (403, True)
    assert house.admin.post(approve).status_code == 403
    done = ben.post(approve)
    assert (done.status_code, done.json()["state"]) == (200, "approved")


def test_owners_by_a_group_are_removed_at_the_provider_and_count_for_no_local_admin(house):
    house.provider.people(ana=ANA | {"groups": ["platform"]}, ben=BEN | {"groups": ["platform"]})
    ana = house.caller("ana")
    house.sign_in("ben")
    people = {each["name"]: each for each in ana.get("/v1/admins").json()["items"]}
    assert people["Ben Okafor"]["admission"] == "provider"
    refused = ana.post(f"/v1/admins/{people['Ben Okafor']['id']}/remove", json={"reason": "left"})
    assert (refused.status_code, "at the sign-in provider" in refused.text) == (409, True)
    last = ana.post(f"/v1/admins/{people['first admin']['id']}/remove", json={"reason": "left"})
    assert (last.status_code, "fewer than 2" in last.text) == (409, True)


def test_owners_see_the_people_of_their_project_and_admins_of_the_installation_all(house):
    house.provider.people(ana=ANA, eve=EVE, gil={"name": "Gil", "groups": ["guests"]}, kim={"groups": ["platform"]})
    ana = house.sign_in("ana")
    for login in ("eve", "gil"):
        house.sign_in(login)
    ids = {person.subject: person.id for person in house.rows(Person)}
    page = ana.get("/settings/members").text
    assert [ids[who] in page for who in ("ana", "eve", "gil")] == [True, True, False]
    assert "Gil" not in page
    page = house.sign_in("kim").get("/settings/members").text
    assert [ids[who] in page for who in ("ana", "eve", "gil")] == [True, True, True]
    listed = house.program(house.key_of(ana)).get("/v1/people").json()["items"]
    assert {(row["name"], row["project_id"]) for row in listed} == {
        (ANA["name"], house.heart),
        (EVE["name"], house.heart),
    }
    assert {row["id"] for row in house.admin.get("/v1/people").json()["items"]} >= set(ids.values())
    assert house.caller("eve").get("/v1/people").status_code == 403


def test_keys_of_ones_own_are_rotated_with_an_overlap_and_revoked(house):
    browser = house.sign_in("eve")
    old = house.program(house.key_of(browser, "read"))
    (key,) = house.rows(ApiKey, ApiKey.name == "nightly")
    assert key.expires_at is not None
    assert key.project_id == house.heart
    form = {"token": form_token_of(browser)}
    rotated = browser.post(f"/you/keys/{key.id}/rotate", data=form | {"overlap": "1", "days": "7"})
    assert (rotated.status_code, "obs_" in rotated.text) == (201, True)
    assert opens(old)
    house.confirm(50 * MINUTE)
    browser.get("/you")
    house.confirm(11 * MINUTE)
    assert not opens(old)
    strangers = house.sign_in("ana")
    owner = house.program(house.key_of(strangers, name="the owner's"))
    answer = owner.post(f"/v1/keys/{key.created_by}/rotate", json={"overlap_seconds": 0})
    assert (answer.status_code, "represents a role" in answer.text) == (409, True)
    for act in ("rotate", "revoke"):
        theirs = {"token": form_token_of(strangers), "overlap": "0", "days": "7"}
        assert strangers.post(f"/you/keys/{key.id}/{act}", data=theirs).status_code == 404
    (new,) = house.rows(ApiKey, ApiKey.name == "nightly", ApiKey.id != key.id)
    assert new.scopes == ["read"]
    assert browser.post(f"/you/keys/{new.id}/revoke", data=form).status_code == 303
    (revoked,) = house.rows(ApiKey, ApiKey.id == new.id)
    assert revoked.revoked_at is not None


def test_forms_of_the_page_you_come_from_it_and_from_this_session_alone(house):
    browser, other = house.sign_in("eve"), house.sign_in("eve")
    house.key_of(browser)
    (key,) = house.rows(ApiKey, ApiKey.name == "nightly")
    fields = {"role": str(key.created_by), "name": "k", "scope": "all", "days": "7", "overlap": "0"}

    def keys() -> set[tuple[str, bool, object]]:
        return {(row.id, row.revoked_at is None, row.expires_at) for row in house.rows(ApiKey)}

    before, own, cookie = keys(), form_token_of(browser), browser.cookies[COOKIE]
    for act in ("project", "keys", f"keys/{key.id}/rotate", f"keys/{key.id}/revoke"):
        nobody = house.browser().post(f"/you/{act}", data=fields | {"token": own})
        assert (nobody.status_code, nobody.headers["location"]) == (303, f"/login?next=/you/{act}")
        for token in ("", "0" * 64, form_token_of(other)):
            assert browser.post(f"/you/{act}", data=fields | {"token": token}).status_code == 403, act
        foreign = {"Origin": "https://elsewhere.example"}
        assert browser.post(f"/you/{act}", data=fields | {"token": own}, headers=foreign).status_code == 403, act
        assert browser.post(f"/you/{act}", data={"token": own}).status_code in (303, 404, 422), act
        if not act.endswith("revoke"):
            assert keys() == before, act
    assert keys() != before  # the control: the last one needs nothing else
    assert browser.cookies[COOKIE] == cookie


def test_a_key_that_an_admin_made_has_no_person_and_no_page_of_keys(house):
    body = {"name": "plain", "role": "analyst", "project_id": house.heart}
    made = house.admin.post("/v1/keys", json=body).json()
    browser = house.browser()
    assert browser.post("/login", data={"key": made["token"]}).status_code == 303
    page = browser.get("/you")
    assert (page.status_code, "heart" in page.text, "Create a key" in page.text) == (200, True, False)
    refused = browser.post(
        "/you/keys", data={"token": form_token(browser.cookies[COOKIE]), "name": "k", "scope": "all", "days": "7"}
    )
    assert refused.status_code == 403
    assert opens(house.program(made["token"]))


@pytest.mark.services
def test_on_postgresql_a_person_comes_changes_and_leaves(running, postgres_url, tmp_path):
    running.people(ana=ANA, ben=BEN)
    with opened(running, postgres_url, tmp_path / "data") as house:
        browser, program = house.sign_in("ana"), house.caller("ben")
        house.clock.ahead += timedelta(seconds=30)
        answered = at_once(*[house.confirm] * 4)  # as many processes
        assert sum(answered) == 2, answered
        assert browser.get("/you").status_code == 200
        running.people(ana=ANA | {"groups": ["heart-lab"]})
        assert house.confirm(30) == 2
        assert browser.get("/you").status_code == 303
        assert not opens(program)
        assert house.sign_in("ana").get("/you").status_code == 200
