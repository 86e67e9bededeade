"""Requests that two people decide: one admin asks for something, and it is done when another one approves it.

The module of each noun says what may be asked for and carries it out: `service.ledger.limits` raises limits,
`admins` admits and removes admins and revokes their keys, `service.jobs.sharing` shares releases. What holds
for every request stands here: all keys of one person count as that person, a request lapses after seven days, and where
a sign-in provider knows who is who, its people decide and nobody else. About a project its owners decide, two of them
or one and an admin of the installation. Takes a session, never commits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from obscura.wire.words import Admission, DecisionAction, DecisionState
from service.db.access_tables import Admin, ApiKey, Decision, Person
from service.db.base import new_id
from service.db.ledger_tables import AccountRow
from service.db.project_tables import Project
from service.errors import Conflict, Forbidden, NotFound, short_reason
from service.identity.access import PEOPLE_DECIDE, visible
from service.identity.recording import Act, record
from service.notices import tell_of_decision

REQUEST_LIFETIME = timedelta(days=7)
EXPIRED = "expired"

_ASKING, _DECIDING = aliased(Admin), aliased(Admin)
# Built once: that costs more than running it.
_WITH_NAMES = (
    select(Decision, AccountRow.name, Project.name, _ASKING.name, _DECIDING.name)
    .outerjoin(AccountRow, AccountRow.id == Decision.account_id)
    .outerjoin(Project, Project.id == Decision.shared_with)
    .join(_ASKING, _ASKING.id == Decision.asked_by)
    .outerjoin(_DECIDING, _DECIDING.id == Decision.decided_by)
    .order_by(Decision.state != DecisionState.PENDING, Decision.asked_at.desc(), Decision.id)
)

# Carries out what was asked for, with the key of the admin who approves it.
Effect = Callable[[Session, Decision, ApiKey, datetime], None]

# Of each action: the prefix of its ids, and the columns that no two requests that wait may share.
_KINDS = {
    DecisionAction.RAISE: ("lim", [Decision.account_id]),
    DecisionAction.ADMIT: ("adr", [Decision.name]),
    DecisionAction.REMOVE: ("adr", [Decision.admin_id]),
    DecisionAction.REVOKE: ("adr", [Decision.key_id]),
    DecisionAction.SHARE: ("shq", [Decision.release_id, Decision.shared_with]),
}


def acting_key(session: Session, key_id: str) -> ApiKey:
    """Return the valid key of an admin, who asks or decides with it.

    Raises:
        Forbidden: it was revoked, or is no admin's, or of nobody whom the sign-in provider knows, where there is one.
    """
    key = session.get(ApiKey, key_id)
    if key is None or key.revoked_at is not None or key.admin_id is None:
        raise Forbidden("Only an admin may ask for this or decide it, with a valid API key.")
    if session.info.get(PEOPLE_DECIDE) and session.get_one(Admin, key.admin_id).person_id is None:
        raise Forbidden(
            "Here two people decide as the sign-in provider knows them, and nobody knows whose this key is. Sign in "
            "with the provider, and ask or decide there, or with a key that you make there."
        )
    return key


def voice_of(session: Session, person: Admin) -> str:
    """Return the id of whom a person counts as where two must agree: that of who named an owner alone, or of whom the
    sign-in provider knows, or their own.

    Whoever may name owners alone, or owns several projects, could otherwise be as many people as they like.
    """
    if person.person_id is not None:
        return person.person_id
    alone = person.project_id is not None and person.admission is Admission.ALONE
    return voice_of(session, session.get_one(Admin, person.asked_by)) if alone else person.id


def ask(
    session: Session, action: DecisionAction, about: str, *, asking: ApiKey, reason: str, now: datetime, **terms: Any
) -> Decision:
    """Ask for what another admin must approve; that it may be asked for was checked.

    Args:
        about: the name of the person or the account, for people.
        terms: the columns that say what is asked for, and the project that it is about.

    Raises:
        InvalidInput: the reason is empty or too long.
        Conflict: a request for the same waits already.
    """
    reason = short_reason(reason)
    prefix, subject = _KINDS[action]
    same = [Decision.action == action, Decision.state == DecisionState.PENDING]
    same += [column == terms[column.key] for column in subject]
    recent = Decision.asked_at > now - REQUEST_LIFETIME
    waiting = session.scalar(select(Decision.id).where(*same, recent).limit(1))
    if waiting is not None:
        message = f"Request {waiting} about *{about}* waits already. Decline it before asking anew."
        raise Conflict(message, request_id=waiting)
    decision = Decision(id=new_id(prefix), action=action, reason=reason, state=DecisionState.PENDING, **terms)
    decision.asked_by, decision.asked_with, decision.asked_at = str(asking.admin_id), asking.id, now
    session.add(decision)
    session.flush()
    record(session, Act.ASKED, decision.id, project_id=decision.project_id)
    facts = {"request_id": decision.id, "action": action.value, "state": decision.state.value}
    tell_of_decision(session, decision.project_id, now=now, **facts)
    return decision


def decide(
    session: Session,
    request_id: str,
    decided_with: str,
    now: datetime,
    effects: Mapping[DecisionAction, Effect],
    *,
    approved: bool,
) -> Decision:
    """Do what another admin has asked for, or decline it or withdraw one's own. Doing so twice changes nothing.

    Args:
        request_id: of a request for one of the actions in `effects`.
        decided_with: id of an admin's key; to approve, of another person than the one who asked.
        effects: what carries each action out.

    Raises:
        NotFound: no such request.
        Forbidden: the key is no admin's; to approve, it is the asker's or somebody's who was admitted after that.
        Conflict: the request was decided otherwise; to approve, it has expired, whoever asked was removed, their key
            was revoked or has expired, their sign-in has lapsed, or it can no longer be done.
    """
    decision = get_decision(session, request_id, effects, lock=True)
    deciding = acting_key(session, decided_with)
    wanted = DecisionState.APPROVED if approved else DecisionState.DECLINED
    if decision.state is wanted and (not approved or decision.decided_by == deciding.admin_id):
        return decision
    if decision.state is not DecisionState.PENDING:
        raise Conflict(f"This request was {decision.state.value} already.", request_id=decision.id)
    if approved:
        _require_approvable(session, decision, deciding, now)
        effects[decision.action](session, decision, deciding, now)
    decision.state, decision.decided_at = wanted, now
    decision.decided_by, decision.decided_with = deciding.admin_id, deciding.id
    session.flush()
    act = Act.APPROVED if approved else Act.DECLINED
    record(session, act, decision.id, project_id=decision.project_id)
    return decision


def get_decision(
    session: Session, request_id: str, actions: Collection[DecisionAction], *, lock: bool = False
) -> Decision:
    """Return a request for one of some actions.

    Raises:
        NotFound: no such request.
    """
    chosen = visible(session, Decision).where(Decision.id == request_id, Decision.action.in_(actions))
    if lock:
        chosen = chosen.with_for_update().execution_options(populate_existing=True)
    decision = session.scalar(chosen)
    if decision is None:
        raise NotFound("There is no such request.", request_id=request_id)
    return decision


def state_at(decision: Decision, now: datetime) -> str:
    """Return the state of a request: `expired` where it waited too long to be approved."""
    lapsed = decision.state is DecisionState.PENDING and now - decision.asked_at >= REQUEST_LIFETIME
    return EXPIRED if lapsed else decision.state.value


@dataclass(frozen=True)
class DecisionView:
    """A request as people see it, with names for ids."""

    decision: Decision
    state: str
    account_name: str | None
    shared_with: str | None
    asked_by: str
    decided_by: str | None

    @property
    def waiting(self) -> bool:
        """Whether it can still be approved."""
        return self.state == DecisionState.PENDING


def list_decisions(session: Session, now: datetime, *conditions: Any, limit: int) -> Sequence[DecisionView]:
    """Return requests that fulfil conditions: those that nobody has decided first, and the newest first among these."""
    query = visible(session, Decision, _WITH_NAMES).where(*conditions).limit(limit)
    return [DecisionView(row[0], state_at(row[0], now), *row[1:]) for row in session.execute(query)]


def _require_approvable(session: Session, decision: Decision, deciding: ApiKey, now: datetime) -> None:
    """Require a request that still holds, and another person, who was an admin when it was made.

    If later admins could approve, whoever may name one could ask first, and then admit the one who agrees.
    """
    if state_at(decision, now) == EXPIRED:
        raise Conflict(
            f"This request is older than {REQUEST_LIFETIME.days} days and can no longer be approved. Make a new one.",
            request_id=decision.id,
        )
    if deciding.admin_id == decision.asked_by:
        raise Forbidden("It takes two people: you asked for this, so another admin must approve it.")
    asks, decides = (session.get_one(Admin, admin_id) for admin_id in (decision.asked_by, deciding.admin_id))
    if voice_of(session, asks) == voice_of(session, decides):
        raise Forbidden(
            f"It takes two people, and *{asks.name}* and *{decides.name}* count as one here: one "
            "has named the other alone, or both are one person with several roles. Somebody else must approve it."
        )
    if decision.asked_at < decides.admitted_at:
        raise Forbidden(
            "This was asked for before you were an admin, so you cannot approve it. Decline it, and have it asked anew."
        )
    if asks.removed_at is not None:
        raise Conflict("The admin who asked for this was removed since. Make a new request.")
    if session.info.get(PEOPLE_DECIDE) and asks.person_id is None:
        raise Conflict(
            "The sign-in provider does not know who asked for this. Decline it, and ask anew, signed in there."
        )
    if decision.asked_with is not None:
        _require_key_in_force(session, decision.asked_with, asks, now)


def _require_key_in_force(session: Session, key_id: str, asks: Admin, now: datetime) -> None:
    """Raise Conflict unless the key that made the request is still valid."""
    key = session.get_one(ApiKey, key_id, populate_existing=True)
    if key.revoked_at is not None:
        raise Conflict("The key that asked for this was revoked since. Make a new request.", key_id=key_id)
    if key.expires_at is not None and key.expires_at <= now:
        raise Conflict("The key that asked for this has expired since. Make a new request.", key_id=key_id)
    person = None if key.person_id is None else session.get_one(Person, key.person_id, populate_existing=True)
    if person is not None and (person.lapsed_at is not None or person.keys_until <= now):
        raise Conflict(
            f"The sign-in provider no longer vouches for *{asks.name}*, who asked for this. Ask *{asks.name}* to sign "
            "in again, or make a new request.",
            key_id=key_id,
        )
