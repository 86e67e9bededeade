"""Speed of the ledger on SQLite and PostgreSQL: concurrent clients, long logs, verification.

`python -m benchmarks.ledger --json FILE`. The server is OBSCURA_TEST_POSTGRES, or that of the usual local port; the
benchmark creates and drops its own databases, and refuses one whose commits would not survive a power cut.

A *pair* is two transactions: a hold for a new job, and the capture of another job's armed and charged hold. A *life* is
hold, fence, arm, charge and capture in five transactions, as a job takes them.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from benchmarks.ledger_databases import database, durability, fdatasync_ms
from benchmarks.ledger_log import COUNT_MAX, FILTER, fill, leave_armed, open_accounts, priced, stages
from benchmarks.results import Row, machine, parser_of, show, write_json
from obscura.wire.words import HoldState
from service import ledger
from service.audit.verify import verify
from service.db.base import new_id
from service.db.ledger_tables import Entry, Hold
from service.db.session import SessionFactory, make_engine, make_session_factory, open_sessions, transaction

SHORT, LONG = 1_000, 1_000_000
BATCH = 5  # lives measured on one log before the other has its turn
WARM_UP_SECONDS = 0.5  # fills caches and opens connections
PATIENCE_SECONDS = 120
ARMED_PER_SECOND = 600  # holds that wait to be captured, for all clients: more than they can capture
PROCESSES = {"sqlite": 1, "postgresql": 2}  # that share the clients, as threads
BARS = {"pairs_per_second": (">=", 150.0), "growth_ratio": ("<", 1.3), "verify_entries_per_second": (">=", 20_000.0)}
COLUMNS = (
    *("database", "pairs_per_second:.0f", "p50_ms:.1f", "p99_ms:.1f"),
    *("growth_ratio:.2f", "life_ms:.1f", "verify_entries_per_second:.0f"),
)
Step = Callable[[Session], Any]
Run = Callable[[Step], Any]  # in a transaction of its own


def hold(run: Run, account_id: str, planned: int, now: datetime) -> str:
    """Hold the price of a new job."""
    terms: dict[str, Any] = {"amount_nano": priced(planned).cost_nano, "priced_by": FILTER, "details": stages(planned)}
    hold_id: str = run(lambda s: ledger.hold(s, account_id=account_id, job_id=new_id("job"), now=now, **terms).id)
    return hold_id


def capture(run: Run, hold_id: str, now: datetime) -> None:
    """Capture a hold that attempt 1 has armed and charged."""
    terms: dict[str, Any] = {"artifact_sha256": "ab" * 32, "reason": "published", "attempt": 1, "now": now}
    run(lambda s: ledger.capture(s, hold_id=hold_id, **terms))


def one_life(run: Run, account_id: str, dice: random.Random) -> None:
    """Hold, fence, arm, charge, capture."""
    now, planned = datetime.now(UTC), dice.randint(1, COUNT_MAX)
    made = priced(dice.randint(1, planned))
    hold_id, event = hold(run, account_id, planned, now), made.event.to_json()
    own: dict[str, Any] = {"hold_id": hold_id, "attempt": 1, "now": now}
    run(lambda s: ledger.fence(s, **own))
    run(lambda s: ledger.arm(s, **own))
    run(lambda s: ledger.charge(s, **own, amount_nano=made.cost_nano, stage=made.name, event=event))
    capture(run, hold_id, now)


def running(factory: SessionFactory) -> Run:
    def run(step: Step) -> Any:
        with transaction(factory) as session:
            return step(session)

    return run


def process(url: str, clients: list[tuple[str, list[str]]], seconds: float, ready: Any, reports: Any) -> None:
    """Run clients (an account and its armed holds), each in a thread, on one engine.

    Report the end of the warm-up, and of each pair the times before, between and after its two transactions.
    """
    engine = make_engine(url, pool_size=len(clients))
    run, pairs = running(make_session_factory(engine)), list[tuple[float, float, float]]()
    ready.wait(PATIENCE_SECONDS)
    start = time.monotonic() + WARM_UP_SECONDS

    def make_pairs(account_id: str, armed: list[str]) -> None:
        dice = random.Random(account_id)
        while (began := time.monotonic()) < start + seconds:
            now = datetime.now(UTC)
            hold(run, account_id, dice.randint(1, COUNT_MAX), now)
            between = time.monotonic()
            capture(run, armed.pop(), now)  # IndexError: ARMED_PER_SECOND is too low for this machine
            pairs.append((began, between, time.monotonic()))

    threads = [threading.Thread(target=make_pairs, args=client) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.dispose()
    reports.put((start, pairs))


def throughput(url: str, accounts: list[str], *, processes: int, seconds: float) -> Row:
    """Run one client for each account; return pairs per second, and milliseconds of a transaction."""
    count = math.ceil(ARMED_PER_SECOND / len(accounts) * (seconds + WARM_UP_SECONDS))
    with open_sessions(url) as factory:
        clients = [(account_id, leave_armed(factory, account_id, count)) for account_id in accounts]
    spawning = multiprocessing.get_context("spawn")
    reports, ready = spawning.Queue(), spawning.Barrier(processes)
    children = [
        spawning.Process(target=process, args=(url, clients[n::processes], seconds, ready, reports))
        for n in range(processes)
    ]
    for child in children:
        child.start()
    starts, made = zip(*(reports.get(timeout=PATIENCE_SECONDS + 10 * seconds) for _ in children), strict=True)
    for child in children:
        child.join()
    start, pairs = max(starts), [pair for part in made for pair in part]
    measured = [pair for pair in pairs if pair[0] >= start]
    transactions = sorted(1e3 * (end - begin) for pair in measured for begin, end in pairwise(pair))
    return {
        "pairs_per_second": len(measured) / (max(pair[2] for pair in measured) - start),
        "p50_ms": transactions[len(transactions) // 2],
        "p99_ms": transactions[int(0.99 * len(transactions))],
        "pairs": len(pairs),
        "armed_before": count * len(accounts),
    }


def check(url: str, accounts: list[str], run: Row) -> None:
    """Raise unless every reported pair is in the log with both steps, and nothing else is held."""
    with open_sessions(url) as factory, transaction(factory, read_only=True) as session:
        is_open = Hold.state.in_((HoldState.HELD, HoldState.ARMED))
        open_holds = session.scalar(select(func.count()).select_from(Hold).where(is_open))
        entries = session.scalar(select(func.count()).select_from(Entry))
    expected = len(accounts) + 3 * run["armed_before"] + 2 * run["pairs"]
    if entries != expected or open_holds != run["armed_before"]:  # a pair opens one hold and ends one
        raise RuntimeError("a pair is missing a step")


def growth(urls: dict[int, str], lives: int) -> dict[int, float]:
    """Return the median milliseconds of a life on each log, measured in turns, so that noise affects both alike."""
    engines = {entries: make_engine(url, pool_size=1) for entries, url in urls.items()}
    factories = {entries: make_session_factory(engine) for entries, engine in engines.items()}
    accounts: dict[int, str] = {}
    for entries, engine in engines.items():
        (accounts[entries],) = open_accounts(factories[entries], 1)
        fill(factories[entries], accounts[entries], entries)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    spent: dict[int, list[float]] = {entries: [] for entries in urls}
    for turn in range(lives // BATCH + 1):
        for entries, factory in factories.items():
            run, dice = running(factory), random.Random(turn)
            for _ in range(BATCH):
                began = time.perf_counter()
                one_life(run, accounts[entries], dice)
                if turn > 0:  # the first turn fills caches
                    spent[entries].append(time.perf_counter() - began)
    for engine in engines.values():
        engine.dispose()
    return {entries: 1e3 * statistics.median(times) for entries, times in spent.items()}


def verified_per_second(url: str) -> float:
    """Verify the whole database, prices included, and return the entries read in a second."""
    began = time.perf_counter()
    with open_sessions(url) as factory, transaction(factory, read_only=True, snapshot=True) as session:
        report = verify(session, trusted={})
        seconds = time.perf_counter() - began
    if report.findings:
        raise RuntimeError(f"the benchmark's ledger does not verify: {report.findings[0]}")
    return report.entries / seconds


def measure(kind: str, options: argparse.Namespace, folder: Path) -> Row:
    """Return one database's figures, medians of the repeats."""
    runs = []
    for _ in range(options.repeats):
        with database(kind, folder) as url:
            settings = durability(url)
            with open_sessions(url) as factory:
                accounts = open_accounts(factory, options.clients)
            runs.append(throughput(url, accounts, processes=PROCESSES[kind], seconds=options.seconds))
            check(url, accounts, runs[-1])
    row: Row = {"database": kind} | {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    with database(kind, folder) as short, database(kind, folder) as long:
        lives = growth({SHORT: short, options.entries: long}, options.lives)
        row |= {"growth_ratio": lives[options.entries] / lives[SHORT], "life_ms": lives[SHORT]}
        row |= {"verify_entries_per_second": verified_per_second(long)}
    return row | {"durability": settings, "runs": runs}


def missed(rows: list[Row]) -> list[str]:
    """Return the figures that do not reach the bars."""
    return [
        f"{row['database']} {name} is {row[name]:.4g}, not {sign} {bar:g}"
        for row in rows
        for name, (sign, bar) in BARS.items()
        if not (row[name] >= bar if sign == ">=" else row[name] < bar)
    ]


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and, if asked, write the figures as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--databases", nargs="+", default=list(PROCESSES), choices=list(PROCESSES))
    parser.add_argument("--clients", type=int, default=16, help="each with an account of its own")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=3, help="the median is reported")
    parser.add_argument("--entries", type=int, default=LONG, help="of the long log")
    parser.add_argument("--lives", type=int, default=300, help="measured on each log")
    parser.add_argument("--folder", type=Path, help="of SQLite files; default: the system's temporary folder")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        facts = machine() | {"fdatasync_ms": fdatasync_ms(Path(folder)), "clients": options.clients}
        rows = [measure(kind, options, Path(folder)) for kind in options.databases]
    facts |= {"entries": [SHORT, options.entries], "seconds": options.seconds, "missed": missed(rows)}
    write_json(options.json, facts | {"rows": rows})
    show(rows, COLUMNS)
    for line in facts["missed"]:
        print(f"missed: {line}")


if __name__ == "__main__":
    main()
