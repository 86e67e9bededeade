"""Open accounts, and read their balances and pages of their logs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate, chain
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from obscura.wire.budgets import DELTA_LEAST, DELTA_MOST, DELTA_USUAL_MOST, EPSILON_LEAST, EPSILON_MOST
from obscura.wire.schemas import BalanceFacts
from obscura.wire.words import Adjacency, EntryKind, Unit
from privacy.accounting.filter import Filter, attacker_certainty_max, open_filter
from privacy.errors import InvalidParameter
from service import errors
from service.db.access_tables import DEFAULT_PROJECT
from service.db.base import new_id
from service.db.ledger_tables import Account, Entry
from service.db.session import is_duplicate
from service.ledger.chain import GENESIS_HASH, entry_hash
from service.ledger.rows import check_entry, get_account, require_clock

PAGE_SIZE_MAX = 1000
_STEPS, _ENDS = (EntryKind.ARM, EntryKind.CHARGE), (EntryKind.CAPTURE, EntryKind.RETURN)  # of jobs


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
        name: unique; visible to everyone who may see the account.
        owner: the person to ask for a higher limit.
        epsilon: the limit, 0.001 to 1000.
        delta: 1e-30 to 0.1; jobs also need delta <= 1/records.
        unit, adjacency: values of `Unit` and `Adjacency`.
        project_id: the project that owns the account forever. The log does not record the project.
        account_id: id of an account that a restored database lacks, which is created closed to new data.

    Raises:
        LargeDelta: delta is above `DELTA_USUAL_MOST` and was not confirmed.
        Conflict: the name is taken.
    """
    name, owner = errors.require_name(name, "An account's name"), errors.require_name(owner, "An account's owner")
    try:
        unit, adjacency = Unit(unit), Adjacency(adjacency)
    except ValueError as error:
        raise errors.InvalidInput(
            f"{error}: choose the unit record or subject, and the adjacency add_remove."
        ) from None
    for term, value, least, most in (
        ("epsilon", epsilon, EPSILON_LEAST, EPSILON_MOST),
        ("delta", delta, DELTA_LEAST, DELTA_MOST),
    ):
        if not least <= value <= most:
            raise errors.InvalidInput(f"This account cannot be opened: its {term} must be from {least:g} to {most:g}.")
    if delta > DELTA_USUAL_MOST and not accept_large_delta:
        raise errors.LargeDelta(delta)
    try:
        privacy_filter = open_filter(epsilon, delta)
    except InvalidParameter as error:
        raise errors.InvalidInput(f"This account cannot be opened: {error}.") from error
    require_clock(session, now)
    taken = errors.Conflict(
        f"An account named '{name}' already exists. Use it for all datasets about the same people. For other people, "
        "choose another name."
    )
    if session.scalar(select(Account.id).where(Account.name == name)) is not None:
        raise taken
    terms: dict[str, Any] = {
        "name": name,
        "owner": owner,
        "epsilon": privacy_filter.epsilon,
        "delta": privacy_filter.delta,
        "unit": unit,
        "adjacency": adjacency,
        "rate": privacy_filter.rate,
    }
    balances = {"capacity_nano": privacy_filter.capacity_nano, "spent_nano": 0, "reserved_nano": 0}
    opening = Entry(
        account_id=account_id or new_id("acc"),
        sequence=1,
        kind=EntryKind.OPEN,
        hold_id=None,
        job_id=None,
        amount_nano=privacy_filter.capacity_nano,
        **balances,
        details=terms,
        previous_hash=GENESIS_HASH,
        created_at=now,
    )
    opening.hash = entry_hash(opening)
    account = Account(
        id=opening.account_id,
        **terms,
        **balances,
        base=privacy_filter.base,
        frozen=False,
        closed=account_id is not None,
        head_sequence=1,
        head_hash=opening.hash,
        created_at=now,
        project_id=project_id,
    )
    session.add(account)
    try:
        session.flush()
    except IntegrityError as error:
        if not is_duplicate(error):
            raise
        raise taken from None  # by a concurrent transaction
    session.add(opening)
    session.flush()
    set_committed_value(account, "head", opening)
    return account


def filter_of(account: Account) -> Filter:
    """Return the account's privacy filter, which prices releases."""
    return open_filter(account.epsilon, account.delta, account.rate, account.base)


def balance_of(account: Account, epsilon: float | None = None) -> BalanceFacts:
    """Return an account's balance; with `epsilon`, at that limit, or raise InvalidParameter if it is impossible."""
    privacy_filter, used_nano = filter_of(account), account.spent_nano + account.reserved_nano
    capacity_nano = account.capacity_nano
    if epsilon is not None:
        privacy_filter = privacy_filter.at_limit(epsilon, used_nano)
        capacity_nano = privacy_filter.capacity_nano
    left_nano, guaranteed_nano = max(capacity_nano - used_nano, 0), max(capacity_nano, used_nano)
    return BalanceFacts(
        capacity_nano=capacity_nano,
        spent_nano=account.spent_nano,
        reserved_nano=account.reserved_nano,
        left_nano=left_nano,
        limit_epsilon=privacy_filter.epsilon,
        spent_epsilon=privacy_filter.epsilon_of(account.spent_nano),
        reserved_epsilon=privacy_filter.epsilon_of(account.reserved_nano),
        left_epsilon=privacy_filter.epsilon_of(left_nano),
        affordable_epsilon=affordable_epsilon(privacy_filter, left_nano),
        guaranteed_epsilon=max(privacy_filter.epsilon, privacy_filter.epsilon_of(guaranteed_nano)),
        attacker_certainty_max=attacker_certainty_max(privacy_filter, guaranteed_nano),
    )


def affordable_epsilon(privacy_filter: Filter, left_nano: int) -> float:
    """Return the largest epsilon that a job can request, to three significant digits; 0.0 if there is none."""
    epsilon = privacy_filter.epsilon_of(left_nano)
    if left_nano == 0 or epsilon <= EPSILON_LEAST:
        return EPSILON_LEAST if privacy_filter.nano_of(EPSILON_LEAST) <= left_nano else 0.0
    digits = 2 - math.floor(math.log10(epsilon))
    for step in range(3):  # rounding may make the first value too large
        candidate = (math.floor(epsilon * 10.0**digits + 1e-6) - step) / 10.0**digits
        if candidate >= EPSILON_LEAST and 0 < privacy_filter.nano_of(candidate) <= left_nano:
            return candidate
    return 0.0


def insufficient(
    account: Account, requested_nano: int, requested_epsilon: float | None = None
) -> errors.InsufficientBudget:
    """Return the error for a request above the remaining budget; by default, convert nano-units to an epsilon."""
    if requested_epsilon is None:
        requested_epsilon = filter_of(account).epsilon_of(requested_nano)
    return errors.InsufficientBudget(
        account=account.name,
        balance=balance_of(account),
        requested_nano=requested_nano,
        requested_epsilon=requested_epsilon,
    )


def require_unfrozen(account: Account) -> None:
    """Raise AccountFrozen if an account is frozen, so that it accepts no new jobs."""
    if account.frozen:
        raise errors.AccountFrozen(f"Account '{account.name}' is frozen and accepts no new jobs. Ask its owner.")


def require_open(account: Account) -> None:
    """Raise AccountClosed if an account is closed to new data."""
    if account.closed:
        raise errors.AccountClosed(
            f"Account '{account.name}' is closed to new data; you can still train on its present data. For new people, "
            "open a separate account with its own budget, and train on each account separately. Or ask the owner to "
            "open this account to new data again."
        )


def keep_subjects_key_check(session: Session, account_id: str, check: str) -> tuple[str, str]:
    """Store the check value of the key for subject ids if the account has none; return its name and stored value."""
    first = Account.id == account_id, Account.subjects_key_check.is_(None)
    session.execute(update(Account).where(*first).values(subjects_key_check=check))
    stored = select(Account.name, Account.subjects_key_check).where(Account.id == account_id)
    name, value = session.execute(stored).one()
    return name, value or ""


def entries_by_job(
    session: Session, account_id: str, before: int | None = None, *, limit: int, most: int, only_jobs: bool = False
) -> list[list[Entry]]:
    """Return a part of an account's log in groups: all entries of one job, or one entry without a job.

    The group whose first entry is the newest comes first. The hash of each entry is checked, but not its link to the
    entry before it; `entries` checks both.

    Args:
        before: return groups whose first entry has a lower sequence number; None for the newest groups.
        limit: maximum number of groups.
        most: maximum number of entries; the first group may have more.
        only_jobs: return only jobs, each with its HOLD entry and, if it has ended, its CAPTURE or RETURN entry.
    """
    get_account(session, account_id)
    heads = Entry.kind == EntryKind.HOLD if only_jobs else Entry.kind.not_in((*_STEPS, *_ENDS))
    entries = [Entry.account_id == account_id, *([Entry.kind.not_in(_STEPS)] if only_jobs else [])]
    query = select(Entry).where(*entries, heads).order_by(Entry.sequence.desc()).limit(limit)
    first = session.scalars(query if before is None else query.where(Entry.sequence < before)).all()
    of_jobs = select(Entry).where(*entries, Entry.job_id.in_([head.job_id for head in first if head.job_id]))
    counts = of_jobs.with_only_columns(Entry.job_id, func.count()).group_by(Entry.job_id)
    by_size = dict(session.execute(counts).all())
    sizes = accumulate(by_size.get(head.job_id, 1) for head in first)
    first = [head for head, size in zip(first, sizes, strict=True) if size <= most] or first[:1]
    by_job = defaultdict[str | None, list[Entry]](list)
    of_jobs = of_jobs.where(Entry.job_id.in_([head.job_id for head in first if head.job_id]))
    for entry in session.scalars(of_jobs.order_by(Entry.sequence)):
        by_job[entry.job_id].append(entry)
    groups = [by_job[head.job_id] if head.job_id else [head] for head in first]
    for entry in chain.from_iterable(groups):
        check_entry(entry)
    return groups


def entries(session: Session, account_id: str, after: int, limit: int) -> Sequence[Entry]:
    """Return a page of an account's log, oldest first, with its hashes, links and numbering checked.

    Args:
        after: sequence of the last entry of the previous page; 0 for the first page.
        limit: page size, 1 to PAGE_SIZE_MAX.
    """
    if not 1 <= limit <= PAGE_SIZE_MAX:
        raise errors.InvalidInput(f"A page has 1 to {PAGE_SIZE_MAX} rows.", limit=limit)
    account, start = get_account(session, account_id), max(after, 0)
    # Read the last entry of the previous page again: the first entry of this page must link to it.
    numbers = Entry.account_id == account_id, Entry.sequence.between(start, account.head_sequence)
    query = select(Entry).where(*numbers).order_by(Entry.sequence).limit(limit + (start > 0))
    rows = session.scalars(query.execution_options(populate_existing=True)).all()
    previous_hash, expected = GENESIS_HASH, 1
    if start > 0:
        previous_hash, expected = rows[0].previous_hash if rows else "", start
    for row in rows:
        if row.sequence != expected or row.previous_hash != previous_hash:
            break
        check_entry(row)
        previous_hash, expected = row.hash, row.sequence + 1
    if expected <= min(account.head_sequence, start + limit) and start <= account.head_sequence:
        raise errors.LedgerCorruption(
            f"Ledger: the log of account {account_id} is broken at entry {expected}.",
            account_id=account_id,
            sequence=expected,
        )
    return rows[1:] if start else rows
