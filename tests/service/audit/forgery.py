"""Forgeries of a ledger: changed bytes, and logs that were rewritten with correct hashes."""

import json
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from service.db.ledger_tables import Entry
from service.ledger.chain import GENESIS_HASH, body_hash, canonical_json
from tests.service.audit.book import LedgerBook

COLUMNS = tuple(Entry.__table__.columns.keys())
Change = Callable[[dict[str, Any]], Any]


def in_details(kind: str, change: Change, which: int | None = None) -> Change:
    """Change the details of every entry of a kind, or only of the one with a number, from 0."""
    numbers = count()

    def changed(body: dict[str, Any]) -> None:
        if body["kind"] == kind and which in (None, next(numbers)):
            change(body["details"])

    return changed


def stored_entries(session: Session, more: str = "") -> list[Row[Any]]:
    """Read entries as they are stored, details as text."""
    columns = ", ".join(f"CAST({name} AS TEXT) AS details" if name == "details" else name for name in COLUMNS)
    return list(session.execute(text(f"SELECT {columns} FROM entries {more} ORDER BY account_id, sequence")))


def with_other_byte(value: Any, dice: Random, *, sqlite: bool) -> Any:
    """Return a stored value with one byte changed, still of its type on PostgreSQL."""
    if isinstance(value, int):
        return value ^ (dice.randrange(1, 256) << 8 * dice.randrange(4))
    if not isinstance(value, str):
        return value + timedelta(microseconds=1 << dice.randrange(40))
    raw = bytearray(value.encode())
    at = dice.randrange(len(raw))
    raw[at] ^= dice.randrange(1, 128) if sqlite else 1
    return bytes(raw) if sqlite else raw.decode()


def store(session: Session, column: str, value: Any, row: Row[Any]) -> None:
    """Write a value into an entry; only the database's types are checked."""
    cast = {True: "CAST(:value AS TEXT)", False: ":value"}[isinstance(value, bytes)]
    if column == "details" and not isinstance(value, bytes):
        cast = "CAST(:value AS JSON)"
    statement = f"UPDATE entries SET {column} = {cast} WHERE account_id = :account_id AND sequence = :sequence"
    session.execute(text(statement), {"value": value, "account_id": row.account_id, "sequence": row.sequence})


def rewritten(book: LedgerBook, account_id: str, change: Change, until: int | None = None) -> list[str]:
    """Return SQL that changes the entries of a log, hashes them again, and corrects the account's row.

    Args:
        book: whose ledger.
        account_id: whose log.
        change: is given the body of each entry, to be changed in place.
        until: entries after this one are deleted.
    """
    rows = [dict(row._mapping) for row in book.read(stored_entries, f"WHERE account_id = '{account_id}'")]
    previous, last, statements = GENESIS_HASH, rows[0], []
    for row in rows[:until]:
        at = row["created_at"]
        moment = f"{at[:10]}T{at[11:]}+00:00" if isinstance(at, str) else at.isoformat(timespec="microseconds")
        last = {**row, "details": json.loads(row["details"]), "previous_hash": previous, "created_at": moment}
        last["version"] = 1
        del last["hash"]
        change(last)
        digest = body_hash(last)
        numbers = ("amount_nano", "capacity_nano", "spent_nano", "reserved_nano")
        said = canonical_json(last["details"]).decode().replace("'", "''").replace(":", "\\:")
        statements.append(
            f"UPDATE entries SET {', '.join(f'{name} = {last[name]}' for name in numbers)}, details = '{said}', "
            f"previous_hash = '{previous}', hash = '{digest}' "
            f"WHERE account_id = '{account_id}' AND sequence = {row['sequence']}"
        )
        previous = digest
    if until is not None:
        statements.append(f"DELETE FROM entries WHERE account_id = '{account_id}' AND sequence > {until}")
    balances = ", ".join(f"{name} = {last[name]}" for name in ("capacity_nano", "spent_nano", "reserved_nano"))
    update = f"UPDATE accounts SET {balances}, head_sequence = {last['sequence']}, head_hash = '{previous}'"
    return [*statements, f"{update} WHERE id = '{account_id}'"]
