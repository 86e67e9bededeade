"""Lock, read, check and append ledger rows. Only `append` changes balances.

Every read of an account includes the head of its log; every read of a hold includes the newest entry about it. So both
are checked (I8) at a cost that does not depend on the length of the log. Lock the account before the hold, with FOR NO
KEY UPDATE: writers exclude each other, but do not block the insertion of a job that refers to the account.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.orm import Session, joinedload
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.exc import StaleDataError

from obscura.wire.words import EntryKind, HoldState
from privacy.accounting.filter import Filter, open_filter
from service.db.access_tables import Installation
from service.db.ledger_tables import ENDS_A_HOLD, Account, Entry, Hold
from service.errors import ClockRefused, LedgerCorruption, NotFound
from service.identity.access import require_visible
from service.ledger.chain import entry_hash
from service.times import to_the_hour, wrong_clock

Row = TypeVar("Row", Account, Hold)
_BALANCES = ("capacity_nano", "spent_nano", "reserved_nano")
_IN_TRAININGS = frozenset({EntryKind.ARM, EntryKind.CHARGE})
# Reload rows that the session already has: they may have changed before the lock was granted.
_FRESH = {"populate_existing": True}
_ACCOUNTS = select(Account).options(joinedload(Account.head)).execution_options(**_FRESH)
_HOLDS = select(Hold).options(joinedload(Hold.last_entry)).execution_options(**_FRESH)
_ENTRIES = select(Entry).execution_options(**_FRESH)
# Statements that every step of a job runs. Built once, because building one costs as much as running it.
_ACCOUNT = _ACCOUNTS.where(Account.id == bindparam("account_id"))
_HOLD = _HOLDS.where(Hold.id == bindparam("hold_id")).options(joinedload(Hold.account).joinedload(Account.head))
# Lock first, then read: a joined read that waited for the lock would miss an entry appended meanwhile.
_LOCK_ACCOUNT = select(Account.id).where(Account.id == bindparam("account_id")).with_for_update(key_share=True)
_LOCK_BOTH = (
    select(Account.id, Hold.id)
    .join(Hold, Hold.account_id == Account.id)
    .where(Hold.id == bindparam("hold_id"))
    .with_for_update(of=(Account, Hold), key_share=True)
)


def get_account(session: Session, account_id: str) -> Account:
    """Return an account, checked against the head of its log."""
    require_visible(session, Account, account_id)
    account = session.scalar(_ACCOUNT, {"account_id": account_id})
    if account is None:
        raise NotFound("There is no such account.", account_id=account_id)
    check_account(account)
    return account


def lock_account(session: Session, account_id: str) -> Account:
    """Lock an account's row until the transaction ends, and return it as `get_account` does."""
    session.execute(_LOCK_ACCOUNT, {"account_id": account_id})
    return get_account(session, account_id)


def get_hold(session: Session, hold_id: str) -> Hold:
    """Return a hold with its account, both checked against the log."""
    hold = session.scalar(_HOLD, {"hold_id": hold_id})
    if hold is None:
        raise NotFound("There is no such hold.", hold_id=hold_id)
    check_account(hold.account)
    check_hold(hold)
    return hold


def lock_hold(session: Session, hold_id: str) -> Hold:
    """Lock a hold's account and then the hold, and return it as `get_hold` does."""
    session.execute(_LOCK_BOTH, {"hold_id": hold_id})
    return get_hold(session, hold_id)


def audited(session: Session, table: type[Row], ids: Collection[str]) -> dict[str, tuple[Row, LedgerCorruption | None]]:
    """Return accounts or holds by id, in one query, each with the error that its check found, or None."""
    query: Any = _ACCOUNTS if table is Account else _HOLDS
    check: Any = check_account if table is Account else check_hold
    read: dict[str, tuple[Row, LedgerCorruption | None]] = {}
    for row in session.scalars(query.where(table.id.in_(sorted(ids)))) if ids else ():
        read[row.id] = row, None
        try:
            check(row)
        except LedgerCorruption as error:
            read[row.id] = row, error
    return read


def entry_of_hold(session: Session, hold_id: str, kind: EntryKind) -> Entry:
    """Return the only entry of a hold with the kind HOLD, CAPTURE or RETURN."""
    query = _ENTRIES.where(Entry.hold_id == hold_id, Entry.kind == kind)
    entry = session.scalar(query if kind is EntryKind.HOLD else query.where(ENDS_A_HOLD))
    if entry is None:
        raise LedgerCorruption(f"Ledger: a hold has no entry of the kind {kind.value}.", hold_id=hold_id)
    check_entry(entry)
    return entry


def filter_of_hold(session: Session, hold_id: str, kind: EntryKind = EntryKind.HOLD) -> Filter:
    """Return the account's filter at the time of an entry of a hold.

    The filter at the HOLD entry priced the hold and certifies its releases. The limit may have changed since, and at
    another rate the same releases have another price.
    """
    entry = entry_of_hold(session, hold_id, kind)
    limits = _ENTRIES.where(
        Entry.account_id == entry.account_id,
        Entry.sequence < entry.sequence,
        or_(Entry.kind == EntryKind.OPEN, Entry.kind == EntryKind.LIMIT),
    )
    limit = session.scalar(limits.order_by(Entry.sequence.desc()).limit(1))
    if limit is None:
        raise LedgerCorruption("Ledger: the log states no limit before a hold.", hold_id=hold_id)
    check_entry(limit)
    delta = get_account(session, entry.account_id).delta
    terms = limit.details
    return open_filter(terms["epsilon"], delta, terms["rate"], terms.get("base", 0.0))


def append(
    session: Session,
    account: Account,
    kind: EntryKind,
    hold: Hold | None = None,
    *,
    now: datetime,
    amount_nano: int = 0,
    spent: int = 0,
    held: int = 0,
    capacity_nano: int | None = None,
    details: Mapping[str, Any] | None = None,
    also: Mapping[str, Any] | None = None,
    moves: Mapping[str, Any] | None = None,
) -> Entry:
    """Append an entry, update the account and the hold accordingly, and flush all of it to the database.

    Raise LedgerCorruption if a row was changed despite its lock, or contradicts the log. Also raise it if the account
    would be overspent (I1), or the spent balance would decrease (I2).

    Args:
        account: locked.
        hold: the entry's hold, new or locked.
        spent: change of the spent balance, in nano-units, >= 0.
        held: change of the held balance, in nano-units, of any sign.
        details: public JSON facts.
        also: other columns of the account that this entry changes.
        moves: columns of the hold that this entry changes.
    """
    if spent < 0:
        raise corrupt("the spent balance would decrease", account)
    if amount_nano < 0:
        raise corrupt("an entry would have a negative amount", account)
    more_nano = 0 if kind is EntryKind.ACCEPT else spent + held  # accepted spending has already happened
    if more_nano > 0 and (
        account.frozen or account.spent_nano + account.reserved_nano + more_nano > account.capacity_nano
    ):
        raise corrupt("a reservation does not fit into the capacity, or the account is frozen", account)
    entry = Entry(
        account_id=account.id,
        sequence=account.head_sequence + 1,
        kind=kind,
        hold_id=hold.id if hold else None,
        job_id=hold.job_id if hold else None,
        amount_nano=amount_nano,
        capacity_nano=account.capacity_nano if capacity_nano is None else capacity_nano,
        spent_nano=account.spent_nano + spent,
        reserved_nano=account.reserved_nano + held,
        details=dict(details or {}),
        previous_hash=account.head_hash,
        created_at=entry_time(session, account, kind, now),
    )
    entry.hash = entry_hash(entry)
    balances = {name: getattr(entry, name) for name in _BALANCES}
    account.head_sequence, account.head_hash = entry.sequence, entry.hash
    for name, value in {**balances, **(also or {})}.items():
        setattr(account, name, value)
    session.add(entry)
    if hold is not None:
        hold.last_sequence, hold.updated_at = entry.sequence, entry.created_at
        for name, value in (moves or {}).items():
            setattr(hold, name, value)
        session.add(hold)
    try:
        session.flush()
    except StaleDataError as error:
        raise corrupt("the account or the hold was changed despite its lock", account) from error
    set_committed_value(account, "head", entry)
    check_account(account)
    if hold is not None:
        set_committed_value(hold, "last_entry", entry)
        check_hold(hold)
    return entry


def entry_time(session: Session, account: Account, kind: EntryKind, now: datetime) -> datetime:
    """Return the time of an account's next entry: `now` rounded down to the hour, but not before the newest entry.

    An exact time would be an upper bound on the time of the charge before the entry. This also holds for people's
    actions, because their programs may react to private events. Entries that a running training writes repeat the
    newest entry's time. Otherwise the first charge of each hour would reveal the training's pace.
    """
    assert account.head is not None  # `check_account` has checked this
    newest = account.head.created_at
    require_clock(session, now, newest)
    return newest if kind in _IN_TRAININGS else max(to_the_hour(now), newest)


def newest_at(session: Session) -> datetime | None:
    """Return the time of the newest entry of all logs; None if there is no log."""
    newest: datetime | None = session.scalar(select(func.max(Entry.created_at)).join(Account.head))
    return newest


def require_clock(session: Session, now: datetime, newest: datetime | None = None) -> None:
    """Raise ClockRefused unless `now` is close to the time of the newest entry, by default of all logs."""
    newest = newest or newest_at(session)
    why = wrong_clock(now, newest)
    if why is not None and newest is not None:
        accepted = session.execute(select(Installation.clock_accepted_at, Installation.clock_ahead_until)).first()
        if accepted is not None and accepted.clock_ahead_until is not None and newest <= accepted.clock_ahead_until:
            why = wrong_clock(now, accepted.clock_accepted_at)  # the operator has confirmed that the entries are ahead
    if why is not None:
        raise ClockRefused(
            f"The clock of this machine is wrong: {why}. Nothing was written. Set the clock and retry.", now=str(now)
        )


def check_account(account: Account) -> None:
    """Raise LedgerCorruption if an account is overspent, or contradicts its newest entry (I1, I8, I13)."""
    head = account.head
    if head is None or head.hash != account.head_hash:
        raise corrupt("the head of the log is missing, or is not the entry that the account names", account)
    check_entry(head)
    differing = [name for name in _BALANCES if getattr(account, name) != getattr(head, name)]
    if differing or account.head_sequence != head.sequence:
        raise corrupt("the cached balances differ from the log", account)
    if account.spent_nano < 0 or account.reserved_nano < 0:
        raise corrupt("a balance is negative", account)
    if not account.frozen and account.spent_nano + account.reserved_nano > account.capacity_nano:
        raise corrupt("more is spent and held than the capacity", account)
    if head.kind in (EntryKind.LIMIT, EntryKind.FREEZE, EntryKind.ACCEPT) and head.details["frozen"] != account.frozen:
        raise corrupt("the log contradicts whether the account is frozen", account)


def check_entry(entry: Entry) -> None:
    """Raise unless an entry's hash covers its contents."""
    if entry.hash != entry_hash(entry):
        raise LedgerCorruption(
            f"Ledger: entry {entry.sequence} of account {entry.account_id} does not match its hash.",
            account_id=entry.account_id,
            sequence=entry.sequence,
        )


def check_hold(hold: Hold) -> None:
    """Raise unless a hold's amounts fit its state, and both match the newest entry about it (I3, I5, I8)."""
    last = hold.last_entry
    if last is not None:
        check_entry(last)
    armed = hold.state in (HoldState.ARMED, HoldState.CAPTURED)
    fits_state = (
        hold.amount_nano > 0
        and 0 <= hold.charged_nano <= hold.amount_nano
        and hold.captured_nano == (hold.charged_nano if hold.state is HoldState.CAPTURED else 0)
        and (armed or hold.charged_nano == 0)
        and (hold.armed_attempt >= 1 if armed else hold.armed_attempt == 0)
        and hold.armed_attempt <= hold.attempt
    )
    if not (fits_state and last is not None and _fits_log(hold, last)):
        raise LedgerCorruption(
            "Ledger: a hold's amounts contradict its state or the log.",
            hold_id=hold.id,
            account_id=hold.account_id,
            sequence=hold.last_sequence,
        )


def _fits_log(hold: Hold, last: Entry) -> bool:
    """Compare a hold with the newest entry about it; only `attempt` is not in the log."""
    if (last.hold_id, last.job_id, last.sequence) != (hold.id, hold.job_id, hold.last_sequence):
        return False
    details = last.details
    match last.kind:
        case EntryKind.HOLD:
            logged = HoldState.HELD, last.amount_nano, 0, 0
        case EntryKind.ARM | EntryKind.CHARGE:
            logged = HoldState.ARMED, details["hold_nano"], details["charged_nano"], details["attempt"]
        case EntryKind.CAPTURE:
            amount_nano = last.amount_nano + details["returned_nano"]
            logged = HoldState.CAPTURED, amount_nano, last.amount_nano, hold.armed_attempt
        case EntryKind.RETURN:
            logged = HoldState.RETURNED, last.amount_nano, 0, 0
        case _:
            return False
    return logged == (hold.state, hold.amount_nano, hold.charged_nano, hold.armed_attempt)


def corrupt(why: str, account: Account) -> LedgerCorruption:
    return LedgerCorruption(
        f"Ledger: account {account.id}: {why}.", account_id=account.id, sequence=account.head_sequence
    )
