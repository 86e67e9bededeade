"""Two-person decisions: one admin makes a request, and it is carried out when another admin approves it.

Other modules validate and carry out the requests: `service.ledger.limits`, `admins`, `service.jobs.releases` and
`service.backups.accepting`. The rules here apply to every request. All keys of one person count as one person, and a
request expires after seven days. With a sign-in provider, only its people decide. Decisions about a project take two
of its owners, or one owner and an admin of the installation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from obscura.wire.words import Admission, DecisionAction, DecisionState, NoticeKind
from service.db.access_tables import Admin, ApiKey, Decision
from service.db.base import new_id
from service.errors import Conflict, Forbidden, short_reason
from service.identity.access import PEOPLE_DECIDE, Principal, Scope, covers, find, visible
from service.identity.auth import find_usable
from service.identity.recording import Act, record
from service.notices import notify

REQUEST_LIFETIME = timedelta(days=7)
EXPIRED = "expired"

# Carries out a request, given the key of the approving admin.
Effect = Callable[[Session, Decision, ApiKey, datetime], None]

# The columns that identify equal pending requests, by action.
_SUBJECTS = {
    DecisionAction.RAISE: [Decision.account_id],
    DecisionAction.ADMIT: [Decision.name],
    DecisionAction.REMOVE: [Decision.admin_id],
    DecisionAction.REVOKE: [Decision.key_id],
    DecisionAction.SHARE: [Decision.release_id, Decision.shared_with],
    DecisionAction.ACCEPT: [Decision.name],
}


def acting_key(session: Session, key_id: str) -> ApiKey:
    """Return the valid key of an admin who may request and decide. Raise Forbidden for any other key."""
    key = session.get(ApiKey, key_id)
    if key is None or key.revoked_at is not None or key.admin_id is None:
        raise Forbidden("Only an admin with a valid API key can request or decide this.")
    if session.info.get(PEOPLE_DECIDE) and session.get_one(Admin, key.admin_id).person_id is None:
        raise Forbidden(
            "The sign-in provider must know both people who decide, and it does not know the owner of this key. Sign "
            "in through the provider. Then request or decide on the page, or create a key on the page and use it."
        )
    return key


def voice_of(session: Session, person: Admin) -> str:
    """Return the id of the person that an admin counts as in two-person decisions.

    This is the person at the sign-in provider, or the admin who named this owner alone, or the admin's own id.
    Otherwise an admin who names owners alone, or owns several projects, could act as several people.
    """
    if person.person_id is not None:
        return person.person_id
    alone = person.project_id is not None and person.admission is Admission.ALONE
    return voice_of(session, session.get_one(Admin, person.requested_by)) if alone else person.id


def ask(
    session: Session, action: DecisionAction, about: str, *, asking: ApiKey, reason: str, now: datetime, **terms: Any
) -> Decision:
    """Record a request that another admin must approve. The caller must validate it first.

    `about` is the name of the person, account or release, for messages. `terms` are the columns that describe the
    request, and its project.
    """
    reason = short_reason(reason)
    same = [Decision.action == action, Decision.state == DecisionState.PENDING]
    same += [column == terms[column.key] for column in _SUBJECTS[action]]
    recent = Decision.requested_at > now - REQUEST_LIFETIME
    pending = session.scalar(select(Decision.id).where(*same, recent).limit(1))
    if pending is not None:
        message = f"Request {pending} about '{about}' is pending. Decline it before you make a new request."
        raise Conflict(message, request_id=pending)
    decision = Decision(id=new_id("dec"), action=action, reason=reason, state=DecisionState.PENDING, **terms)
    decision.requested_by, decision.requested_with, decision.requested_at = str(asking.admin_id), asking.id, now
    session.add(decision)
    session.flush()
    record(session, Act.ASKED, decision.id, project_id=decision.project_id)
    facts = {"request_id": decision.id, "action": action.value, "state": decision.state.value}
    notify(session, NoticeKind.DECISION_WAITING, decision.project_id, facts, now=now)
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
    """Approve a request and carry it out, or decline it. Requesters may only decline their own requests. Idempotent."""
    decision = find(session, Decision, request_id, lock=True)
    deciding = acting_key(session, decided_with)
    outcome = DecisionState.APPROVED if approved else DecisionState.DECLINED
    if decision.state is outcome and (not approved or decision.decided_by == deciding.admin_id):
        return decision
    if decision.state is not DecisionState.PENDING:
        raise Conflict(f"This request was {decision.state.value} already.", request_id=decision.id)
    if approved:
        if decision.action not in effects:  # accepting spending needs the locked installation's storage
            raise Conflict("Approve this request with the command `obscura ledger accept`.", request_id=decision.id)
        _require_approvable(session, decision, deciding, now)
        effects[decision.action](session, decision, deciding, now)
    decision.state, decision.decided_at = outcome, now
    decision.decided_by, decision.decided_with = deciding.admin_id, deciding.id
    session.flush()
    act = Act.APPROVED if approved else Act.DECLINED
    record(session, act, decision.id, project_id=decision.project_id)
    return decision


def state_at(decision: Decision, now: datetime) -> str:
    """Return the state of a request; `expired` if it is pending but can no longer be approved."""
    expired = decision.state is DecisionState.PENDING and now - decision.requested_at >= REQUEST_LIFETIME
    return EXPIRED if expired else decision.state.value


def readable_by(caller: Principal | None) -> list[ColumnElement[bool]]:
    """Return query conditions that select the requests that a caller may read.

    An admin may read all requests, any other caller only requests to raise a limit.
    """
    is_admin = caller is not None and covers(caller.scopes, Scope.ADMIN)
    return [] if is_admin else [Decision.action == DecisionAction.RAISE]


def pending_first(session: Session, *conditions: Any, limit: int) -> Sequence[Decision]:
    """Return requests that satisfy the conditions: pending before decided, then newest first."""
    order = Decision.state != DecisionState.PENDING, Decision.requested_at.desc(), Decision.id
    return session.scalars(visible(session, Decision).where(*conditions).order_by(*order).limit(limit)).all()


def _require_approvable(session: Session, decision: Decision, deciding: ApiKey, now: datetime) -> None:
    if state_at(decision, now) == EXPIRED:
        raise Conflict(
            f"This request is older than {REQUEST_LIFETIME.days} days and can no longer be approved. Create a new "
            "request.",
            request_id=decision.id,
        )
    if deciding.admin_id == decision.requested_by:
        raise Forbidden("Two people must decide: you requested this, so another admin must approve it.")
    asks, decides = (session.get_one(Admin, admin_id) for admin_id in (decision.requested_by, deciding.admin_id))
    if voice_of(session, asks) == voice_of(session, decides):
        raise Forbidden(
            f"Two people must decide, but '{asks.name}' and '{decides.name}' count as one person: both are roles of "
            "one person, or a single admin named an owner, who counts as that admin. Another admin must approve this."
        )
    if decision.requested_at < decides.admitted_at:  # else an admin could request, then admit an accomplice
        raise Forbidden(
            "This was requested before you became an admin, so you cannot approve it. Decline it, and ask its author "
            "for a new request."
        )
    if asks.removed_at is not None:
        raise Conflict("The admin who requested this was removed later. Create a new request.")
    if session.info.get(PEOPLE_DECIDE) and asks.person_id is None:
        raise Conflict(
            "The sign-in provider does not know the person who requested this. Decline the request. That person can "
            "sign in through the provider and make it again."
        )
    if find_usable(session, decision.requested_with, now=now) is None:
        raise Conflict(
            "The key that requested this was revoked or has expired, or the sign-in provider no longer vouches for "
            f"'{asks.name}'. Create a new request.",
            key_id=decision.requested_with,
        )
