"""Long logs for the ledger's benchmark: valid chains, hash for hash as the ledger writes them, inserted in bulk."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import Table, insert, update

from obscura.wire.words import EntryKind, HoldState
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Stage
from service import ledger
from service.db.base import new_id
from service.db.ledger_tables import Account, Entry, Hold
from service.db.session import SessionFactory, transaction
from service.ledger.chain import canonical_json, entry_hash

ROWS_AT_ONCE = 20_000
EPSILON, DELTA = 8.0, 1e-5
COUNT_MAX = 20  # of the releases that a job plans
EVENT = GaussianEvent(sensitivity=1.0, stddev=5000.0)  # so little that the budget outlasts the benchmark
ACCOUNTS, ENTRIES, HOLDS = (cast(Table, table.__table__) for table in (Account, Entry, Hold))
FILTER = open_filter(EPSILON, DELTA)
_UNIT_NANO = FILTER.cost_nano(EVENT)


def priced(count: int) -> Stage:
    """Return a plan's only stage: `count` releases with their price."""
    return Stage("votes", dataclasses.replace(EVENT, count=count), count * _UNIT_NANO)


def stages(count: int) -> dict[str, Any]:
    """Return the details of a hold's entry, as long as those of a training."""
    return {
        "recipe": "datalens",
        "dataset_id": "ds_aaaaaaaaaaaaaaaaaaaa",
        "epsilon": 1.0,
        "plan_sha256": "cd" * 32,
        "stages": [priced(count).to_json()],
    }


def open_accounts(factory: SessionFactory, count: int) -> list[str]:
    """Open accounts and return their ids."""
    terms: dict[str, Any] = {"owner": "benchmark", "epsilon": EPSILON, "delta": DELTA}
    terms |= {"unit": "record", "adjacency": "add_remove"}
    with transaction(factory) as session:
        names = [new_id("name") for _ in range(count)]
        return [ledger.open_account(session, name=name, now=datetime.now(UTC), **terms).id for name in names]


def fill(factory: SessionFactory, account_id: str, entries: int) -> None:
    """Lengthen an account's log to `entries` (or up to three fewer) by jobs that were captured."""
    with transaction(factory, read_only=True) as session:
        length = ledger.get_account(session, account_id).head_sequence
    _append_jobs(factory, account_id, (entries - length) // 4, captured=True)


def leave_armed(factory: SessionFactory, account_id: str, count: int) -> list[str]:
    """Add `count` holds that attempt 1 has armed and charged, but not captured; return their ids."""
    return _append_jobs(factory, account_id, count, captured=False)


def _append_jobs(factory: SessionFactory, account_id: str, count: int, *, captured: bool) -> list[str]:
    ids: list[str] = []
    holds: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    names = ("head_sequence", "head_hash", "capacity_nano", "spent_nano", "reserved_nano")
    with transaction(factory) as session:
        account = ledger.lock_account(session, account_id)
        head = {name: getattr(account, name) for name in names}
        for _ in range(count):
            hold, of_hold = _job(account_id, head, captured=captured)
            ids.append(hold["id"])
            holds.append(hold)
            entries.extend(of_hold)
            if len(entries) >= ROWS_AT_ONCE:
                _write(session, holds, entries)
        _write(session, holds, entries)
        session.execute(update(ACCOUNTS).where(ACCOUNTS.c.id == account_id).values(**head))
    return ids


def _job(account_id: str, head: dict[str, Any], *, captured: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the hold's row and its entries; moves `head` forward."""
    hold_id, job_id, now = new_id("hold"), new_id("job"), datetime.now(UTC)
    held, made = priced(2), priced(1)
    armed = {"attempt": 1, "hold_nano": held.cost_nano, "charged_nano": 0}
    charged = {**armed, "charged_nano": made.cost_nano, "stage": made.name, "event": made.event.to_json()}
    returned = {"returned_nano": held.cost_nano - made.cost_nano}
    ended = {"attempt": 1, "artifact_sha256": "ab" * 32, "reason": "published", **returned}
    steps: list[tuple[EntryKind, int, int, int, dict[str, Any]]] = [
        (EntryKind.HOLD, held.cost_nano, 0, held.cost_nano, stages(2)),
        (EntryKind.ARM, 0, 0, 0, armed),
        (EntryKind.CHARGE, made.cost_nano, 0, 0, charged),
        (EntryKind.CAPTURE, made.cost_nano, made.cost_nano, -held.cost_nano, ended),
    ][: 4 if captured else 3]
    written = []
    for kind, amount, spent_change, held_change, details in steps:
        head["spent_nano"] += spent_change
        head["reserved_nano"] += held_change
        entry = Entry(
            account_id=account_id,
            sequence=head["head_sequence"] + 1,
            kind=kind,
            hold_id=hold_id,
            job_id=job_id,
            amount_nano=amount,
            capacity_nano=head["capacity_nano"],
            spent_nano=head["spent_nano"],
            reserved_nano=head["reserved_nano"],
            details=details,
            previous_hash=head["head_hash"],
            created_at=now,
        )
        entry.hash = entry_hash(entry)
        head |= {"head_sequence": entry.sequence, "head_hash": entry.hash}
        written.append({column.name: getattr(entry, column.name) for column in ENTRIES.columns})
    hold = {
        "id": hold_id,
        "account_id": account_id,
        "job_id": job_id,
        "state": HoldState.CAPTURED if captured else HoldState.ARMED,
        "amount_nano": held.cost_nano,
        "charged_nano": made.cost_nano,
        "captured_nano": made.cost_nano if captured else 0,
        "attempt": 1,
        "armed_attempt": 1,
        "last_sequence": head["head_sequence"],
        "created_at": now,
        "updated_at": now,
    }
    return hold, written


def _write(session: Any, holds: list[dict[str, Any]], entries: list[dict[str, Any]]) -> None:
    if not entries:
        return
    if session.get_bind().dialect.name == "sqlite":
        session.execute(insert(HOLDS), holds)
        session.execute(insert(ENTRIES), entries)
    else:
        for table, rows in ((HOLDS, holds), (ENTRIES, entries)):
            names = [column.name for column in table.columns]
            statement = f"COPY {table.name} ({', '.join(names)}) FROM STDIN"
            with session.connection().connection.cursor().copy(statement) as copy:
                for row in rows:
                    values = [row[name] for name in names]
                    copy.write_row([canonical_json(it).decode() if isinstance(it, dict) else it for it in values])
    holds.clear()
    entries.clear()
