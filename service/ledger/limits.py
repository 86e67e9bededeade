"""What an account may spend in all: lowering the limit, raising it by two people, and the freeze switch.

The capacity of an account changes by nothing else: no date, no deletion and no failure ever gives budget back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.budgets import EPSILON_LEAST, EPSILON_MOST
from obscura.wire.words import EntryKind, LimitRequestState
from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter
from service.db.access_tables import Admin, ApiKey
from service.db.base import new_id
from service.db.ledger_tables import LimitRequest
from service.errors import Conflict, Forbidden, InvalidInput, NotFound
from service.ledger.accounts import filter_of
from service.ledger.chain import utc_text
from service.ledger.records import Account
from service.ledger.rows import append, lock_account, short_reason
from service.times import to_the_hour

REQUEST_LIFETIME = timedelta(days=7)


def lower_limit(
    session: Session, *, account_id: str, epsilon: float, reason: str, now: datetime, by: str | None = None
) -> Account:
    """Lower an account's limit. Below what is spent and held it leaves 0 and freezes the account (I13).

    Args:
        epsilon: the new limit, > 0 and below the present one; delta stays.
        reason: kept in the log.
        by: id of the key that asked for it; None for the service itself.

    Raises:
        InvalidInput: the new limit is not a lower one.
    """
    account = lock_account(session, account_id)
    if not epsilon < account.epsilon:
        raise InvalidInput(
            f"The limit of *{account.name}* is epsilon {account.epsilon:g}; only a lower one can be set here. "
            "A higher one needs a request and the approval of a second admin.",
            limit_epsilon=account.epsilon,
        )
    if not epsilon >= EPSILON_LEAST:
        raise InvalidInput(f"A limit is at least epsilon {EPSILON_LEAST:g}. To stop new jobs, freeze the account.")
    lowered = _filter_at(account, epsilon, "lowered")
    frozen = account.frozen or account.spent_nano + account.held_nano > lowered.capacity_nano
    _set_limit(session, account, lowered, frozen=frozen, now=now, details={"reason": short_reason(reason)} | _by(by))
    return account


def request_raise(
    session: Session, *, account_id: str, epsilon: float, reason: str, requested_by: str, now: datetime
) -> LimitRequest:
    """Ask for a higher limit. Nothing changes before a second admin approves it.

    Args:
        epsilon: the limit asked for, above the present one.
        reason: kept with the request and, once it is approved, in the log.
        requested_by: id of an admin's key.

    Raises:
        InvalidInput: the limit asked for is not a higher one, is out of range, or there is no reason.
        Forbidden: the key is no admin's.
        Conflict: another request for this account waits already.
    """
    account = lock_account(session, account_id)
    if not account.epsilon < epsilon <= EPSILON_MOST:
        raise InvalidInput(
            f"The limit of *{account.name}* is epsilon {account.epsilon:g}; a raise goes above that and to "
            f"{EPSILON_MOST:g} at most.",
            limit_epsilon=account.epsilon,
            limit_epsilon_max=EPSILON_MOST,
        )
    _filter_at(account, epsilon, "raised")
    waiting = session.scalar(
        select(LimitRequest.id).where(
            LimitRequest.account_id == account.id,
            LimitRequest.state == LimitRequestState.PENDING,
            LimitRequest.requested_at > now - REQUEST_LIFETIME,
        )
    )
    if waiting is not None:
        raise Conflict(
            f"Request {waiting} for account *{account.name}* waits for a second admin. Decline it before asking anew.",
            request_id=waiting,
        )
    asking = _admin_key(session, requested_by)
    request = LimitRequest(
        id=new_id("lim"),
        account_id=account.id,
        epsilon_before=account.epsilon,
        epsilon=float(epsilon),
        reason=short_reason(reason),
        state=LimitRequestState.PENDING,
        requested_by=asking.id,
        requested_by_admin=asking.admin_id,
        requested_at=now,
    )
    session.add(request)
    session.flush()
    return request


def approve_raise(session: Session, *, request_id: str, decided_by: str, now: datetime) -> LimitRequest:
    """Raise the limit as another person has asked for it. Approving twice with the same key changes nothing.

    The account's delta stays as it was fixed at opening. A frozen account stays frozen.

    Args:
        request_id: pending.
        decided_by: id of a second admin's key.

    Raises:
        NotFound: no such request.
        Forbidden: the key is no admin's, one of the person who asked, or of somebody who was admitted after that.
        Conflict: the request was decided already, has expired, its key was revoked, or the limit has changed since.
    """
    account, request = _lock_request(session, request_id)
    if request.state is LimitRequestState.APPROVED and request.decided_by == decided_by:
        return request
    _require_pending(request, now)
    approving = _admin_key(session, decided_by)
    people = _two_people(session, request, approving)
    if account.epsilon != request.epsilon_before:
        raise Conflict(
            f"The limit of *{account.name}* was {request.epsilon_before:g} when this was asked for and is "
            f"{account.epsilon:g} now. Decline this request and make a new one.",
            limit_epsilon=account.epsilon,
        )
    _set_limit(
        session,
        account,
        _filter_at(account, request.epsilon, "raised"),
        frozen=account.frozen,
        now=now,
        details={
            "reason": request.reason,
            "request_id": request.id,
            "requested_at": utc_text(to_the_hour(request.requested_at)),
            "requested_by": request.requested_by,
            "approved_by": decided_by,
            **people,
        },
    )
    return _decide(session, request, LimitRequestState.APPROVED, approving, now)


def decline_raise(session: Session, *, request_id: str, decided_by: str, now: datetime) -> LimitRequest:
    """Decline a request, or withdraw one's own. Declining twice changes nothing.

    Raises:
        NotFound: no such request.
        Forbidden: the key is no admin's.
        Conflict: the request was approved already.
    """
    _account, request = _lock_request(session, request_id)
    if request.state is LimitRequestState.APPROVED:
        raise Conflict("This request was approved already. The limit can be lowered again.", request_id=request.id)
    if request.state is LimitRequestState.DECLINED:
        return request
    return _decide(session, request, LimitRequestState.DECLINED, _admin_key(session, decided_by), now)


def get_limit_request(session: Session, request_id: str) -> LimitRequest:
    """Return a request.

    Raises:
        NotFound: no such request.
    """
    request = session.get(LimitRequest, request_id)
    if request is None:
        raise NotFound("There is no such limit request.", request_id=request_id)
    return request


def has_expired(request: LimitRequest, now: datetime) -> bool:
    """Tell whether a request waited too long to be approved."""
    return request.state is LimitRequestState.PENDING and now - request.requested_at >= REQUEST_LIFETIME


def set_frozen(
    session: Session, *, account_id: str, frozen: bool, reason: str, now: datetime, by: str | None = None
) -> Account:
    """Freeze an account (no new hold, no first read of data) or open it again. Setting it twice changes nothing.

    Args:
        frozen: True freezes.
        reason: kept in the log.
        by: id of the key that asked for it; None for the service itself.

    Raises:
        InvalidInput: there is no reason.
        Conflict: more is spent and held than the limit, so it stays frozen.
    """
    details = {"frozen": frozen, "reason": short_reason(reason)} | _by(by)
    account = lock_account(session, account_id)
    if account.frozen == frozen:
        return account
    if not frozen and account.spent_nano + account.held_nano > account.capacity_nano:
        raise Conflict(f"Account *{account.name}* has spent and held more than its limit allows; it stays frozen.")
    append(session, account, EntryKind.FREEZE, details=details, also={"frozen": frozen}, now=now)
    return account


def _set_limit(
    session: Session, account: Account, limit: Filter, *, frozen: bool, now: datetime, details: Mapping[str, Any]
) -> None:
    """Append a LIMIT entry: the only one after OPEN that carries another capacity than the entry before it."""
    append(
        session,
        account,
        EntryKind.LIMIT,
        amount_nano=limit.capacity_nano,
        capacity_nano=limit.capacity_nano,
        details={
            "epsilon": limit.epsilon,
            "epsilon_before": account.epsilon,
            "rate": limit.rate,
            "base": limit.base,
            "frozen": frozen,
            **details,
        },
        also={"epsilon": limit.epsilon, "rate": limit.rate, "base": limit.base, "frozen": frozen},
        now=now,
    )


def _filter_at(account: Account, epsilon: float, change: str) -> Filter:
    try:
        return filter_of(account).at_limit(epsilon, account.spent_nano + account.held_nano)
    except InvalidParameter as error:
        raise InvalidInput(f"The limit cannot be {change} to that: {error}.") from error


def _lock_request(session: Session, request_id: str) -> tuple[Account, LimitRequest]:
    """Lock a request's account, which is what makes decisions wait for each other, and read the request anew."""
    account = lock_account(session, get_limit_request(session, request_id).account_id)
    request = session.get_one(LimitRequest, request_id, populate_existing=True)
    return account, request


def _require_pending(request: LimitRequest, now: datetime) -> None:
    if request.state is not LimitRequestState.PENDING:
        raise Conflict(f"This request was {request.state.value} already.", request_id=request.id)
    if has_expired(request, now):
        raise Conflict(
            f"This request is older than {REQUEST_LIFETIME.days} days and can no longer be approved. Make a new one.",
            request_id=request.id,
        )


def _two_people(session: Session, request: LimitRequest, approving: ApiKey) -> dict[str, str]:
    """Return who asked and who approves, by id and name, for the log; keys of one person are one person."""
    if approving.admin_id == request.requested_by_admin:
        raise Forbidden("A raise needs two people: you asked for it, so another admin must approve it.")
    if session.get_one(ApiKey, request.requested_by).revoked_at is not None:
        raise Conflict(
            "The key that asked for this raise was revoked since. Make a new request.", key_id=request.requested_by
        )
    asked, approves = (session.get_one(Admin, key) for key in (request.requested_by_admin, approving.admin_id))
    require_admitted_before(approves, request.requested_at)
    return {
        "approver_admitted_at": utc_text(to_the_hour(approves.admitted_at)),
        "requested_by_admin": asked.id,
        "requested_by_name": asked.name,
        "approved_by_admin": approves.id,
        "approved_by_name": approves.name,
    }


def require_admitted_before(approving: Admin, asked_at: datetime) -> None:
    """Let an admin approve what was asked for when they were an admin already.

    Otherwise whoever may name an admin could ask first, and then admit the one who agrees.

    Raises:
        Forbidden: they were admitted after that.
    """
    if asked_at < approving.admitted_at:
        raise Forbidden(
            "This was asked for before you were an admin, so you cannot approve it. Decline it, and have it asked anew."
        )


def _admin_key(session: Session, key_id: str) -> ApiKey:
    key = session.get(ApiKey, key_id)
    if key is None or key.revoked_at is not None or key.admin_id is None:
        raise Forbidden("Limits are decided with the valid API key of an admin.")
    return key


def _decide(
    session: Session, request: LimitRequest, state: LimitRequestState, deciding: ApiKey, now: datetime
) -> LimitRequest:
    request.state, request.decided_by, request.decided_at = state, deciding.id, now
    request.decided_by_admin = deciding.admin_id
    session.flush()
    return request


def _by(key_id: str | None) -> dict[str, str]:
    return {} if key_id is None else {"by": key_id}
