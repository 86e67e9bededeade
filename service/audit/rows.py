"""Read the ledger's tables for verification: stored values unconverted, and JSON as the text that was hashed.

A conversion could hide a changed byte, so the statements are plain SQL that reads enums and times as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from sqlalchemy import JSON, Boolean, Column, Row, Table, bindparam, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from service.audit.findings import Fault, Finding, FindingCode
from service.audit.replay import Line
from service.db.base import CanonicalJson, UtcDateTime
from service.db.ledger_tables import Account

PAGE_ROWS = 5000
_ROWS_PER_QUERY = 500
_BEFORE_ALL = -(2**63)  # also reads rows that someone inserted before the first
_TIME_CHARACTERS = len("2030-01-02 03:04:05.678901")
_decoder = json.JSONDecoder()

_ENTRY = (
    "e.sequence, e.kind, e.hold_id, e.job_id, e.amount_nano, e.capacity_nano, e.spent_nano, e.reserved_nano, "
    "{details}, e.previous_hash, e.hash, {created_at}, e.account_id"
)
# PostgreSQL's times in SQLite's format; years BC keep the suffix BC, so they are rejected.
_POSTGRESQL_TIME = "replace(to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.USBC'), 'AD', '')"
_CHECKED_TABLES = ("accounts", "entries", "holds", "checkpoints", "jobs", "releases", "decisions")
_APPEND_ONLY = ("entries", "checkpoints", "audit_events")
_TRIGGERS = {"sqlite": ("no_update", "no_delete", "no_replace"), "postgresql": ("no_update_delete", "no_truncate")}
_STANDING = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') "
    "AND tgrelid IN ({tables})",
}
_DAMAGES_MAX = 10  # per table


class EntryReader:
    """Reads entries. Every method raises Fault if an entry cannot be parsed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        if _on_sqlite(session):
            # If SQLite can, it reads a column from the index instead of the row. The join forces it to read the row.
            # The plus sign prevents a scan of the whole account for one job.
            columns = _ENTRY.format(details="e.details", created_at="e.created_at")
            rows, place, plus = "entries AS place CROSS JOIN entries AS e ON e.rowid = place.rowid", "place", "+"
        else:
            columns = _ENTRY.format(details="CAST(e.details AS TEXT)", created_at=_time(session, "e.created_at"))
            rows, place, plus = "entries AS e", "e", ""
        query, ordered = f"SELECT {columns} FROM {rows} WHERE", f"ORDER BY {place}.sequence"
        account = f"{place}.account_id = :account_id AND {place}.sequence"
        self._after = text(f"{query} {account} > :after {ordered} LIMIT :rows")
        self._one = text(f"{query} {account} = :sequence")
        self._about = text(f"{query} {place}.job_id = :job_id AND {plus}{account} <= :until {ordered}")

    def after(self, account_id: str, sequence: int) -> Iterator[Line]:
        """Yield an account's entries after a sequence number, in order; 0 begins with the first.

        If the database cannot read further, raise a Fault that names the last readable entry.
        """
        after, count = sequence or _BEFORE_ALL, PAGE_ROWS
        while True:
            try:
                with savepoint(self._session):
                    rows = self._rows(self._after, account_id, after=after, rows=count)
            except DBAPIError as error:
                # `with_marks` handles text that cannot be decoded.
                if error.connection_invalidated or "decode" in str(error.orig).lower():
                    raise
                if count == 1:
                    last = max(after, 0)
                    where = f"beyond entry {last}" if last else "at all"
                    message = f"entry {last + 1} cannot be read: the log could not be read {where}. The rest is unknown"
                    raise Fault(FindingCode.LOG_UNREADABLE, message, last + 1) from error
                count = max(count // 10, 1)  # smaller pages get closer to the damage
                continue
            if not rows:
                return
            for row in rows:
                yield _line(account_id, row)
            after = rows[-1][0]

    def one(self, account_id: str, sequence: int) -> Line | None:
        """Return the entry with this number, or None."""
        rows = self._rows(self._one, account_id, sequence=sequence)
        return _line(account_id, rows[0]) if rows else None

    def about(self, account_id: str, job_id: str, until: int) -> list[Line]:
        """Return the entries about a job up to a sequence number, in order."""
        return [_line(account_id, row) for row in self._rows(self._about, account_id, job_id=job_id, until=until)]

    def _rows(self, statement: Any, account_id: str, **values: Any) -> Sequence[Row[Any]]:
        return self._session.execute(statement, {"account_id": account_id, **values}).all()


@contextmanager
def savepoint(session: Session) -> Iterator[None]:
    """Run statements in a savepoint, so that an error on PostgreSQL does not abort the transaction."""
    with nullcontext() if _on_sqlite(session) else session.begin_nested():
        yield


def account_rows(session: Session) -> Iterator[Row[Any]]:
    """Yield the account rows, ordered by id."""
    return _rows_after(session, Account.metadata.tables["accounts"], "id", "")


def checkpoint_rows(session: Session, after: int) -> Iterator[Row[Any]]:
    """Yield the checkpoint rows after a sequence number, in order; 0 begins with the first."""
    return _rows_after(session, Account.metadata.tables["checkpoints"], "sequence", after or _BEFORE_ALL)


def _rows_after(session: Session, table: Table, key: str, after: Any) -> Iterator[Row[Any]]:
    columns = _columns(session, table)
    page = text(f"SELECT {columns} FROM {table.name} WHERE {key} > :after ORDER BY {key} LIMIT {_ROWS_PER_QUERY}")
    while rows := session.execute(page, {"after": after}).all():
        yield from rows
        after = getattr(rows[-1], key)


class RowReader:
    """Reads rows of any table by a key column: enums as text, times in their hashed form, JSON parsed.

    A value of the wrong type for its column is returned in a list, so it equals no expected value.
    """

    def __init__(self, session: Session, table: Table, key: str = "id") -> None:
        self._session, self._columns, self._key = session, list(table.columns), key
        query = f"SELECT {_columns(session, table)} FROM {table.name} WHERE {key} IN :keys"
        self._by_key = text(query).bindparams(bindparam("keys", expanding=True))

    def by(self, keys: Iterable[object]) -> dict[str, dict[str, Any]]:
        """Return the existing rows by key."""
        wanted = sorted({key for key in keys if isinstance(key, str)})
        rows: dict[str, dict[str, Any]] = {}
        for start in range(0, len(wanted), _ROWS_PER_QUERY):
            for row in self._session.execute(self._by_key, {"keys": wanted[start : start + _ROWS_PER_QUERY]}):
                read = zip(self._columns, row, strict=True)
                values = {column.name: self._value_of(column, value) for column, value in read}
                rows[str(values[self._key])] = values
        return rows

    def _value_of(self, column: Column[Any], value: Any) -> Any:
        if value is None:
            return None
        if isinstance(column.type, UtcDateTime):
            return moment(value) or [str(value)]
        if isinstance(column.type, Boolean):
            return bool(value) if value in (0, 1) else [str(value)]
        if isinstance(column.type, JSON | CanonicalJson):
            try:
                return json.loads(value)
            except (TypeError, ValueError, RecursionError):
                return [str(value)]
        return value


def read_object(stored: Any) -> dict[str, Any]:
    """Return a stored JSON object, or an empty dict for any other value."""
    try:
        value = json.loads(stored)
    except (TypeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


@contextmanager
def with_marks(session: Session) -> Iterator[None]:
    """On SQLite, read invalid UTF-8 as U+FFFD, which no row of the ledger contains."""
    connection: Any = session.connection().connection.driver_connection
    usual, connection.text_factory = connection.text_factory, lambda stored: stored.decode(errors="replace")
    try:
        yield
    finally:
        connection.text_factory = usual


def moment(stored: object) -> str | None:
    """Return a stored time in the form that is hashed; None if the value is not a stored time."""
    if type(stored) is not str or len(stored) != _TIME_CHARACTERS or stored[10] != " ":
        return None
    return f"{stored[:10]}T{stored[11:]}+00:00"


def find_missing_triggers(session: Session) -> Iterator[Finding]:
    """Yield a finding for each dropped or disabled trigger of an append-only table."""
    dialect = session.get_bind().dialect.name
    named = ", ".join(f"'{table}'::regclass" for table in _APPEND_ONLY)
    standing = set(session.scalars(text(_STANDING[dialect].format(tables=named))))
    for table in _APPEND_ONLY:
        for name in _TRIGGERS[dialect]:
            if f"{table}_{name}" not in standing:
                message = f"The trigger {table}_{name} is missing or disabled: rows of {table} can be changed."
                yield Finding(FindingCode.TRIGGER_MISSING, message)


def find_damage(session: Session) -> Iterator[Finding]:
    """Yield the errors that SQLite's integrity check finds in the ledger's tables."""
    if not _on_sqlite(session):
        return
    for table in _CHECKED_TABLES:
        for (fault,) in session.execute(text(f"PRAGMA integrity_check('{table}')")).all()[:_DAMAGES_MAX]:
            if fault != "ok":
                yield Finding(FindingCode.DATABASE_DAMAGED, f"The database file is damaged in {table}: {fault}.")


def _on_sqlite(session: Session) -> bool:
    return bool(session.get_bind().dialect.name == "sqlite")


def _columns(session: Session, table: Table) -> str:
    named = []
    for column in table.columns:
        sql = column.name
        if isinstance(column.type, JSON | CanonicalJson):
            sql = f"CAST({sql} AS TEXT)"
        elif isinstance(column.type, UtcDateTime):
            sql = _time(session, sql)
        named.append(f"{sql} AS {column.name}")
    return ", ".join(named)


def _time(session: Session, column: str) -> str:
    return column if _on_sqlite(session) else _POSTGRESQL_TIME.format(column)


def _line(account_id: str, row: Sequence[Any]) -> Line:
    try:
        written = row[8]
        details, end = _decoder.raw_decode(written)
        created_at = moment(row[11])
        if type(details) is not dict or end != len(written) or created_at is None or row[12] != account_id:
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise Fault(FindingCode.HASH_MISMATCH, "has an invalid format: it was changed after it was written") from None
    return Line._make((*row[:8], details, row[9], row[10], created_at, written))
