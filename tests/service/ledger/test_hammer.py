"""Eight processes on one account, repeatedly killed, overspend, lose and double nothing; naive code does.

HAMMER_REQUESTS=N makes N requests instead of 300.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select, text

from obscura.wire.words import EntryKind
from service import ledger
from service.audit.verify import verify
from service.db.ledger_tables import Entry, Hold
from service.db.session import SessionFactory, open_sessions, transaction
from tests.service.ledger.hammer_worker import KILLS_MIN, read_journal, seconds_max

WORKER = "tests.service.ledger.hammer_worker"
PROCESSES = 8
REQUESTS = int(os.environ.get("HAMMER_REQUESTS", "300"))
SMALL_EPSILON = 0.0012  # 435 nano-units: too little for all jobs, so many are refused
SECONDS_MAX = 50 + seconds_max(REQUESTS)


def run_processes(warm: str, variant: str, url: str, folder: Path, requests: int, account_id: str = "-") -> list[Path]:
    """Run all processes at once and return their journals."""
    folder.mkdir()
    subprocess.run(
        [warm, "-m", WORKER, variant, url, str(folder), str(PROCESSES), str(requests), account_id],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=SECONDS_MAX,
        check=True,
    )
    return list(folder.iterdir())


@dataclass
class Told:
    """The answers to the processes' requests; a killed process has no answer to its last request."""

    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)
    maybe_charged: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    def read(self, path: Path) -> None:
        lines = read_journal(path)
        for number in range(0, len(lines), 2):
            asked = lines[number]
            what, amount = (asked["do"], asked["job"]), asked.get("amount", 0)
            answer: dict[str, Any] | None = lines[number + 1] if number + 1 < len(lines) else None
            if answer is None:
                self.unknown[what] += 1
                self.maybe_charged[asked["job"]] += amount * (asked["do"] == "charge")
            elif "refused" in answer:
                self.refused += 1
            else:
                self.done[what] += 1
                self.charged[asked["job"]] += amount * (asked["do"] == "charge")


def test_killed_processes_never_overspend_lose_or_double(factory, database_url, open_account, warm, tmp_path):
    account_id = open_account(factory, epsilon=SMALL_EPSILON)
    told = Told()
    journals = run_processes(warm, "safe", database_url, tmp_path / "journals", REQUESTS, account_id)
    for path in journals:
        told.read(path)

    with transaction(factory, read_only=True) as session:
        log = session.scalars(select(Entry).where(Entry.account_id == account_id).order_by(Entry.sequence)).all()
        balance = ledger.get_account(session, account_id)
        report = verify(session, trusted={})
        holds = session.execute(select(Hold.id, Hold.job_id, Hold.charged_nano)).all()
    jobs = {row.id: row.job_id for row in holds}
    charged = {row.job_id: row.charged_nano for row in holds}
    assert report.findings == ()
    assert told.done.total() + told.refused + told.unknown.total() >= REQUESTS
    assert len(journals) - 1 - PROCESSES >= KILLS_MIN  # one was written before there were several
    assert told.refused > 0  # the limit was really met
    # Every prefix of the log is admitted.
    assert all(entry.spent_nano + entry.reserved_nano <= entry.capacity_nano for entry in log)
    assert balance.spent_nano + balance.reserved_nano <= balance.capacity_nano
    # What was confirmed is in the log; nothing else is, but for requests that a kill cut off; and nothing is twice.
    kinds = {EntryKind.HOLD: "hold", EntryKind.ARM: "arm", EntryKind.CAPTURE: "capture", EntryKind.RETURN: "release"}
    written = Counter(
        (kinds[entry.kind], jobs[entry.hold_id]) for entry in log if entry.kind in kinds and entry.hold_id is not None
    )
    assert told.done.total() > 0
    for kind in ("hold", "capture", "release"):
        assert {what for what, times in written.items() if what[0] == kind and times > 1} == set()
        assert {what for what in told.done if what[0] == kind} <= set(written)
    assert set(written) <= set(told.done) | set(told.unknown)
    for job_id, amount in told.charged.items():
        assert amount <= charged.get(job_id, 0) <= amount + told.maybe_charged[job_id]
    captured = {job_id for kind, job_id in written if kind == "capture"}
    assert balance.spent_nano == sum(charged[job_id] for job_id in captured)


LIMIT = 60


@contextmanager
def naive_tables(url: str) -> Iterator[SessionFactory]:
    """Create two bare tables, without the ledger's checks, for the control."""
    with open_sessions(url) as factory:
        with transaction(factory) as session:
            for table in ("grants", "limits"):
                session.execute(text(f"DROP TABLE IF EXISTS {table}"))
                session.execute(text(f"CREATE TABLE {table} (amount INTEGER)"))
            session.execute(text("INSERT INTO limits VALUES (:limit)"), {"limit": LIMIT})
        yield factory


def granted(factory: SessionFactory) -> int:
    with transaction(factory, read_only=True) as session:
        total: int = session.execute(text("SELECT coalesce(sum(amount), 0) FROM grants")).scalar_one()
    return total


def test_read_then_write_in_default_transactions_overspends(database_url, warm, tmp_path):
    with naive_tables(database_url) as factory:
        journals = run_processes(warm, "unsafe", database_url, tmp_path / "journals", 40)
        assert granted(factory) == sum(read_journal(path)[0]["done"] for path in journals)
        assert granted(factory) > LIMIT
