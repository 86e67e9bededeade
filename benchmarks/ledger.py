"""Speed of the ledger on SQLite and PostgreSQL: jobs per second by concurrent clients, long logs, verification.

Run `python -m benchmarks.ledger --json FILE`; `--quick` takes a minute or two and looks at short logs. PostgreSQL is
taken from OBSCURA_TEST_POSTGRES, else from the usual local port; databases of its own are created and dropped. The code
is the service's own, and durability is as in production: the benchmark refuses a database whose commits would not
survive a power cut. Every transaction is committed before its time stops.

A *pair* is two transactions: a hold for a new job, and the capture of another job's hold, which waits armed and
charged. A *job* is two transactions as well: the hold; then fence, arm, one charge and capture together. A *life* is
those five steps in five transactions, as a job takes them, where each is durable before the next begins.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import func, select

from benchmarks.ledger_clients import Step, Work, one_job, throughput
from benchmarks.ledger_databases import database, durability, fdatasync_ms
from benchmarks.ledger_log import fill, open_accounts
from obscura.wire.words import HoldState
from service.audit.verify import verify
from service.db.ledger_tables import EntryRow, HoldRow
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction

SHORT, LONG = 1_000, 1_000_000
BATCH = 5  # lives measured on one log before the other has its turn
ENTRIES_OF_A_JOB = 4
OPEN = (HoldState.HELD, HoldState.ARMED)
# What is asked of two cores with 16 clients.
BARS = {
    "sqlite": {"pairs_per_second": (">=", 150.0), "p99_ms": ("<", 100.0), "growth_ratio": ("<", 1.3)},
    "postgresql": {"pairs_per_second": (">=", 300.0), "p99_ms": ("<", 100.0), "growth_ratio": ("<", 1.3)},
}
VERIFY_BAR = (">=", 20_000.0)
QUICK = {"seconds": 3.0, "repeats": 1, "entries": 20_000, "lives": 60}
ROWS = (
    ("pairs_per_second", "pairs a second"),
    ("p99_ms", "p99 of a transaction, ms"),
    ("p50_ms", "p50 of a transaction, ms"),
    ("pair_p99_ms", "p99 of a pair, ms"),
    ("one_account_pairs_per_second", "pairs a second, one account"),
    ("one_account_p99_ms", "p99 of a transaction, one account, ms"),
    ("jobs_per_second", "jobs a second"),
    ("lives_per_second", "lives a second"),
    ("life_transaction_p99_ms", "p99 of a transaction in a life, ms"),
    ("growth_ratio", "life on the long log / on the short"),
    ("verify_entries_per_second", "entries verified a second"),
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
                one_job(account_of[entries], dice, timed, together=False)
                if turn > 0:  # the first turn fills caches
                    spent[entries].append(time.perf_counter() - started)
    for engine in engines.values():
        engine.dispose()
    return {entries: 1e3 * statistics.median(times) for entries, times in spent.items()}


def verified_per_second(url: str) -> float:
    """Verify the whole database, prices included, and return the entries read in a second.

    Raises:
        RuntimeError: the benchmark's ledger does not verify.
    """
    engine = make_engine(url)
    started = time.perf_counter()
    with transaction(make_session_factory(engine), read_only=True, snapshot=True) as session:
        report = verify(session, trusted={})
    seconds = time.perf_counter() - started
    engine.dispose()
    if report.findings:
        raise RuntimeError(f"the benchmark's ledger does not verify: {report.findings[0]}")
    return report.entries / seconds


def check(url: str, accounts: list[str], work: Work, run: dict[str, float]) -> None:
    """Every pair or job that was reported is in the log with all its steps, and nothing else is held.

    Raises:
        RuntimeError: a step is missing.
    """
    engine = make_engine(url)
    with transaction(make_session_factory(engine), read_only=True) as session:
        open_holds = session.scalar(select(func.count()).select_from(HoldRow).where(HoldRow.state.in_(OPEN))) or 0
        entries = session.scalar(select(func.count()).select_from(EntryRow)) or 0
    engine.dispose()
    steps = 2 if work == "pair" else ENTRIES_OF_A_JOB
    expected = len(accounts) + 3 * run["armed_before"] + steps * run["jobs_in_all"]
    if entries != expected or open_holds != run["armed_before"]:  # a pair opens one hold and ends one
        raise RuntimeError("a job is missing a step")


def measure(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return one database's figures."""
    names: tuple[Work | Literal["one_account"], ...] = ("pair", "job", "life", "one_account")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    processes = options.processes[kind]
    for seed in range(options.repeats):
        for name in names:
            with database(kind, folder) as url:
                settings = durability(url)
                engine = make_engine(url)
                ids = open_accounts(make_session_factory(engine), 1 if name == "one_account" else options.accounts)
                engine.dispose()
                shape = {"clients": options.clients, "processes": processes, "seconds": options.seconds, "seed": seed}
                work: Work = "pair" if name == "one_account" else name
                run = throughput(url, ids, **shape, work=work)
                check(url, ids, work, run)
            found[name].append(run)
            print(f"{kind} {name}: " + ", ".join(f"{key} {value:.1f}" for key, value in run.items()), flush=True)
    pair, job, life, one = (
        {key: statistics.median(run[key] for run in runs) for key in runs[0]} for runs in found.values()
    )
    with database(kind, folder) as short, database(kind, folder) as long:
        cost = growth({SHORT: short, options.entries: long}, options.lives)
        verified = verified_per_second(long)
    return {
        "pairs_per_second": pair["per_second"],
        "p99_ms": pair["transaction_p99_ms"],
        "p50_ms": pair["transaction_p50_ms"],
        "pair_p99_ms": pair["job_p99_ms"],
        "jobs_per_second": job["per_second"],
        "lives_per_second": life["per_second"],
        "life_transaction_p99_ms": life["transaction_p99_ms"],
        "one_account_pairs_per_second": one["per_second"],
        "one_account_p99_ms": one["transaction_p99_ms"],
        "growth_ratio": cost[options.entries] / cost[SHORT],
        "life_ms_by_entries": cost,
        "verify_entries_per_second": verified,
        "processes": processes,
        "durability": settings,
        "runs": found,
    }


def missed(results: dict[str, Any]) -> list[str]:
    """Return what fell short of the bars."""
    found = [
        (f"{kind} {key}", results[kind][key], bar)
        for kind, bars in BARS.items()
        if kind in results
        for key, bar in bars.items()
    ]
    found.append(("verify_entries_per_second", results["verify_entries_per_second"], VERIFY_BAR))
    return [
        f"{name} is {value:.4g}, not {sign} {limit:g}"
        for name, value, (sign, limit) in found
        if not (value >= limit if sign == ">=" else value < limit)
    ]


def table(results: dict[str, Any]) -> str:
    """Return the figures as a table, a column for each database."""
    kinds = [kind for kind in BARS if kind in results]
    lines = ["".join([" " * 40, *(f"{kind:>14}" for kind in kinds)])]
    for key, title in ROWS:
        figures = (
            f"{results[kind][key]:14,.2f}" if key == "growth_ratio" else f"{results[kind][key]:14,.0f}"
            for kind in kinds
        )
        lines.append("".join([f"{title:40}", *figures]))
    return "\n".join([*lines, *(f"missed: {what}" for what in missed(results))])


def machine() -> dict[str, Any]:
    """Return what the figures were taken on."""
    names = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "machine": f"{platform.system()} {platform.machine()}, {names[0] if names else 'unknown processor'}",
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip(),
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help=f"other defaults: {QUICK}")
    parser.add_argument("--databases", nargs="+", default=list(BARS), choices=list(BARS))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--sqlite-processes", type=int, default=1, help="that share the clients, as threads")
    parser.add_argument("--postgresql-processes", type=int, default=2)
    parser.add_argument("--accounts", type=int, default=16, help="that the clients take in turn")
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
    before = os.getloadavg()[0]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results["fdatasync_ms"] = fdatasync_ms(Path(folder))
        for kind in options.databases:
            results[kind] = measure(kind, options, Path(folder))
    results["verify_entries_per_second"] = min(results[kind]["verify_entries_per_second"] for kind in options.databases)
    results |= machine() | {
        "load_average": {"before": before, "after": os.getloadavg()[0]},
        "clients": options.clients,
        "accounts": options.accounts,
        "entries": [SHORT, options.entries],
        "seeds": list(range(options.repeats)),
        "seconds": options.seconds,
        "missed": missed(results),
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
