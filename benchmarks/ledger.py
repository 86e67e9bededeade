"""Speed of the ledger on SQLite and PostgreSQL: transactions of concurrent clients, long logs, verification.

Run `python -m benchmarks.ledger --json FILE`; `--quick` takes a minute or two and looks at short logs. PostgreSQL is
taken from OBSCURA_TEST_POSTGRES, else from the usual local port; databases of its own are created and dropped. The code
is the service's own; a database whose commits would not survive a power cut is refused.

A *pair* is two transactions: a hold for a new job, and the capture of another job's armed and charged hold. A *life* is
hold, fence, arm, charge and capture in five transactions, as a job takes them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from benchmarks.ledger_clients import Step, one_life, throughput
from benchmarks.ledger_databases import database, durability, fdatasync_ms
from benchmarks.ledger_log import fill, open_accounts
from benchmarks.results import Row, machine, parser_of, show, write_json
from obscura.wire.words import HoldState
from service.audit.verify import verify
from service.db.ledger_tables import Entry, Hold
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction

SHORT, LONG = 1_000, 1_000_000
BATCH = 5  # lives measured on one log before the other has its turn
OPEN = (HoldState.HELD, HoldState.ARMED)
# What is asked of two cores with 16 clients.
BARS = {
    "sqlite": {"pairs_per_second": (">=", 150.0), "p99_ms": ("<", 100.0), "growth_ratio": ("<", 1.3)},
    "postgresql": {"pairs_per_second": (">=", 300.0), "p99_ms": ("<", 100.0), "growth_ratio": ("<", 1.3)},
}
VERIFY_BAR = (">=", 20_000.0)
QUICK = {"seconds": 3.0, "repeats": 1, "entries": 20_000, "lives": 60}
COLUMNS = (
    *("database", "pairs_per_second:.0f", "p50_ms:.1f", "p99_ms:.1f", "one_account_pairs_per_second:.0f"),
    *("one_account_p99_ms:.1f", "growth_ratio:.2f", "verify_entries_per_second:.0f"),
)


def growth(urls: dict[int, str], lives: int) -> dict[int, float]:
    """Return the median milliseconds of a life on each log, measured in turns so that noise meets both alike."""
    engines = {entries: make_engine(url, pool_size=1) for entries, url in urls.items()}
    factories = {entries: make_session_factory(engine) for entries, engine in engines.items()}
    spent: dict[int, list[float]] = {entries: [] for entries in urls}
    account_of: dict[int, str] = {}
    for entries, engine in engines.items():
        (account_of[entries],) = open_accounts(factories[entries], 1)
        fill(factories[entries], account_of[entries], entries)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    for turn in range(lives // BATCH + 1):
        for entries, factory in factories.items():

            def timed(step: Step, factory: SessionFactory = factory) -> Any:
                with transaction(factory) as session:
                    return step(session)

            dice = random.Random(turn)
            for _ in range(BATCH):
                started = time.perf_counter()
                one_life(account_of[entries], dice, timed)
                if turn > 0:  # the first turn fills caches
                    spent[entries].append(time.perf_counter() - started)
    for engine in engines.values():
        engine.dispose()
    return {entries: 1e3 * statistics.median(times) for entries, times in spent.items()}


def verified_per_second(url: str) -> float:
    """Verify the whole database, prices included, and return the entries read in a second."""
    engine = make_engine(url)
    started = time.perf_counter()
    with transaction(make_session_factory(engine), read_only=True, snapshot=True) as session:
        report = verify(session, trusted={})
    seconds = time.perf_counter() - started
    engine.dispose()
    if report.findings:
        raise RuntimeError(f"the benchmark's ledger does not verify: {report.findings[0]}")
    return report.entries / seconds


def check(url: str, accounts: list[str], run: dict[str, float]) -> None:
    """Raise unless every reported pair is in the log with both steps, and nothing else is held."""
    engine = make_engine(url)
    with transaction(make_session_factory(engine), read_only=True) as session:
        open_holds = session.scalar(select(func.count()).select_from(Hold).where(Hold.state.in_(OPEN))) or 0
        entries = session.scalar(select(func.count()).select_from(Entry)) or 0
    engine.dispose()
    expected = len(accounts) + 3 * run["armed_before"] + 2 * run["pairs_in_all"]
    if entries != expected or open_holds != run["armed_before"]:  # a pair opens one hold and ends one
        raise RuntimeError("a pair is missing a step")


def measure(kind: str, options: argparse.Namespace, folder: Path) -> Row:
    """Return one database's figures, medians of the repeats."""
    runs: dict[str, list[dict[str, float]]] = {"own": [], "one": []}
    processes = options.processes[kind]
    for seed in range(options.repeats):
        for name, found in runs.items():
            with database(kind, folder) as url:
                settings = durability(url)
                engine = make_engine(url)
                ids = open_accounts(make_session_factory(engine), 1 if name == "one" else options.clients)
                engine.dispose()
                shape = {"clients": options.clients, "processes": processes, "seconds": options.seconds, "seed": seed}
                found.append(throughput(url, ids, **shape))
                check(url, ids, found[-1])
    own, one = ({key: statistics.median(run[key] for run in each) for key in each[0]} for each in runs.values())
    with database(kind, folder) as short, database(kind, folder) as long:
        cost = growth({SHORT: short, options.entries: long}, options.lives)
        verified = verified_per_second(long)
    return {
        "database": kind,
        "pairs_per_second": own["per_second"],
        "p99_ms": own["transaction_p99_ms"],
        "p50_ms": own["transaction_p50_ms"],
        "one_account_pairs_per_second": one["per_second"],
        "one_account_p99_ms": one["transaction_p99_ms"],
        "growth_ratio": cost[options.entries] / cost[SHORT],
        "life_ms_by_entries": cost,
        "verify_entries_per_second": verified,
        "durability": settings,
        "runs": runs,
    }


def missed(rows: list[Row]) -> list[str]:
    """Return what fell short of the bars."""
    return [
        f"{row['database']} {key} is {row[key]:.4g}, not {sign} {limit:g}"
        for row in rows
        for key, (sign, limit) in {**BARS[row["database"]], "verify_entries_per_second": VERIFY_BAR}.items()
        if not (row[key] >= limit if sign == ">=" else row[key] < limit)
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"other defaults: {QUICK}")
    parser.add_argument("--databases", nargs="+", default=list(BARS), choices=list(BARS))
    parser.add_argument("--clients", type=int, default=16, help="each with an account of its own")
    parser.add_argument("--sqlite-processes", type=int, default=1, help="that share the clients, as threads")
    parser.add_argument("--postgresql-processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=3, help="the median is reported")
    parser.add_argument("--entries", type=int, default=LONG, help="of the long log")
    parser.add_argument("--lives", type=int, default=300, help="measured on each log")
    parser.add_argument("--folder", type=Path, help="where SQLite files go; default: the system's temporary folder")
    if parser.parse_args(arguments).quick:
        parser.set_defaults(**QUICK)
    options = parser.parse_args(arguments)
    options.processes = {"sqlite": options.sqlite_processes, "postgresql": options.postgresql_processes}
    return options


def main() -> None:
    """Measure, print and, where asked, write the figures as JSON."""
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        facts = machine() | {"fdatasync_ms": fdatasync_ms(Path(folder)), "clients": options.clients}
        rows = [measure(kind, options, Path(folder)) for kind in options.databases]
    facts |= {"entries": [SHORT, options.entries], "seconds": options.seconds, "missed": missed(rows)}
    write_json(options.json, facts | {"rows": rows})
    show(rows, COLUMNS)
    for what in facts["missed"]:
        print(f"missed: {what}")


if __name__ == "__main__":
    main()
