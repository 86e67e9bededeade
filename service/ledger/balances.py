"""What an account has left, exactly in nano-units and as epsilons for people."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sqlalchemy.orm import Session

from privacy.accounting.filters import Filter, open_filter
from privacy.accounting.odds import sure_at_most
from service.errors import InsufficientBudget
from service.ledger.records import Account
from service.ledger.rows import get_account


@dataclass(frozen=True)
class Balance:
    """An account at one moment. Nano-units are exact; epsilons (at the account's delta) are a reading of them.

    `left_nano` is never negative; epsilons of parts do not add up to the limit's. `sure_at_most` is how sure anybody
    can become, who was 50% sure of a unit's presence, by all that may ever be published, but with probability delta.
    """

    account_id: str
    name: str
    delta: float
    frozen: bool
    capacity_nano: int
    spent_nano: int
    held_nano: int
    left_nano: int
    limit_epsilon: float
    spent_epsilon: float
    held_epsilon: float
    left_epsilon: float
    affordable_epsilon: float
    sure_at_most: float


def filter_of(account: Account) -> Filter:
    """Return the account's filter: its limit, delta, and the order that was fixed at opening."""
    return open_filter(account.filter.value, account.epsilon, account.delta, account.filter_order)


def balance(session: Session, account_id: str) -> Balance:
    """Return an account's balance, checked against the head of its log.

    Raises:
        NotFound: no such account.
        LedgerCorruption: the cached balances contradict the log.
    """
    return balance_of(get_account(session, account_id))


def balance_of(account: Account) -> Balance:
    """Return the balance of an account that was read or locked already."""
    privacy_filter = filter_of(account)
    left_nano = max(account.capacity_nano - account.spent_nano - account.held_nano, 0)
    return Balance(
        account_id=account.id,
        name=account.name,
        delta=account.delta,
        frozen=account.frozen,
        capacity_nano=account.capacity_nano,
        spent_nano=account.spent_nano,
        held_nano=account.held_nano,
        left_nano=left_nano,
        limit_epsilon=account.epsilon,
        spent_epsilon=privacy_filter.epsilon_of(account.spent_nano),
        held_epsilon=privacy_filter.epsilon_of(account.held_nano),
        left_epsilon=privacy_filter.epsilon_of(left_nano),
        affordable_epsilon=affordable_epsilon(privacy_filter, left_nano),
        # A limit may have been lowered below the spend; of what is spent by then, nothing is taken back.
        sure_at_most=sure_at_most(privacy_filter, max(account.capacity_nano, account.spent_nano)),
    )


def affordable_epsilon(privacy_filter: Filter, left_nano: int) -> float:
    """Return the largest three-digit epsilon whose whole budget fits into what is left; 0.0 when none does.

    A job that asks for exactly this much is admitted.
    """
    epsilon = privacy_filter.epsilon_of(left_nano)
    if left_nano == 0 or epsilon <= 0:
        return 0.0
    digits = 2 - math.floor(math.log10(epsilon))
    for step in range(3):  # the first fits but for the rounding of the conversion
        candidate = (math.floor(epsilon * 10.0**digits + 1e-6) - step) / 10.0**digits
        if candidate > 0 and 0 < privacy_filter.nano_of(candidate) <= left_nano:
            return candidate
    return 0.0


def insufficient(account: Account, requested_nano: int, requested_epsilon: float | None = None) -> InsufficientBudget:
    """Return the error for a request above the account's rest, with every number.

    Args:
        account: checked.
        requested_nano: what was asked for.
        requested_epsilon: as the caller put it; None reads it from the nano-units.
    """
    now = balance_of(account)
    return InsufficientBudget(
        account=account.name,
        requested_nano=requested_nano,
        left_nano=now.left_nano,
        capacity_nano=now.capacity_nano,
        spent_nano=now.spent_nano,
        held_nano=now.held_nano,
        requested_epsilon=filter_of(account).epsilon_of(requested_nano)
        if requested_epsilon is None
        else requested_epsilon,
        left_epsilon=now.left_epsilon,
        limit_epsilon=now.limit_epsilon,
        spent_epsilon=now.spent_epsilon,
        held_epsilon=now.held_epsilon,
        affordable_epsilon=now.affordable_epsilon,
    )
