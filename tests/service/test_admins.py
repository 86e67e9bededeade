"""Admins are people: who admits and removes them, and that nobody becomes two alone."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import IntegrityError

from obscura.wire.words import Admission, DecisionAction, DecisionState
from service.db.access_tables import Admin, ApiKey, Decision, Person
from service.db.base import new_id
from service.db.session import SessionFactory, transaction
from service.errors import Conflict, Forbidden, InvalidInput, NotFound, Unauthorized
from service.identity import admins, auth, decisions
from service.identity.access import Principal, Scope
from tests.service.steps import Steps
from tests.together import at_once

LATER = timedelta(hours=1)


class Council(Steps):
    def __init__(self, factory: SessionFactory, now: datetime, folder: Path) -> None:
        self.factory, self.now, self.tokens = factory, now, {}
        with transaction(factory) as session:
            assert admins.bootstrap_admin(session, path=folder / "admin.key", now=now)
            self.first = session.scalars(select(Admin.id)).one()
        self.tokens[self.first] = (folder / "admin.key").read_text("ascii").strip()

    def ask(self, name: str, *, by: str | None, **changes: str) -> Admin | Decision:
        self.tokens[name], introduction = admins.introduce()
        facts = {"name": name, "introduction": introduction, "reason": "needed", "requested_with": self.key_of(by)}
        return self.do(admins.request_admission, **facts | changes)

    def remove(self, admin_id: str, *, by: str) -> Decision:
        return self.do(admins.request_removal, admin_id=admin_id, reason="left", requested_with=self.key_of(by))

    def approve(self, request: Any, *, by: str | None, after: timedelta = LATER, approved: bool = True) -> Decision:
        return self.decide(request, self.key_of(by), self.now + after, approved=approved)

    def decide(self, request: Any, key_id: str, now: datetime, **more: Any) -> Decision:
        facts = {"now": now, "effects": admins.EFFECTS, **more}
        return self.do(decisions.decide, request.id, key_id, **facts)

    def decline(self, request: Any, *, by: str) -> Decision:
        return self.approve(request, by=by, approved=False)

    def key_of(self, admin_id: str | None) -> str:
        """The key of an admin, or one that nobody has."""
        key = select(ApiKey.id).where(ApiKey.admin_id == admin_id)
        return self.read(lambda session: session.scalar(key)) or "key_x"

    def caller(self, admin_id: str) -> Principal:
        return auth.principal_of(self.row(ApiKey, self.key_of(admin_id)))

    def who(self, name: str) -> Principal:
        return self.read(auth.authenticate, self.tokens[name], now=self.now)

    def second(self) -> str:
        made = self.ask("bob", by=self.first)
        assert isinstance(made, Admin)
        return made.id

    def third(self, name: str = "carol") -> str:
        bob = self.read(lambda session: session.scalars(select(Admin.id).where(Admin.name == "bob")).one())
        admitted = str(self.approve(self.ask(name, by=self.first), by=bob).admin_id)
        self.now += LATER  # what is asked for from now on, they may approve
        return admitted

    def names(self) -> list[str]:
        return sorted(admin.name for admin in self.read(admins.admins) if admin.removed_at is None)


@pytest.fixture
def council(factory: SessionFactory, now: datetime, tmp_path: Path) -> Council:
    return Council(factory, now, tmp_path)


def test_the_first_comes_from_the_machine_and_names_the_second_alone(council):
    made = council.ask("bob", by=council.first)
    assert isinstance(made, Admin)
    assert (made.admission, made.requested_by, made.approved_by) == (Admission.ALONE, council.first, None)
    who = council.who("bob")
    assert (who.admin_id, who.scopes) == (made.id, {Scope.ADMIN})
    assert council.who(council.first).admin_id == council.first


def test_from_the_third_on_it_takes_another_person(council):
    bob = council.second()
    asked = council.ask("carol", by=council.first)
    assert isinstance(asked, Decision)
    assert council.names() == ["bob", "first admin"]
    with pytest.raises(Unauthorized):
        council.who("carol")
    with pytest.raises(Forbidden, match="Two people"):
        council.approve(asked, by=council.first)
    approved = council.approve(asked, by=bob)
    assert (approved.state, approved.decided_by) == (DecisionState.APPROVED, bob)
    assert council.approve(asked, by=bob).admin_id == approved.admin_id  # again changes nothing
    assert council.who("carol").admin_id == approved.admin_id
    assert council.names() == ["bob", "carol", "first admin"]


def test_whoever_was_admitted_after_a_request_cannot_approve_it(council):
    """Whoever alone decides who comes next could otherwise ask first and admit the one who agrees after that."""
    bob, carol = council.second(), council.third()
    council.now += timedelta(days=1)
    older = [council.ask("dan", by=council.first), council.remove(carol, by=council.first)]
    eve = council.third("eve")
    for request in older:
        with pytest.raises(Forbidden, match="before you became an admin"):
            council.approve(request, by=eve)
        council.decline(request, by=eve)
    assert council.names() == ["bob", "carol", "eve", "first admin"]
    assert council.approve(council.ask("dan", by=council.first), by=bob).state is DecisionState.APPROVED


def test_one_alone_never_becomes_the_only_two(council):
    """Neither by removing the others, nor by asking as soon as nobody else is left."""
    bob = council.second()
    for target in (bob, council.first):
        with pytest.raises(Conflict, match="fewer than 2"):
            council.remove(target, by=council.first)
    carol = council.third()
    for target in (bob, carol, council.first):
        asked = council.remove(target, by=council.first)
        with pytest.raises(Forbidden, match="Two people"):
            council.approve(asked, by=council.first)
        council.decline(asked, by=council.first)
    council.do(auth.revoke, ApiKey.admin_id != council.first)  # even without the others' keys
    puppet = council.ask("puppet", by=council.first)
    assert isinstance(puppet, Decision)
    with pytest.raises(Forbidden):
        council.approve(puppet, by=council.first)
    with pytest.raises(Unauthorized):
        council.who("puppet")


def test_a_removed_admin_is_nobody_and_admits_nobody(council):
    bob, carol = council.second(), council.third()
    hers = council.ask("dan", by=carol)
    asked = council.remove(carol, by=council.first)
    council.approve(asked, by=bob)
    assert council.names() == ["bob", "first admin"]
    with pytest.raises(Unauthorized):
        council.who("carol")
    with pytest.raises(Conflict, match="removed later"):
        council.approve(hers, by=bob)
    for act in (lambda: council.ask("eve", by=carol), lambda: council.approve(hers, by=carol)):
        with pytest.raises(Forbidden):
            act()
    with pytest.raises(Conflict, match="never reused"):
        council.ask("carol", by=bob)


SINCE = ("expired", "revoked", "lapsed", "unconfirmed")


@pytest.mark.parametrize("since", SINCE)
def test_no_request_is_approved_whose_asker_could_no_longer_ask(council, open_account, since):
    bob, carol, later = council.second(), council.third(), council.now + LATER
    terms = {
        DecisionAction.RAISE: {"account_id": open_account(council.factory), "epsilon_before": 8.0, "epsilon": 9.0},
        DecisionAction.ADMIT: {"name": "dan", "key_id": new_id("key"), "key_hash": "0" * 64},
        DecisionAction.REMOVE: {"name": "carol", "admin_id": carol},
        DecisionAction.REVOKE: {"name": "carol", "admin_id": carol, "key_id": council.key_of(carol)},
        DecisionAction.SHARE: {"name": "r", "release_id": new_id("rel"), "shared_with": new_id("prj")},
        DecisionAction.ACCEPT: {"name": new_id("acc")},
    }
    assert set(terms) == set(DecisionAction)
    with transaction(council.factory) as session:
        by = council.caller(council.first)
        key = auth.create_key(session, name="k", scopes=["admin"], by=by, now=council.now)[0]
        until = later if since == "unconfirmed" else council.now + 9 * LATER
        facts = {"issuer": "https://provider", "subject": since, "name": "Ana", "keys_until": until}
        person = Person(id="per_ana", created_at=council.now, confirmed_at=council.now, **facts)
        session.add(person)
        session.flush()
        if since in ("lapsed", "unconfirmed"):
            key.person_id = person.id
        facts = {"asking": key, "reason": "needed", "now": council.now}
        asked = {action: decisions.ask(session, action, "somebody", **facts, **more) for action, more in terms.items()}
        key.expires_at = later if since == "expired" else None
        key.revoked_at = later if since == "revoked" else None
        person.lapsed_at = later if since == "lapsed" else None
    done = []
    for action, request in asked.items():
        deciding, effects = (request, council.key_of(bob), later), {action: lambda *_: done.append(1)}
        with pytest.raises(Conflict, match=r"key .* was revoked or has expired, or .* no longer vouches"):
            council.decide(*deciding, effects=effects, approved=True)
        assert council.decide(*deciding, effects=effects, approved=False).state is DecisionState.DECLINED
    assert done == []


def test_a_request_without_an_effect_here_is_not_approved(council):
    """Accepting what a restored database lacks needs its command: a page or a route has nothing that does it."""
    bob, key_id = council.second(), council.key_of(council.first)
    with transaction(council.factory) as session:
        asking, facts = session.get_one(ApiKey, key_id), {"reason": "restored", "now": council.now}
        asked = decisions.ask(session, DecisionAction.ACCEPT, "acc_x", asking=asking, name="acc_x", **facts)
    with pytest.raises(Conflict, match="obscura ledger accept"):
        council.approve(asked, by=bob)
    assert council.decline(asked, by=bob).state is DecisionState.DECLINED


def test_another_key_of_who_approved_changes_nothing(council):
    bob = council.second()
    asked = council.approve(council.ask("carol", by=council.first), by=bob)
    other = council.do(auth.create_key, name="other", scopes=["admin"], by=council.caller(bob))[0].id
    again = council.decide(asked, other, council.now + LATER, approved=True)
    assert (again.decided_with, again.decided_at) == (asked.decided_with, asked.decided_at)


def test_two_removals_at_once_leave_two(council):
    bob, carol = council.second(), council.third()
    asked = [council.remove(bob, by=council.first), council.remove(carol, by=council.first)]
    ends = at_once(lambda: council.approve(asked[0], by=carol), lambda: council.approve(asked[1], by=bob))
    assert [isinstance(end, Conflict | Forbidden) for end in ends].count(True) == 1
    assert [isinstance(end, Decision) for end in ends].count(True) == 1
    assert len(council.names()) == 2


def test_two_seconds_at_once_are_one(council):
    names = [f"second {number}" for number in range(4)]
    ends = at_once(*(lambda name=name: council.ask(name, by=council.first) for name in names))
    assert [isinstance(end, Admin) for end in ends].count(True) == 1, ends
    assert all(isinstance(end, Admin | Decision | Conflict) for end in ends), ends
    assert len(council.names()) == 2


def test_the_database_refuses_what_one_person_decided_alone(council):
    bob, first = council.second(), council.first
    asked = council.ask("carol", by=first)
    decided = {"state": DecisionState.APPROVED, "decided_by": first, "decided_at": council.now}
    columns = "(id, name, admission, requested_by, admitted_at)"
    forgeries = (
        update(Decision).where(Decision.id == asked.id).values(decided),
        update(Admin).where(Admin.id == bob).values(admission=Admission.APPROVED, approved_by=first),
        update(ApiKey).where(ApiKey.admin_id == bob).values(admin_id=None),
        text(f"INSERT INTO admins {columns} VALUES ('adm_x', 'x', 'alone', '{bob}', '2030-01-02 03:04:05')"),
    )
    for forged in forgeries:
        with pytest.raises(IntegrityError), transaction(council.factory) as session:
            session.execute(forged)


def test_requests_grow_old_and_one_waits_at_a_time(council):
    bob = council.second()
    asked = council.ask("carol", by=council.first)
    with pytest.raises(Conflict, match="is pending"):
        council.ask("carol", by=bob)
    with pytest.raises(Conflict, match="7 days"):
        council.approve(asked, by=bob, after=timedelta(days=7))
    assert council.decline(asked, by=bob).state is DecisionState.DECLINED
    assert council.decline(asked, by=bob).decided_by == bob
    with pytest.raises(Conflict, match="declined already"):
        council.approve(asked, by=bob)
    done = council.ask("carol", by=council.first)
    council.approve(done, by=bob)
    with pytest.raises(Conflict, match="approved already"):
        council.decline(done, by=bob)


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "a\nb"])
def test_a_person_needs_a_name(council, name):
    with pytest.raises(InvalidInput):
        council.ask(name, by=council.first)


@pytest.mark.parametrize("given", ["", "key_x:00", f"obs_{'a' * 20}_{'0' * 64}", f"key_{'a' * 20}:{'0' * 63}"])
def test_what_is_no_introduction_is_refused(council, given):
    with pytest.raises(InvalidInput, match="introduc"):
        council.ask("bob", by=council.first, introduction=given)


def test_an_introduction_works_once(council):
    token, introduction = admins.introduce()
    council.ask("bob", by=council.first, introduction=introduction)
    with pytest.raises(Conflict):
        council.ask("carol", by=council.first, introduction=introduction)
    assert token not in introduction


def test_nobody_and_strangers_decide_nothing(council):
    council.second()
    asked = council.ask("carol", by=council.first)
    for stranger in (None, "adm_x"):
        for act in (lambda by: council.ask("dan", by=by), lambda by: council.approve(asked, by=by)):
            with pytest.raises(Forbidden):
                act(stranger)
    with pytest.raises(NotFound):
        council.remove("adm_x", by=council.first)


def test_the_operator_is_outside_of_the_rule(council, now, tmp_path):
    restored, _token = council.do(admins.admit_on_machine, name="restored")
    assert restored.admission is Admission.MACHINE
    with pytest.raises(Conflict):
        council.do(admins.admit_on_machine, name="restored")
    assert isinstance(council.ask("puppet", by=council.first), Decision), "there have been two: nobody is alone"
    with transaction(council.factory) as session:
        auth.revoke(session, ApiKey.id.is_not(None), now=now)
        assert admins.bootstrap_admin(session, path=tmp_path / "again.key", now=now)
        assert session.scalar(select(func.count()).select_from(Admin)) == 3
