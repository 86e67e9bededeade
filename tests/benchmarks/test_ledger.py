"""The ledger's benchmark: its long logs verify, its clients lose nothing, and missed bars are reported."""

from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks import ledger as benchmark
from benchmarks.ledger_databases import durability, fdatasync_ms
from benchmarks.ledger_log import fill, leave_armed, open_accounts
from service import ledger
from service.audit.verify import verify
from service.db.session import transaction


def test_a_long_log_goes_on_and_holds_that_wait_to_be_captured_are_the_ledgers_own(factory):
    lived, waits = open_accounts(factory, 2)
    fill(factory, lived, 42)
    benchmark.one_life(benchmark.running(factory), lived, benchmark.random.Random(1))
    armed = leave_armed(factory, waits, 3)
    failed = {"attempt": 1, "artifact_sha256": None, "reason": "failed", "now": datetime.now(UTC)}
    with transaction(factory) as session:
        ledger.capture(session, hold_id=armed[1], **failed)
    with transaction(factory, read_only=True, snapshot=True) as session:
        report = verify(session, trusted={})
        balance = ledger.get_account(session, lived)
    assert (report.entries, report.holds, report.findings) == (41 + 4 + 1 + 9 + 1, 11 + 3, ())
    assert balance.spent_nano > 0 == balance.reserved_nano


def test_everything_that_is_counted_is_in_the_log(sqlite_url, sqlite_factory):
    accounts = open_accounts(sqlite_factory, 3)
    run = benchmark.throughput(sqlite_url, accounts, processes=1, seconds=0.5)
    assert run["pairs"] > 0 < run["pairs_per_second"]
    assert 0 < run["p50_ms"] <= run["p99_ms"]
    benchmark.check(sqlite_url, accounts, run)
    with pytest.raises(RuntimeError, match="missing"):
        benchmark.check(sqlite_url, accounts, {**run, "pairs": run["pairs"] + 1})


def test_durability_is_the_services_own_and_a_database_without_it_is_refused(sqlite_url, tmp_path, monkeypatch):
    assert durability(sqlite_url) == {"journal_mode": "wal", "synchronous": "full"}
    assert fdatasync_ms(tmp_path) > 0
    monkeypatch.setattr("benchmarks.ledger_databases._SQLITE_SYNCHRONOUS", {2: "normal"})
    with pytest.raises(RuntimeError, match="not durable"):
        durability(sqlite_url)


def test_figures_below_a_bar_are_named():
    good = {"pairs_per_second": 150.0, "growth_ratio": 1.29, "verify_entries_per_second": 20_000.0}
    rows: list[dict[str, Any]] = [{"database": "sqlite", **good}, {"database": "postgresql", **good}]
    assert benchmark.missed(rows) == []
    rows[1] |= {"pairs_per_second": 149.9}
    assert benchmark.missed(rows) == ["postgresql pairs_per_second is 149.9, not >= 150"]
