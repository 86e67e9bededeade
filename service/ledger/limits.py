"""Actions of admins on an account: lower its limit, raise it (takes two admins), freeze it, or close it to new data.

Nothing else changes an account's capacity: no date, deletion or failure returns budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.budgets import EPSILON_LEAST, EPSILON_MOST
from obscura.wire.words import DecisionAction, EntryKind
from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter
from service.db.access_tables import Admin, ApiKey, Decision
from service.db.ledger_tables import Account
from service.errors import Conflict, InvalidInput, short_reason
from service.identity import decisions
from service.ledger.accounts import filter_of
from service.ledger.chain import utc_text
from service.ledger.rows import append, lock_account
from service.times import to_the_hour


def lower_limit(
    session: Session, *, account_id: str, epsilon: float, reason: str, now: datetime, by: str | None = None
) -> Account:
    """Lower an account's limit. A limit below the spent and held budget freezes the account, with 0 left (I13).

    Args:
        epsilon: the new limit; delta does not change.
        reason: recorded in the log.
        by: id of the key that requested it; None for the service itself.
    """
    account = lock_account(session, account_id)
    if not epsilon < account.epsilon:
        raise InvalidInput(
            f"The limit of '{account.name}' is epsilon {account.epsilon:g}, and only a lower limit can be set here. "
            "A higher limit needs a request and the approval of a second admin.",
            limit_epsilon=account.epsilon,
        )
    if not epsilon >= EPSILON_LEAST:
        raise InvalidInput(f"A limit is at least epsilon {EPSILON_LEAST:g}. To stop new jobs, freeze the account.")
    details = {"reason": short_reason(reason)} | ({} if by is None else {"by": by})
    _set_limit(session, account, _filter_at(account, epsilon, "lowered"), details=details, now=now)
    return account


def request_raise(
    session: Session, *, account_id: str, epsilon: float, reason: str, requested_with: str, now: datetime
) -> Decision:
    """Request a higher limit. Nothing changes until a second admin approves it.

    Raise Forbidden unless `requested_with` is an admin's key, and Conflict if another raise of this limit is pending.
    """
    account = lock_account(session, account_id)
    if not account.epsilon < epsilon <= EPSILON_MOST:
        raise InvalidInput(
            f"The limit of '{account.name}' is epsilon {account.epsilon:g}. The new limit must be above that, and at "
            f"most {EPSILON_MOST:g}.",
            limit_epsilon=account.epsilon,
            limit_epsilon_max=EPSILON_MOST,
        )
    _filter_at(account, epsilon, "raised")
    asking = decisions.acting_key(session, requested_with)
    limits = {"epsilon_before": account.epsilon, "epsilon": float(epsilon)}
    terms: dict[str, Any] = {"account_id": account.id, "project_id": account.project_id, **limits}
    return decisions.ask(session, DecisionAction.RAISE, account.name, asking=asking, reason=reason, now=now, **terms)


def _raise_limit(session: Session, decision: Decision, approving: ApiKey, now: datetime) -> None:
    account, epsilon = lock_account(session, str(decision.account_id)), float(decision.epsilon or 0)
    if account.epsilon != decision.epsilon_before:
        raise Conflict(
            f"The limit of '{account.name}' was {decision.epsilon_before:g} when this raise was requested, and is "
            f"{account.epsilon:g} now. Decline this request and create a new one.",
            limit_epsilon=account.epsilon,
        )
    asked, approves = (session.get_one(Admin, admin_id) for admin_id in (decision.requested_by, approving.admin_id))
    details = {
        "reason": decision.reason,
        "request_id": decision.id,
        "requested_at": utc_text(to_the_hour(decision.requested_at)),
        "requested_with": decision.requested_with,
        "approved_with": approving.id,
        "approver_admitted_at": utc_text(to_the_hour(approves.admitted_at)),
        "requested_by": asked.id,
        "requested_by_name": asked.name,
        "approved_by": approves.id,
        "approved_by_name": approves.name,
    }
    _set_limit(session, account, _filter_at(account, epsilon, "raised"), details=details, now=now)


LIMIT_EFFECTS = {DecisionAction.RAISE: _raise_limit}


def set_frozen(
    session: Session, *, account_id: str, frozen: bool, reason: str, now: datetime, by: str | None = None
) -> Account:
    """Freeze an account (no new hold, no first read of data), or unfreeze it. Idempotent.

    Raise Conflict, and do not unfreeze, if more is spent and held than the limit. `by` is as in `lower_limit`.
    """
    details = {"frozen": frozen, "reason": short_reason(reason)} | ({} if by is None else {"by": by})
    account = lock_account(session, account_id)
    if account.frozen == frozen:
        return account
    if not frozen and account.spent_nano + account.reserved_nano > account.capacity_nano:
        raise Conflict(f"Account '{account.name}' stays frozen, because spent and held budget exceed its limit.")
    append(session, account, EntryKind.FREEZE, details=details, also={"frozen": frozen}, now=now)
    return account


def set_closed(session: Session, account_id: str, *, closed: bool) -> Account:
    """Close an account to new data, also of uploads in progress, or open it again. The log does not record it."""
    account = lock_account(session, account_id)
    account.closed = closed
    session.flush()
    return account


def _set_limit(session: Session, account: Account, limit: Filter, *, details: Mapping[str, Any], now: datetime) -> None:
    """Append a LIMIT entry: the only kind of entry after OPEN that changes the capacity."""
    frozen = account.frozen or account.spent_nano + account.reserved_nano > limit.capacity_nano  # I13
    terms = {"epsilon": limit.epsilon, "rate": limit.rate, "base": limit.base, "frozen": frozen}
    append(
        session,
        account,
        EntryKind.LIMIT,
        amount_nano=limit.capacity_nano,
        capacity_nano=limit.capacity_nano,
        details={**terms, "epsilon_before": account.epsilon, **details},
        also=terms,
        now=now,
    )


def record_missing(
    session: Session, account: Account, *, amount_nano: int, details: Mapping[str, Any], now: datetime
) -> None:
    """Append an ACCEPT entry: spending that storage proves and a restored database lacks. It is spent permanently.

    An account with more spent and held than its limit allows is frozen (I13).

    Args:
        account: locked.
        details: the proofs that the entry accounts for (`service.audit.data_folder`), the reason, and the keys.
    """
    frozen = account.frozen or account.spent_nano + account.reserved_nano + amount_nano > account.capacity_nano
    append(
        session,
        account,
        EntryKind.ACCEPT,
        amount_nano=amount_nano,
        spent=amount_nano,
        details={**details, "frozen": frozen},
        also={"frozen": frozen},
        now=now,
    )


def _filter_at(account: Account, epsilon: float, change: str) -> Filter:
    try:
        return filter_of(account).at_limit(epsilon, account.spent_nano + account.reserved_nano)
    except InvalidParameter as error:
        raise InvalidInput(f"The limit cannot be {change} to this value: {error}.") from error
