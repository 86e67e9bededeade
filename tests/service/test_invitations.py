"""Invitations: what a link gives, once, and to whom; and what ends it."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text

from obscura.wire.ids import introduce
from obscura.wire.words import Admission
from service.db.access_tables import DEFAULT_PROJECT, Admin, ApiKey, Invitation
from service.db.session import SessionFactory, transaction, with_info
from service.errors import Conflict, Forbidden, InvalidInput, NotFound
from service.identity import admins, auth, invitations, projects
from service.identity.access import PEOPLE_DECIDE, ROLES, Principal, on_behalf
from service.identity.auth import authenticate, principal_of
from tests.service import steps
from tests.service.steps import Steps
from tests.together import at_once

QUARTER = timedelta(days=90)


class House(Steps):
    """An installation with one admin, whose key is `first`."""

    def __init__(self, factory: SessionFactory, now: datetime) -> None:
        self.factory, self.now = factory, now
        self.first = principal_of(self.do(steps.make_key, name="alice", scopes=("admin",))[0])

    def invite(
        self, role: str, *, by: Principal | None = None, project_id: str | None = None
    ) -> tuple[Invitation, str]:
        by = by or self.first
        with transaction(on_behalf(self.factory, lambda: by)) as session:
            return invitations.invite(session, by, role=role, project_id=project_id, now=self.now)

    def accept(self, secret: str, name: str = "Ana", introduction: str = "", **facts: Any) -> tuple[Invitation, str]:
        facts = {"valid": QUARTER, "now": self.now, "introduction": introduction} | facts
        return self.do(invitations.accept, secret, name=name, **facts)

    def owner(self, project_id: str) -> Principal:
        facts = {"role": "owner", "project_id": project_id, "by": self.first}
        return principal_of(self.do(auth.create_key, name="owner", now=self.now, **facts)[0])


@pytest.fixture
def house(factory: SessionFactory, now: datetime) -> House:
    return House(factory, now)


@pytest.mark.parametrize("role", ["steward", "analyst", "auditor", "viewer"])
def test_a_member_receives_a_key_of_the_role_created_by_the_inviter(house, role):
    invitation, secret = house.invite(role)
    accepted, token = house.accept(secret)
    key = house.row(ApiKey, accepted.key_id)
    who = house.read(authenticate, token, now=house.now)
    assert (who.id, who.scopes, who.project_id) == (key.id, frozenset(ROLES[role]), DEFAULT_PROJECT)
    assert (key.name, key.created_by, key.expires_at) == ("Ana", house.first.id, house.now + QUARTER)
    assert accepted.id == invitation.id
    stored = house.read(lambda session: repr(session.execute(text("SELECT * FROM invitations")).all()))
    assert not [part for part in (secret, token, token[25:]) if part in stored]


def test_a_link_works_once_even_at_the_same_moment(house):
    _, secret = house.invite("analyst")
    answers = at_once(*(partial(house.accept, secret, f"Ana {number}") for number in range(4)))
    assert sum(isinstance(answer, tuple) for answer in answers) == 1, answers
    assert sum(isinstance(answer, NotFound) for answer in answers) == 3, answers
    assert len(house.rows(ApiKey, ApiKey.created_by == house.first.id)) == 1


def test_a_link_that_is_over_or_unknown_answers_alike(house):
    opened, revoked, orphaned = (house.invite("analyst") for _ in range(3))
    house.do(invitations.revoke, revoked[0].id, now=house.now)
    house.do(invitations.revoke, revoked[0].id, now=house.now)  # idempotent
    said = set()
    for secret, later in ((revoked[1], 0), ("unknown", 0), ("", 0), (opened[1], 7)):
        with pytest.raises(NotFound) as refused:
            house.accept(secret, now=house.now + timedelta(days=later))
        said.add(str(refused.value))
    house.do(auth.revoke, ApiKey.id == house.first.id, now=house.now)
    with pytest.raises(NotFound) as refused:
        house.accept(orphaned[1])
    assert said == {str(refused.value)}
    assert house.rows(ApiKey, ApiKey.created_by == house.first.id) == []


def test_a_members_key_ends_with_the_inviters(house):
    house.change(ApiKey, house.first.id, expires_at=house.now + timedelta(days=30))
    _, token = house.accept(house.invite("analyst")[1])
    key = house.read(authenticate, token, now=house.now)
    assert house.row(ApiKey, key.id).expires_at == house.now + timedelta(days=30)
    house.do(auth.revoke, ApiKey.id == house.first.id, now=house.now)
    assert house.row(ApiKey, key.id).revoked_at is not None


def test_a_rotated_key_keeps_its_unused_links(house):
    _, secret = house.invite("analyst")
    facts = {"by": house.first, "overlap_seconds": 0, "expires_at": None}
    new, _ = house.do(auth.rotate_key, key_id=house.first.id, **facts)
    house.now += timedelta(days=1)
    assert house.row(ApiKey, house.accept(secret)[0].key_id).created_by == new.id


@pytest.mark.parametrize(("role", "project"), [("admin", False), ("owner", True)])
def test_a_future_admin_receives_nothing_until_an_admin_admits_them(house, role, project):
    project_id = house.do(projects.create, name="heart").id if project else None
    token, introduction = introduce()
    _, secret = house.invite(role, project_id=project_id)
    for wrong in ("", token, introduction[:-1]):
        with pytest.raises(InvalidInput):
            house.accept(secret, "Bob", wrong)
    with pytest.raises(Conflict):
        house.accept(secret, "alice", f"{house.first.id}:{'0' * 64}")
    invitation, given = house.accept(secret, "Bob", introduction)  # the refused attempts have not used the link
    assert given == ""
    assert len(house.rows(ApiKey)) == len(house.rows(Admin)) == 1
    (waiting,) = house.read(invitations.awaiting_admission, house.now)
    assert (waiting.id, f"{waiting.key_id}:{waiting.key_hash}") == (invitation.id, introduction)
    terms = {"name": "Bob", "introduction": introduction, "reason": "why", "requested_with": house.first.id}
    admitted = house.do(admins.request_admission, **terms, project_id=project_id)
    assert isinstance(admitted, Admin)
    assert (admitted.admission, admitted.project_id) == (Admission.ALONE, project_id)
    assert house.read(authenticate, token, now=house.now).admin_id == admitted.id
    assert house.read(invitations.awaiting_admission, house.now) == []
    third_token, third = introduce()
    house.accept(house.invite("admin")[1], "Carol", third)
    asked = house.do(admins.request_admission, **terms | {"name": "Carol", "introduction": third})
    if role == "admin":
        assert not isinstance(asked, Admin), "from the third on it takes two"
        assert house.read(invitations.awaiting_admission, house.now) == []
        assert third_token.split("_")[1] not in {key.id[4:] for key in house.rows(ApiKey)}


def test_nobody_invites_to_more_than_they_may(house):
    heart, lung = (house.do(projects.create, name=name).id for name in ("heart", "lung"))
    owner = house.owner(heart)
    assert house.invite("owner", by=owner)[0].project_id == heart
    with pytest.raises(Forbidden):
        house.invite("admin", by=owner)
    with pytest.raises(NotFound):
        house.invite("analyst", by=owner, project_id=lung)
    with pytest.raises(InvalidInput, match="several projects"):
        house.invite("analyst")
    with pytest.raises(InvalidInput):
        house.invite("admin", project_id=heart)
    theirs = house.invite("analyst", project_id=lung)[0]
    with transaction(on_behalf(house.factory, lambda: owner)) as session, pytest.raises(NotFound):
        invitations.revoke(session, theirs.id, now=house.now)


def test_with_a_sign_in_provider_roles_come_from_its_groups(house):
    _, secret = house.invite("analyst")
    house.factory = with_info(house.factory, **{PEOPLE_DECIDE: True})
    with pytest.raises(Conflict, match="provider"):
        house.invite("analyst")
    with pytest.raises(NotFound):
        house.accept(secret)


def test_an_accepted_link_is_ended_by_its_key_and_unused_links_are_few(house, monkeypatch):
    invitation, secret = house.invite("analyst")
    house.accept(secret)
    with pytest.raises(Conflict, match="Revoke the person's key"):
        house.do(invitations.revoke, invitation.id, now=house.now)
    token, introduction = introduce()
    asked, secret = house.invite("admin")
    house.accept(secret, "Bob", introduction)
    house.do(invitations.revoke, asked.id, now=house.now)
    assert house.read(invitations.awaiting_admission, house.now) == [], f"rejected {token[:8]}"
    monkeypatch.setattr(invitations, "OPEN_MAX", 2)
    house.invite("viewer")
    house.invite("viewer")
    with pytest.raises(Conflict, match="unused invitations"):
        house.invite("viewer")
    states = {invitations.state_of(row, house.now + timedelta(days=8)) for row in house.read(all_invitations)}
    assert states == {"accepted", "revoked", "expired"}


def all_invitations(session: Any) -> list[Invitation]:
    return list(session.scalars(select(Invitation)))
