"""Eight processes on one account: nothing is overspent, lost or doubled; and the naive way, kept, overspends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from service import ledger
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.db.tables import Entry, EntryKind

WORKER = Path(__file__).with_name("ledger_hammer_worker.py")
PROCESSES = 8
OPERATIONS = 25  # jobs of each process; about four ledger steps each
LEFT_FOR_HAMMER = 1200  # nano-units: too little for all jobs, so many are refused
SECONDS_MAX = 120


def run_processes(variant: str, url: str, account_id: str = "-", operations: int = OPERATIONS) -> list[dict[str, Any]]:
    """Let all processes loose together and return their reports."""
    finished = subprocess.run(
        [sys.executable, str(WORKER), variant, url, account_id, str(PROCESSES), str(operations)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        timeout=SECONDS_MAX,
        check=True,
    )
    reports: list[dict[str, Any]] = json.loads(finished.stdout)
    return reports


def whole_log(factory: SessionFactory, account_id: str) -> list[Entry]:
    """Read the log page by page; every page checks its hashes, links and numbering."""
    log: list[Entry] = []
    while True:
        with transaction(factory, read_only=True) as session:
            page = ledger.entries(session, account_id, len(log), 500)
        if not page:
            return log
        log.extend(page)


def test_eight_processes_never_overspend_lose_or_double(
    factory: SessionFactory, database_url: str, open_account: Callable[..., str], now: datetime
) -> None:
    account_id = open_account(factory)
    with transaction(factory) as session:
        ballast = ledger.balance(session, account_id).capacity_nano - LEFT_FOR_HAMMER
        ledger.hold(session, account_id=account_id, job_id="job_ballast", amount_nano=ballast, now=now)

    reports = run_processes("safe", database_url, account_id)

    log = whole_log(factory, account_id)
    with transaction(factory, read_only=True) as session:
        balance = ledger.balance(session, account_id)
    holds = {hold_id: amount for report in reports for hold_id, amount in report["holds"].items()}
    charged = {hold_id: amount for report in reports for hold_id, amount in report["charged"].items()}
    captured = [hold_id for report in reports for hold_id in report["captured"]]
    released = [hold_id for report in reports for hold_id in report["released"]]
    of_kind = {kind: [entry.hold_id or "" for entry in log if entry.kind is kind] for kind in EntryKind}
    assert sum(report["refused"] for report in reports) > 0  # the limit was really met
    assert len(captured) > 0
    # Every prefix of the log is admitted, and what was reported is there exactly once.
    assert all(entry.spent_nano + entry.held_nano <= entry.capacity_nano for entry in log)
    assert sorted(of_kind[EntryKind.HOLD][1:]) == sorted(holds)
    assert sorted(of_kind[EntryKind.CAPTURE]) == sorted(captured)
    assert sorted(of_kind[EntryKind.RELEASE]) == sorted(released)
    assert balance.spent_nano == sum(charged[hold_id] for hold_id in captured)
    open_holds = set(holds) - set(captured) - set(released)
    assert balance.held_nano == ballast + sum(holds[hold_id] for hold_id in open_holds)
    assert balance.spent_nano + balance.held_nano <= balance.capacity_nano
    for entry in log:  # charges: what the journal says is what the processes were told
        if entry.kind is EntryKind.CHARGE:
            assert entry.details["charged_nano"] <= charged[entry.hold_id or ""]


LIMIT = 60


@pytest.fixture
def naive_tables(database_url: str) -> str:
    """Two bare tables, without the ledger's checks, for the control."""
    engine = make_engine(database_url)
    with transaction(make_session_factory(engine)) as session:
        session.execute(text("DROP TABLE IF EXISTS grants"))
        session.execute(text("DROP TABLE IF EXISTS limits"))
        session.execute(text("CREATE TABLE grants (amount INTEGER)"))
        session.execute(text("CREATE TABLE limits (amount INTEGER)"))
        session.execute(text("INSERT INTO limits VALUES (:limit)"), {"limit": LIMIT})
    engine.dispose()
    return database_url


def granted(factory: SessionFactory) -> int:
    with transaction(factory, read_only=True) as session:
        total: int = session.execute(text("SELECT coalesce(sum(amount), 0) FROM grants")).scalar_one()
    return total


def test_read_then_write_in_default_transactions_overspends(naive_tables: str, factory: SessionFactory) -> None:
    reports = run_processes("unsafe", naive_tables, operations=40)
    assert granted(factory) == sum(report["granted"] for report in reports)
    assert granted(factory) > LIMIT


def test_the_same_code_on_our_sqlite_engine_stops_at_the_limit(sqlite_url: str) -> None:
    engine = make_engine(sqlite_url)
    factory = make_session_factory(engine)
    with transaction(factory) as session:
        session.execute(text("CREATE TABLE grants (amount INTEGER)"))
        session.execute(text("CREATE TABLE limits (amount INTEGER)"))
        session.execute(text("INSERT INTO limits VALUES (:limit)"), {"limit": LIMIT})
    run_processes("unsafe-on-our-engine", sqlite_url, operations=20)
    assert granted(factory) == LIMIT
    engine.dispose()
