"""The ledger's benchmark: its long logs are the ledger's own, its clients lose nothing, and it says what it missed."""

from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks import ledger as benchmark
from benchmarks.ledger_clients import throughput
from benchmarks.ledger_databases import durability, fdatasync_ms
from benchmarks.ledger_log import fill, leave_armed, open_accounts
from service import ledger
from service.audit.verify import verify
from service.db.session import transaction


def test_a_long_log_verifies_and_goes_on(factory):
    (account_id,) = open_accounts(factory, 1)
    fill(factory, account_id, 42)

    def timed(step: Any) -> Any:
        with transaction(factory) as session:
            return step(session)

    benchmark.one_life(account_id, benchmark.random.Random(1), timed)
    with transaction(factory, read_only=True, snapshot=True) as session:
        report = verify(session, trusted={})
        balance = ledger.balance(session, account_id)
    assert (report.entries, report.holds, report.findings) == (41 + 4, 11, ())
    assert balance.spent_nano > 0 == balance.held_nano


def test_everything_that_is_counted_is_in_the_log(sqlite_url, sqlite_factory):
    accounts = open_accounts(sqlite_factory, 2)
    run = throughput(sqlite_url, accounts, clients=3, processes=1, seconds=0.2, seed=0)
    assert run["pairs_in_all"] >= 3
    assert run["per_second"] > 0
    assert 0 < run["transaction_p50_ms"] <= run["transaction_p99_ms"] < run["pair_p99_ms"]
    benchmark.check(sqlite_url, accounts, run)
    with pytest.raises(RuntimeError, match="missing"):
        benchmark.check(sqlite_url, accounts, {**run, "pairs_in_all": run["pairs_in_all"] + 1})


def test_holds_that_wait_to_be_captured_are_the_ledgers_own(factory):
    (account_id,) = open_accounts(factory, 1)
    armed = leave_armed(factory, account_id, 3)
    failed = {"attempt": 1, "artifact_sha256": None, "reason": "failed", "now": datetime.now(UTC)}
    with transaction(factory) as session:
        ledger.capture(session, hold_id=armed[1], **failed)
    with transaction(factory, read_only=True, snapshot=True) as session:
        report = verify(session, trusted={})
    assert (report.entries, report.holds, report.findings) == (1 + 9 + 1, 3, ())


def test_durability_is_the_services_own_and_a_database_without_it_is_refused(sqlite_url, tmp_path, monkeypatch):
    assert durability(sqlite_url) == {"journal_mode": "wal", "synchronous": "full"}
    assert fdatasync_ms(tmp_path) > 0
    monkeypatch.setattr("benchmarks.ledger_databases._SQLITE_SYNCHRONOUS", {2: "normal"})
    with pytest.raises(RuntimeError, match="not durable"):
        durability(sqlite_url)


def test_what_is_missed_is_said():
    good = {"pairs_per_second": 300.0, "p99_ms": 99.9, "growth_ratio": 1.29, "verify_entries_per_second": 20_000.0}
    rows: list[dict[str, Any]] = [{"database": "sqlite", **good}, {"database": "postgresql", **good}]
    assert benchmark.missed(rows) == []
    rows[1] |= {"pairs_per_second": 299.9, "p99_ms": 100.0}
    slow = ["postgresql pairs_per_second is 299.9, not >= 300", "postgresql p99_ms is 100, not < 100"]
    assert benchmark.missed(rows) == slow
    assert benchmark.missed(rows[:1]) == []


def test_quick_changes_only_the_defaults():
    assert benchmark.parse(["--quick"]).entries == 20_000
    assert benchmark.parse(["--quick", "--entries", "7"]).entries == 7
    assert benchmark.parse([]).entries == 1_000_000
