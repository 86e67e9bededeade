"""The ledger's SQL: how rows are read, locked, added and moved.

Statements are built and compiled once, because that costs more than running one, and they speak of columns, because
loading an object that a session watches costs more than reading its row.

Every reading of an account brings the head of its log, and every reading of a hold the newest entry about it, so both
can be checked at a cost that does not depend on the length of the log. Rows are locked in the order account, hold, by
FOR NO KEY UPDATE: writers exclude each other, but not those who insert a job that refers to the account.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Insert,
    Table,
    Update,
    and_,
    bindparam,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind
from service.db.ledger_tables import ENDS_A_HOLD, AccountRow, EntryRow, HoldRow
from service.db.prepared import Prepared
from service.errors import LedgerCorruption
from service.ledger.chain import Entry
from service.ledger.records import Account, Hold, corrupt

ACCOUNTS, HOLDS, ENTRIES = (cast(Table, row.__table__) for row in (AccountRow, HoldRow, EntryRow))
_LAST = ENTRIES.alias("last")  # the newest entry about a hold; ENTRIES itself is the head of the account's log
_IS_HEAD = and_(ENTRIES.c.account_id == ACCOUNTS.c.id, ENTRIES.c.sequence == ACCOUNTS.c.head_sequence)
_IS_LAST = and_(_LAST.c.account_id == HOLDS.c.account_id, _LAST.c.sequence == HOLDS.c.last_sequence)


def _columns(record: type[Account | Hold | Entry], table: FromClause) -> list[ColumnElement[Any]]:
    """Return a table's columns in the order of a record's fields: a row that was read is the record's arguments."""
    return [table.c[name] for name in _stored(record)]


def _stored(record: type[Account | Hold | Entry]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record) if field.metadata.get("column", True))


_ACCOUNT_C, _HEAD_C = _columns(Account, ACCOUNTS), _columns(Entry, ENTRIES)
_HOLD_C, _LAST_C = _columns(Hold, HOLDS), _columns(Entry, _LAST)
_A, _E, _H = len(_ACCOUNT_C), len(_HEAD_C), len(_HOLD_C)

_ACCOUNTS = select(*_ACCOUNT_C, *_HEAD_C).select_from(ACCOUNTS.outerjoin(ENTRIES, _IS_HEAD))
_ACCOUNT = _ACCOUNTS.where(ACCOUNTS.c.id == bindparam("account_id"))
_READ_ACCOUNT, _LOCK_ACCOUNT = Prepared(_ACCOUNT), Prepared(_ACCOUNT.with_for_update(of=ACCOUNTS, key_share=True))
_NEWEST = select(func.max(ENTRIES.c.created_at)).select_from(ACCOUNTS.join(ENTRIES, _IS_HEAD))
_HOLDS = select(*_HOLD_C, *_LAST_C).select_from(HOLDS.outerjoin(_LAST, _IS_LAST))
_READ_HOLD = Prepared(_HOLDS.where(HOLDS.c.id == bindparam("hold_id")))
_LOCK_BOTH = Prepared(
    select(*_ACCOUNT_C, *_HEAD_C, *_HOLD_C, *_LAST_C)
    .select_from(
        HOLDS.join(ACCOUNTS, ACCOUNTS.c.id == HOLDS.c.account_id)
        .outerjoin(ENTRIES, _IS_HEAD)
        .outerjoin(_LAST, _IS_LAST)
    )
    .where(HOLDS.c.id == bindparam("hold_id"))
    .with_for_update(of=(ACCOUNTS, HOLDS), key_share=True)
)
_OF_HOLD = select(*_HEAD_C).where(ENTRIES.c.hold_id == bindparam("hold_id"), ENTRIES.c.kind == bindparam("kind"))
_LIMIT_BEFORE = Prepared(
    select(*_HEAD_C)
    .where(
        ENTRIES.c.account_id == bindparam("account_id"),
        ENTRIES.c.sequence < bindparam("sequence"),
        or_(ENTRIES.c.kind == EntryKind.OPEN, ENTRIES.c.kind == EntryKind.LIMIT),
    )
    .order_by(ENTRIES.c.sequence.desc())
    .limit(1)
)
_OPENING_OF_HOLD, _END_OF_HOLD = Prepared(_OF_HOLD), Prepared(_OF_HOLD.where(ENDS_A_HOLD))
_HOLD_OF_JOB = Prepared(
    select(HOLDS.c.id).where(HOLDS.c.job_id == bindparam("job_id"), HOLDS.c.account_id == bindparam("account_id"))
)
_ACCOUNTS_BY_ID = _ACCOUNTS.where(ACCOUNTS.c.id.in_(bindparam("ids", expanding=True)))
_HOLDS_BY_ID = _HOLDS.where(HOLDS.c.id.in_(bindparam("ids", expanding=True)))
_HOLDS_OF_JOB = select(HOLDS.c.id).order_by(HOLDS.c.account_id)


def _add(table: Table, prefix: str, columns: Sequence[Any] = ()) -> Insert:
    """Return an INSERT of one row whose parameters are the names of these columns, or of all, behind a prefix."""
    written = columns or table.columns
    return insert(table).values({c.name: bindparam(f"{prefix}_{c.name}", type_=c.type) for c in written})


def _move(table: Table, prefix: str, guards: tuple[str, ...], columns: tuple[str, ...]) -> Update:
    """Return an UPDATE of one row, on condition that its guard columns still are what was read."""
    columns_of = table.c
    unchanged = (
        columns_of[name] == bindparam(f"{prefix}_was_{name}", type_=columns_of[name].type) for name in ("id", *guards)
    )
    return (
        update(table)
        .where(*unchanged)
        .values({name: bindparam(f"{prefix}_to_{name}", type_=columns_of[name].type) for name in columns})
    )


_ACCOUNT_GUARDS = ("head_sequence", "head_hash", "spent_nano", "held_nano", "capacity_nano", "frozen")
_ACCOUNT_COLUMNS = (*_ACCOUNT_GUARDS, "epsilon", "rate", "base")
_HOLD_GUARDS = ("state", "attempt", "armed_attempt", "charged_nano", "last_sequence")
_HOLD_COLUMNS = (*_HOLD_GUARDS, "captured_nano", "updated_at")
_MOVE_ACCOUNT = _move(ACCOUNTS, "account", _ACCOUNT_GUARDS, _ACCOUNT_COLUMNS)
# The second guard of admission: only a hold reserves, and only within the capacity of an account that is not frozen.
_RESERVE = _MOVE_ACCOUNT.where(
    ~ACCOUNTS.c.frozen,
    ACCOUNTS.c.spent_nano + ACCOUNTS.c.held_nano + bindparam("more_nano", type_=ACCOUNTS.c.held_nano.type)
    <= ACCOUNTS.c.capacity_nano,
)
_MOVE_HOLD = _move(HOLDS, "hold", _HOLD_GUARDS, _HOLD_COLUMNS)
_ADD_ACCOUNT, _ADD_HOLD, _ADD_ENTRY = _add(ACCOUNTS, "account", _ACCOUNT_C), _add(HOLDS, "hold"), _add(ENTRIES, "entry")


@functools.cache
def _alone(write: Insert | Update) -> Prepared:
    return Prepared(write)


@functools.cache
def _together(*writes: Insert | Update) -> Prepared:
    """Return PostgreSQL's one statement that makes several writes and says how many rows each has touched."""
    parts = [write.returning(literal(1).label("done")).cte(f"write_{n}") for n, write in enumerate(writes)]
    return Prepared(select(*(select(func.count()).select_from(part).scalar_subquery() for part in parts)))


def account_row(session: Session, account_id: str, *, lock: bool) -> tuple[Account, Entry | None] | None:
    """Return an account and the head of its log; None where there is no such account."""
    row = _read(session, _LOCK_ACCOUNT if lock else _READ_ACCOUNT, (_A,), account_id=account_id)
    return None if row is None else _account(row)


def hold_row(session: Session, hold_id: str) -> tuple[Hold, Entry | None] | None:
    """Return a hold and the newest entry about it; None where there is no such hold."""
    row = _read(session, _READ_HOLD, (_H,), hold_id=hold_id)
    return None if row is None else (Hold(*row[:_H]), _entry(row[_H:]))


def account_rows(session: Session, ids: Sequence[str]) -> list[tuple[Account, Entry | None]]:
    """Return accounts, each with the head of its log, in no order."""
    return [_account(tuple(row)) for row in session.execute(_ACCOUNTS_BY_ID, {"ids": ids})]


def hold_rows(session: Session, ids: Sequence[str]) -> list[tuple[Hold, Entry | None]]:
    """Return holds, each with the newest entry about it, in no order."""
    found = session.execute(_HOLDS_BY_ID, {"ids": ids})
    return [(Hold(*row[:_H]), _entry(tuple(row[_H:]))) for row in found]


def locked_rows(session: Session, hold_id: str) -> tuple[Account, Entry | None, Hold, Entry | None] | None:
    """Lock a hold and its account; return both as the functions above do, or None where there is no such hold."""
    row = _read(session, _LOCK_BOTH, (_A, _A + _E + _H), hold_id=hold_id)
    if row is None:
        return None
    return *_account(row[: _A + _E]), Hold(*row[_A + _E : -_E]), _entry(row[-_E:])


def entry_of_hold(session: Session, hold_id: str, kind: EntryKind) -> Entry | None:
    """Return the entry of a kind about a hold that has one at most: HOLD, CAPTURE or RETURN."""
    statement = _OPENING_OF_HOLD if kind is EntryKind.HOLD else _END_OF_HOLD
    row = statement.row(session, {"hold_id": hold_id, "kind": kind})
    return None if row is None else Entry(*row)


def limit_before(session: Session, account_id: str, sequence: int) -> Entry | None:
    """Return the entry that set the limit of an account as it was at another entry, the opening or a later one."""
    row = _LIMIT_BEFORE.row(session, {"account_id": account_id, "sequence": sequence})
    return None if row is None else Entry(*row)


def entry_rows(session: Session, account_id: str, first: int, last: int, limit: int) -> list[Entry]:
    """Return entries of an account by number, oldest first."""
    numbers = and_(ENTRIES.c.account_id == account_id, ENTRIES.c.sequence.between(first, last))
    found = session.execute(select(*_HEAD_C).where(numbers).order_by(ENTRIES.c.sequence).limit(limit))
    return [Entry(*row) for row in found]


def hold_of_job(session: Session, job_id: str, account_id: str) -> str | None:
    """Return the id of a job's hold on an account, if it has one."""
    row = _HOLD_OF_JOB.row(session, {"job_id": job_id, "account_id": account_id})
    return None if row is None else row[0]


def holds_of_job(session: Session, job_id: str) -> tuple[str, ...]:
    """Return the ids of all holds of a job, in the order of their accounts' ids."""
    return tuple(session.scalars(_HOLDS_OF_JOB.where(HOLDS.c.job_id == job_id)))


def write_entry(
    session: Session,
    account: Account,
    moves: Mapping[str, Any],
    entry: Entry,
    *,
    more_nano: int,
    new_hold: Hold | None = None,
    moved_hold: tuple[Hold, Mapping[str, Any]] | None = None,
) -> None:
    """Insert an entry, and move or insert the rows that it is about. On PostgreSQL that is one round trip.

    Args:
        session: in the transaction that holds the locks of the account and of a hold that is moved.
        account: as it was read; shows the new values afterwards.
        moves: columns of the account and their new values.
        more_nano: by how much spent and held grow together; above 0 it must fit into the capacity.
        new_hold: to insert.
        moved_hold: a hold as it was read, which shows the new values afterwards, and those.

    Raises:
        LedgerCorruption: a row is no longer what was read, or what the account reserves does not fit.
    """
    writes: list[tuple[Insert | Update, dict[str, Any]]] = []
    if new_hold is not None:
        writes.append((_ADD_HOLD, _prefixed("hold", new_hold)))
    reserves = more_nano > 0
    changes = _changes("account", account, _ACCOUNT_GUARDS, _ACCOUNT_COLUMNS, moves)
    if reserves:
        changes["more_nano"] = more_nano
    writes.append((_RESERVE if reserves else _MOVE_ACCOUNT, changes))
    writes.append((_ADD_ENTRY, _prefixed("entry", entry)))
    if moved_hold is not None:
        writes.append((_MOVE_HOLD, _changes("hold", moved_hold[0], _HOLD_GUARDS, _HOLD_COLUMNS, moved_hold[1])))
    touched = dict(zip((statement.table for statement, _ in writes), _execute(session, writes), strict=True))
    if touched[ACCOUNTS] != 1:
        raise corrupt("the account moved under its lock", account)
    if moved_hold is not None and touched[HOLDS] != 1:
        raise _moved_under_lock(moved_hold[0])
    _show(account, moves)
    if moved_hold is not None:
        _show(*moved_hold)


def move_hold(session: Session, reserved: Hold, moves: Mapping[str, Any]) -> None:
    """Write new values to a hold's row.

    Raises:
        LedgerCorruption: the row is no longer what was read.
    """
    changes = _changes("hold", reserved, _HOLD_GUARDS, _HOLD_COLUMNS, moves)
    if _execute(session, [(_MOVE_HOLD, changes)]) != [1]:
        raise _moved_under_lock(reserved)
    _show(reserved, moves)


def newest_at(session: Session) -> datetime | None:
    """Return when the newest entry of all logs was written: that of one of their heads. None where there is no log."""
    newest: datetime | None = session.scalar(_NEWEST)
    return newest


def add_account(session: Session, account: Account) -> None:
    """Insert an account."""
    _execute(session, [(_ADD_ACCOUNT, _prefixed("account", account))])


def close_account(session: Session, account_id: str, closed: bool) -> None:
    """Note whether an account takes no new data."""
    session.execute(update(ACCOUNTS).where(ACCOUNTS.c.id == account_id).values(closed=closed))


def keep_subjects_key_check(session: Session, account_id: str, check: str) -> tuple[str, str]:
    """Keep the check value of an account's subjects key unless it has one; return the account's name and its value."""
    first = ACCOUNTS.c.id == account_id, ACCOUNTS.c.subjects_key_check.is_(None)
    session.execute(update(ACCOUNTS).where(*first).values(subjects_key_check=check))
    kept = select(ACCOUNTS.c.name, ACCOUNTS.c.subjects_key_check).where(ACCOUNTS.c.id == account_id)
    name, value = session.execute(kept).one()
    return name, value


def add_entry(session: Session, entry: Entry) -> None:
    """Insert an entry."""
    _execute(session, [(_ADD_ENTRY, _prefixed("entry", entry))])


def _read(session: Session, statement: Prepared, entries: tuple[int, ...], **key: str) -> tuple[Any, ...] | None:
    """Return the only row, or None where its key is unknown. `entries` says where the columns of entries begin.

    PostgreSQL joins before it waits for a lock: where the row has moved during the wait, its new head or newest entry
    is not found. The second reading, with the locks in hand, finds it.
    """
    row = statement.row(session, key)
    if row is not None and any(row[start] is None for start in entries):
        row = statement.row(session, key)
    return row


def _account(columns: tuple[Any, ...]) -> tuple[Account, Entry | None]:
    """Return the account and the head of its log that a row of both holds."""
    account, head = Account(*columns[:_A]), _entry(columns[_A:])
    account.newest_at = None if head is None else head.created_at
    return account, head


def _entry(columns: tuple[Any, ...]) -> Entry | None:
    """Return the entry that an outer join found, if it found one."""
    return None if columns[0] is None else Entry(*columns)


def _prefixed(prefix: str, record: Account | Hold | Entry) -> dict[str, Any]:
    """Return the parameters of an `_add`."""
    return {f"{prefix}_{name}": getattr(record, name) for name in _stored(type(record))}


def _changes(
    prefix: str, row: Account | Hold, guards: tuple[str, ...], columns: tuple[str, ...], moves: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters of a `_move`: what was read, and what is to be there."""
    changes = {f"{prefix}_was_{name}": getattr(row, name) for name in ("id", *guards)}
    return changes | {f"{prefix}_to_{name}": moves.get(name, getattr(row, name)) for name in columns}


def _execute(session: Session, writes: Sequence[tuple[Insert | Update, dict[str, Any]]]) -> list[int]:
    """Return how many rows each write has touched. On SQLite, where a round trip is a call, they are made in turn."""
    if len(writes) > 1 and session.get_bind().dialect.name == "postgresql":
        parameters = {name: value for _, part in writes for name, value in part.items()}
        row = _together(*(statement for statement, _ in writes)).row(session, parameters)
        assert row is not None
        return list(row)
    return [_alone(statement).touched(session, parameters) for statement, parameters in writes]


def _show(row: Account | Hold, moves: Mapping[str, Any]) -> None:
    for name, value in moves.items():
        setattr(row, name, value)


def _moved_under_lock(reserved: Hold) -> LedgerCorruption:
    return LedgerCorruption("Ledger: a hold moved under its lock.", hold_id=reserved.id)
