"""Accounts: opening them, what they have left, and the pages of accounts and of their log."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from obscura.wire.budgets import DELTA_LEAST, DELTA_MOST, DELTA_USUAL_MOST, EPSILON_LEAST, EPSILON_MOST
from obscura.wire.words import Adjacency, EntryKind, Unit
from privacy.accounting.filter import Filter, open_filter
from privacy.accounting.odds import sure_at_most
from privacy.errors import InvalidParameter
from service.db.base import new_id
from service.db.ledger_tables import AccountRow
from service.db.project_tables import DEFAULT_PROJECT
from service.db.session import is_duplicate
from service.errors import (
    AccountClosed,
    AccountFrozen,
    Conflict,
    InsufficientBudget,
    InvalidInput,
    LargeDelta,
    LedgerCorruption,
    require_name,
)
from service.ledger.chain import GENESIS_HASH, Entry
from service.ledger.records import Account, check_account, check_entry
from service.ledger.rows import get_account, lock_account, require_clock
from service.ledger.statements import ACCOUNTS, account_rows, add_account, add_entry, close_account, entry_rows

PAGE_SIZE_MAX = 1000


def open_account(
    session: Session,
    *,
    name: str,
    owner: str,
    epsilon: float,
    delta: float,
    unit: str,
    adjacency: str,
    now: datetime,
    project_id: str = DEFAULT_PROJECT,
    accept_large_delta: bool = False,
    account_id: str | None = None,
) -> Account:
    """Open an account: one population, one lifetime budget.

    Args:
        name: unique; shown to everybody who may see the account.
        owner: who is asked for more.
        epsilon: the limit, 0.001 to 1000.
        delta: 1e-30 to 0.1; jobs also need delta <= 1/records.
        unit: "record" or "subject".
        adjacency: "add_remove".
        project_id: whose it is, for ever. The log does not say it.
        accept_large_delta: confirms a delta above `DELTA_USUAL_MOST`.
        account_id: of an account that a restored database lacks; None for a new id.

    Raises:
        LargeDelta: delta is above that bound and not confirmed.
        InvalidInput: a value is out of range.
        Conflict: the name is taken.
        ClockRefused: the clock is wrong.
    """
    name, owner = require_name(name, "An account's name"), require_name(owner, "An account's owner")
    try:
        chosen = Unit(unit), Adjacency(adjacency)
    except ValueError as error:
        raise InvalidInput(f"{error}: choose unit record or subject, adjacency add_remove.") from None
    for term, value, least, most in (
        ("epsilon", epsilon, EPSILON_LEAST, EPSILON_MOST),
        ("delta", delta, DELTA_LEAST, DELTA_MOST),
    ):
        if not least <= value <= most:
            raise InvalidInput(f"The budget cannot be opened: an account's {term} is {least:g} to {most:g}.")
    if delta > DELTA_USUAL_MOST and not accept_large_delta:
        raise LargeDelta(delta)
    try:
        privacy_filter = open_filter(epsilon, delta)
    except InvalidParameter as error:
        raise InvalidInput(f"The budget cannot be opened: {error}.") from error
    require_clock(session, now)
    if session.scalar(select(ACCOUNTS.c.id).where(ACCOUNTS.c.name == name)) is not None:
        raise _taken(name)
    terms: dict[str, Any] = {
        "name": name,
        "owner": owner,
        "epsilon": privacy_filter.epsilon,
        "delta": privacy_filter.delta,
        "unit": chosen[0],
        "adjacency": chosen[1],
        "rate": privacy_filter.rate,
    }
    account = Account(
        id=account_id or new_id("acc"),
        **terms,
        base=privacy_filter.base,
        capacity_nano=privacy_filter.capacity_nano,
        spent_nano=0,
        held_nano=0,
        frozen=False,
        closed=False,
        head_sequence=1,
        head_hash="",
        created_at=now,
        project_id=project_id,
    )
    opening = Entry(
        account_id=account.id,
        sequence=1,
        kind=EntryKind.OPEN,
        hold_id=None,
        job_id=None,
        amount_nano=account.capacity_nano,
        capacity_nano=account.capacity_nano,
        spent_nano=0,
        held_nano=0,
        details=terms,
        previous_hash=GENESIS_HASH,
        created_at=now,
    ).hashed()
    account.head_hash = opening.hash
    try:
        add_account(session, account)
    except IntegrityError as error:
        if not is_duplicate(error):
            raise
        raise _taken(name) from None  # at the same moment, elsewhere
    add_entry(session, opening)
    return account


@dataclass(frozen=True)
class Balance:
    """An account at one moment. Nano-units are exact; epsilons (at the account's delta) are a reading of them.

    `left_nano` is never negative; epsilons of parts do not add up to the limit's. `promised_epsilon` is that of all
    that may ever be published: the limit, or what is spent and held where the limit was lowered below that.
    `sure_at_most` is how sure anybody can become by it, who was 50% sure of a unit's presence, but with probability
    delta.
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
    promised_epsilon: float
    sure_at_most: float


def filter_of(account: Account) -> Filter:
    """Return the account's filter."""
    return open_filter(account.epsilon, account.delta, account.rate, account.base)


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
    return Balance(
        account_id=account.id,
        name=account.name,
        delta=account.delta,
        frozen=account.frozen,
        capacity_nano=account.capacity_nano,
        spent_nano=account.spent_nano,
        held_nano=account.held_nano,
        left_nano=account.left_nano,
        limit_epsilon=account.epsilon,
        spent_epsilon=privacy_filter.epsilon_of(account.spent_nano),
        held_epsilon=privacy_filter.epsilon_of(account.held_nano),
        left_epsilon=privacy_filter.epsilon_of(account.left_nano),
        affordable_epsilon=affordable_epsilon(privacy_filter, account.left_nano),
        promised_epsilon=max(account.epsilon, privacy_filter.epsilon_of(account.promised_nano)),
        sure_at_most=sure_at_most(privacy_filter, account.promised_nano),
    )


def affordable_epsilon(privacy_filter: Filter, left_nano: int) -> float:
    """Return the largest three-digit epsilon whose whole budget fits into what is left; 0.0 when none does.

    A job that asks for exactly this much is admitted. 0.0 too where that would be less than a request may name.
    """
    epsilon = privacy_filter.epsilon_of(left_nano)
    if left_nano == 0 or epsilon <= EPSILON_LEAST:
        return EPSILON_LEAST if privacy_filter.nano_of(EPSILON_LEAST) <= left_nano else 0.0
    digits = 2 - math.floor(math.log10(epsilon))
    for step in range(3):  # the first fits but for the rounding of the conversion
        candidate = (math.floor(epsilon * 10.0**digits + 1e-6) - step) / 10.0**digits
        if candidate >= EPSILON_LEAST and 0 < privacy_filter.nano_of(candidate) <= left_nano:
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


def require_unfrozen(account: Account) -> None:
    """Let an account pass that takes new jobs.

    Raises:
        AccountFrozen: it takes none.
    """
    if account.frozen:
        raise AccountFrozen(f"Account *{account.name}* is frozen and takes no new jobs. Ask its owner.")


def set_closed(session: Session, account_id: str, *, closed: bool) -> Account:
    """Close an account to new data, or reopen it. Setting it twice changes nothing, and the log says nothing of it.

    An upload that is under way is refused when it is about to be accepted.
    """
    account = lock_account(session, account_id)
    if account.closed != closed:
        account.closed = closed
        close_account(session, account_id, closed)
    return account


def require_open(account: Account | AccountRow) -> None:
    """Let an account pass that takes new data.

    Raises:
        AccountClosed: it takes none.
    """
    if account.closed:
        raise AccountClosed(account.name)


def audited_by_id(session: Session, ids: Collection[str]) -> dict[str, tuple[Account, LedgerCorruption | None]]:
    """Return accounts by their ids, each with what its log says against it, if anything: one query, however many."""
    rows = account_rows(session, sorted(ids)) if ids else []
    return {account.id: (account, _fault(account, head)) for account, head in rows}


def _fault(account: Account, head: Entry | None) -> LedgerCorruption | None:
    try:
        check_account(account, head)
    except LedgerCorruption as error:
        return error
    return None


def entries(session: Session, account_id: str, after: int, limit: int) -> Sequence[Entry]:
    """Return a page of an account's log, oldest first, with its hashes, links and numbering checked.

    Args:
        after: sequence of the last entry of the page before; 0 for the first page.
        limit: of the page, 1 to 1000.

    Raises:
        NotFound: no such account.
        LedgerCorruption: names the first bad entry.
    """
    account = get_account(session, account_id)
    start, limit = max(after, 0), _page(limit)
    # The last entry of the page before is read again: it is what the first one here must link to.
    rows = entry_rows(session, account_id, start, account.head_sequence, limit + (start > 0))
    previous_hash, expected = GENESIS_HASH, 1
    if start > 0:
        previous_hash, expected = rows[0].previous_hash if rows else "", start
    for row in rows:
        if row.sequence != expected or row.previous_hash != previous_hash:
            break
        check_entry(row)
        previous_hash, expected = row.hash, row.sequence + 1
    if expected <= min(account.head_sequence, start + limit) and start <= account.head_sequence:
        raise LedgerCorruption(
            f"Ledger: the log of account {account_id} is broken at entry {expected}.",
            account_id=account_id,
            sequence=expected,
        )
    return rows[1:] if start else rows


def _taken(name: str) -> Conflict:
    return Conflict(f"An account named *{name}* exists already; datasets about the same people share it.")


def _page(limit: int) -> int:
    if not 1 <= limit <= PAGE_SIZE_MAX:
        raise InvalidInput(f"A page has 1 to {PAGE_SIZE_MAX} rows.", limit=limit)
    return limit
