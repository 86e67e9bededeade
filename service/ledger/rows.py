"""How ledger rows are locked, checked and written. Every change of a balance goes through `append`.

Each write checks the account against the head of its log and the hold against the newest entry about it (I8), before
and after, and is a conditional UPDATE, so that a mistake above fails here rather than overspends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind
from privacy.accounting.filter import Filter, open_filter
from service.access import require_visible
from service.db.access_tables import Installation
from service.db.ledger_tables import AccountRow
from service.errors import ClockRefused, Conflict, InvalidInput, LedgerCorruption, NotFound, StaleAttempt
from service.ledger import statements
from service.ledger.chain import Entry
from service.ledger.records import Account, Hold, check_account, check_balances, check_entry, check_hold, corrupt
from service.times import to_the_hour, wrong_clock

NANO_MAX = 2**63 - 1
_IN_TRAININGS = frozenset({EntryKind.ARM, EntryKind.CHARGE})


def get_account(session: Session, account_id: str) -> Account:
    """Return an account, read only, checked against the head of its log.

    Raises:
        NotFound: no such account.
        LedgerCorruption: its balances contradict the log.
    """
    return _checked_account(session, account_id, lock=False)


def lock_account(session: Session, account_id: str) -> Account:
    """Lock an account's row until the transaction ends, and check it against the head of its log.

    Raises:
        NotFound: no such account.
        LedgerCorruption: the cached balances or the head do not match the log.
    """
    return _checked_account(session, account_id, lock=True)


def lock_hold(session: Session, hold_id: str) -> tuple[Account, Hold]:
    """Lock a hold and, before it, its account.

    Raises:
        NotFound: no such hold.
        LedgerCorruption: a row contradicts the log or itself.
    """
    account, reserved, _last = lock_hold_and_entry(session, hold_id)
    return account, reserved


def lock_hold_and_entry(session: Session, hold_id: str) -> tuple[Account, Hold, Entry | None]:
    """As `lock_hold`; also return the newest entry about the hold, which is read with it and checked."""
    row = statements.locked_rows(session, hold_id)
    if row is None:
        raise NotFound("There is no such hold.", hold_id=hold_id)
    account, head, reserved, last = row
    check_account(account, head)
    check_hold(reserved, last, head)
    return account, reserved, last


def get_hold(session: Session, hold_id: str) -> Hold:
    """Return a hold, read only, checked against the log.

    Raises:
        NotFound: no such hold.
        LedgerCorruption: its row contradicts the log or itself.
    """
    row = statements.hold_row(session, hold_id)
    if row is None:
        raise NotFound("There is no such hold.", hold_id=hold_id)
    reserved, last = row
    check_hold(reserved, last)
    return reserved


def audited_holds(session: Session, ids: Collection[str]) -> dict[str, tuple[Hold, LedgerCorruption | None]]:
    """Return holds by their ids, each with what the log says against it, if anything: one query, however many."""
    audited: dict[str, tuple[Hold, LedgerCorruption | None]] = {}
    for reserved, last in statements.hold_rows(session, sorted(ids)) if ids else []:
        audited[reserved.id] = reserved, None
        try:
            check_hold(reserved, last)
        except LedgerCorruption as error:
            audited[reserved.id] = reserved, error
    return audited


def _checked_account(session: Session, account_id: str, *, lock: bool) -> Account:
    require_visible(session, AccountRow, account_id)
    row = statements.account_row(session, account_id, lock=lock)
    if row is None:
        raise NotFound("There is no such account.", account_id=account_id)
    account, head = row
    check_account(account, head)
    return account


def entry_of_hold(session: Session, hold_id: str, kind: EntryKind) -> Entry:
    """Return the one entry that holds, captures or returns a hold's budget.

    Raises:
        LedgerCorruption: it is missing, or does not match its hash.
    """
    entry = statements.entry_of_hold(session, hold_id, kind)
    if entry is None:
        raise LedgerCorruption(f"Ledger: a hold has no entry of the kind {kind.value}.", hold_id=hold_id)
    check_entry(entry)
    return entry


def filter_of_hold(session: Session, hold_id: str) -> Filter:
    """Return the filter of an account as it was when a hold was taken, by which the hold was priced.

    The limit may have been raised or lowered since. What a hold pays for is certified by this filter, for at another
    rate the same releases have another price.

    Raises:
        LedgerCorruption: an entry that says so is missing, or does not match its hash.
    """
    held = entry_of_hold(session, hold_id, EntryKind.HOLD)
    limit = statements.limit_before(session, held.account_id, held.sequence)
    if limit is None:
        raise LedgerCorruption("Ledger: a hold has no limit before it.", hold_id=hold_id)
    check_entry(limit)
    delta = get_account(session, held.account_id).delta
    said = limit.details  # entries of a time without rates leave them out: all of delta belonged to mu then
    return open_filter(said["epsilon"], delta, said.get("rate", 0.0), said.get("base", 0.0))


def append(
    session: Session,
    account: Account,
    kind: EntryKind,
    reserved: Hold | None = None,
    *,
    now: datetime,
    amount_nano: int = 0,
    spent: int = 0,
    held: int = 0,
    capacity_nano: int | None = None,
    job_id: str | None = None,
    details: Mapping[str, Any] | None = None,
    also: Mapping[str, Any] | None = None,
    moves: Mapping[str, Any] | None = None,
) -> None:
    """Append an entry, and move the account and the hold with it.

    Args:
        session: in the transaction that holds the account's lock.
        account: as `lock_account` or `lock_hold` returned it; shows the new balances afterwards.
        reserved: the hold that the entry is about: a new one, or as `lock_hold` returned it.
        amount_nano: of the entry, >= 0.
        spent: change of the spent balance, in nano-units, >= 0 (I2).
        held: change of the held balance, in nano-units.
        capacity_nano: the new capacity, where the entry changes it.
        job_id: of the job concerned, where there is no hold.
        details: public JSON facts.
        also: further columns of the account that this entry changes.
        moves: columns of the locked hold that this entry changes; None where the hold is new.

    Raises:
        LedgerCorruption: a row is not what was locked, spent would decrease (I2), the account would be overspent, or
            the hold would contradict the log.
    """
    if spent < 0:
        raise corrupt("the spent balance would decrease", account)
    if amount_nano < 0:
        raise corrupt("an entry would have a negative amount", account)
    entry = Entry(
        account_id=account.id,
        sequence=account.head_sequence + 1,
        kind=kind,
        hold_id=reserved.id if reserved else None,
        job_id=reserved.job_id if reserved else job_id,
        amount_nano=amount_nano,
        capacity_nano=account.capacity_nano if capacity_nano is None else capacity_nano,
        spent_nano=account.spent_nano + spent,
        held_nano=account.held_nano + held,
        details=dict(details or {}),
        previous_hash=account.head_hash,
        created_at=dated(session, account, kind, now),
    ).hashed()
    account_moves = {
        "spent_nano": entry.spent_nano,
        "held_nano": entry.held_nano,
        "capacity_nano": entry.capacity_nano,
        "head_sequence": entry.sequence,
        "head_hash": entry.hash,
        **(also or {}),
    }
    moved = None
    if reserved is not None and moves is not None:
        moved = reserved, {**moves, "last_sequence": entry.sequence, "updated_at": entry.created_at}
    new_hold = reserved if moved is None else None
    more_nano = 0 if kind is EntryKind.ACCEPT else spent + held  # accepted spending has happened already
    statements.write_entry(
        session, account, account_moves, entry, more_nano=more_nano, new_hold=new_hold, moved_hold=moved
    )
    check_balances(account, entry)
    account.newest_at = entry.created_at
    if reserved is not None:
        check_hold(reserved, entry, entry)


def dated(session: Session, account: Account, kind: EntryKind, now: datetime) -> datetime:
    """Return the time that the next entry of an account bears: the hour, and never one before the newest entry's.

    That holds for every kind. An exact time after a charge would tell when, at the latest, that was made; and people's
    acts follow on private events, for programs act for them that have waited. What a training writes on its way bears
    the newest entry's time, whatever the hour: which of a thousand charges began it would tell the training's pace.

    Args:
        account: as it was locked.
        kind: of the entry.
        now: aware.

    Raises:
        ClockRefused: the clock is wrong, so nothing is written.
    """
    _require(session, now, account.newest_at)
    hour = to_the_hour(now)
    if account.newest_at is None:
        return hour
    return account.newest_at if kind in _IN_TRAININGS else max(hour, account.newest_at)


def require_clock(session: Session, now: datetime) -> None:
    """Let a clock pass by which entries may be dated and leases end: not far from those that dated the logs so far.

    Raises:
        ClockRefused: it is wrong.
    """
    _require(session, now, statements.newest_at(session))


def _require(session: Session, now: datetime, newest: datetime | None) -> None:
    why = wrong_clock(now, newest)
    if why is not None and newest is not None:
        accepted = session.execute(select(Installation.clock_accepted_at, Installation.clock_ahead_until)).first()
        if accepted is not None and accepted.clock_ahead_until is not None and newest <= accepted.clock_ahead_until:
            why = wrong_clock(now, accepted.clock_accepted_at)  # the operator has said that those entries are ahead
    if why is not None:
        raise ClockRefused(
            f"The clock of this machine is wrong: {why}. Nothing was written. Set it, and try again.", now=str(now)
        )


def require_attempt(reserved: Hold, attempt: int) -> None:
    """Refuse every attempt but the current one (I6). Attempts count from 1; a hold at 0 has none that may write.

    Raises:
        StaleAttempt: the attempt is not the one the hold was fenced for.
    """
    if attempt < 1 or attempt != reserved.attempt:
        raise stale(reserved, attempt)


def whole(value: int, name: str) -> int:
    """Return a price: a whole number of nano-units > 0.

    Raises:
        InvalidInput: it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= NANO_MAX:
        raise InvalidInput(f"{name} must be a whole number of nano-units above 0.")
    return value


def stale(reserved: Hold, attempt: int) -> StaleAttempt:
    """Return the error for an attempt that may no longer write."""
    return StaleAttempt(
        f"Attempt {attempt} may no longer write: attempt {reserved.attempt} has the job, or the job has ended.",
        attempt=attempt,
        current_attempt=reserved.attempt,
    )


def wrong_state(reserved: Hold, action: str) -> Conflict:
    """Return the error for a step that the hold's state does not allow."""
    return Conflict(f"A hold that is {reserved.state.value} cannot be {action}.", hold_id=reserved.id)
