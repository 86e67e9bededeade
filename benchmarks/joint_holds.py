"""Trainings on several accounts, asked for at once over HTTP: is anything overspent, or admitted by half?

Run `python -m benchmarks.joint_holds --json FILE` (`scripts/with_services.py` starts a PostgreSQL). Several API
processes serve one database; threads ask for trainings on one to four of its accounts, named in any order, and cancel
some of them again, until the accounts have nothing left and after. Then every row is read, and the ledger verified.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from benchmarks.ledger_databases import database
from obscura.wire.words import DatasetState, Visibility
from service import ledger
from service.audit.signing import trusted_keys
from service.audit.verify import verify
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import FurtherDataset, Job
from service.db.ledger_tables import EntryRow, HoldRow
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.settings import Settings

THREADS, TOGETHER_MAX = 8, 4
CANCELLED = 0.3  # of what was accepted
EPSILONS = (0.1, 0.2, 0.4)
START_SECONDS, ANSWER_SECONDS = 120.0, 120.0


@contextmanager
def api_process(url: str, data_dir: Path) -> Iterator[str]:
    """Run an API process, and yield its address once it answers."""
    told = {"DATA_DIR": str(data_dir), "DATABASE_URL": url, "MODE": "celery", "REQUESTS_PER_MINUTE": str(10**6)}
    environment = os.environ | {f"OBSCURA_{name}": value for name, value in told.items()}
    command = [sys.executable, "-m", "scripts.api_process"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as api:
        try:
            assert api.stdout is not None
            address = f"http://127.0.0.1:{int(api.stdout.readline())}"
            until = time.monotonic() + START_SECONDS
            while not _is_ready(address):
                assert time.monotonic() < until, "the service does not start"
                time.sleep(0.1)
            yield address
        finally:
            api.terminate()


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/v1/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def lay_in(factory: SessionFactory, accounts: int) -> list[str]:
    """Open accounts of three kinds of terms, each with a dataset; returns the datasets."""
    now, dataset_ids = datetime.now(UTC), []
    with transaction(factory) as session:
        for number in range(accounts):
            epsilon, delta = ((2.0, 1e-5), (3.0, 1e-6), (1.0, 1e-5))[number % 3]
            terms = {"name": f"cohort {number}", "owner": "clinic", "unit": "record", "adjacency": "add_remove"}
            account = ledger.open_account(session, **terms, epsilon=epsilon, delta=delta, now=now)
            dataset = Dataset(
                id=new_id("ds"),
                account_id=account.id,
                name=f"scans {number}",
                visibility=Visibility.PRIVATE,
                classes=["well", "sick"],
                height=28,
                width=28,
                channels=1,
                records_declared=1000,
                state=DatasetState.READY,
                content_sha256="0" * 64,
                content_bytes=1,
                created_at=now,
                ready_at=now,
            )
            session.add(dataset)
            dataset_ids.append(dataset.id)
    return dataset_ids


def ask(address: str, token: str, dataset_ids: list[str], requests: int, seed: int, answers: Counter[str]) -> None:
    """Ask for trainings, and cancel some."""
    dice, made = random.Random(seed), 0
    with httpx.Client(base_url=address, timeout=ANSWER_SECONDS, headers={"Authorization": f"Bearer {token}"}) as http:
        while made < requests:
            first, *further = dice.sample(dataset_ids, dice.randint(1, TOGETHER_MAX))
            body = {"dataset_id": first, "recipe": "moments", "epsilon": dice.choice(EPSILONS), "options": {}}
            body |= {"further_dataset_ids": further} if further else {}
            answer = http.post("/v1/jobs", json=body, headers={"Idempotency-Key": f"{seed}-{made}"})
            answers[f"asked: {answer.status_code}"] += 1
            made += 1
            if answer.status_code == 202 and made < requests and dice.random() < CANCELLED:
                ended = http.post(f"/v1/jobs/{answer.json()['id']}/cancel")
                answers[f"cancelled: {ended.status_code}"] += 1
                made += 1


def judge(factory: SessionFactory, settings: Settings) -> dict[str, int]:
    """Count what is wrong, from the rows, and from the service's own second opinion."""
    with transaction(factory, read_only=True, snapshot=True) as session:
        payers = {row.id: {row.account_id} for row in session.execute(select(Job.id, Job.account_id))}
        for job_id, account_id in session.execute(select(FurtherDataset.job_id, FurtherDataset.account_id)):
            payers[job_id].add(account_id)
        held: dict[str, dict[str, str]] = {job_id: {} for job_id in payers}
        strayed = 0
        for job_id, account_id, state in session.execute(select(HoldRow.job_id, HoldRow.account_id, HoldRow.state)):
            strayed += job_id not in held
            held.setdefault(job_id, {})[account_id] = state
        columns = EntryRow.capacity_nano, EntryRow.spent_nano, EntryRow.held_nano
        overspent = sum(spent + reserved > capacity for capacity, spent, reserved in session.execute(select(*columns)))
        report = verify(session, trusted=trusted_keys(settings.ledger_key_path))
    return {
        "jobs": len(payers),
        "joint": sum(len(accounts) > 1 for accounts in payers.values()),
        "holds": sum(map(len, held.values())),
        "overspends": overspent,
        "half_admitted": strayed
        + sum(
            held[job_id].keys() != accounts or len(set(held[job_id].values())) != 1
            for job_id, accounts in payers.items()
        ),
        "findings": len(report.findings),
    }


def run(kind: str, requests: int, accounts: int, processes: int) -> dict[str, Any]:
    """Let the threads loose on API processes over one database."""
    answers: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        url, data_dir = stack.enter_context(database(kind, Path(folder))), Path(folder) / "var"
        factory = make_session_factory(make_engine(url))
        addresses = [stack.enter_context(api_process(url, data_dir)) for _ in range(processes)]
        settings = Settings(data_dir=data_dir, database_url=url)
        token, dataset_ids = settings.admin_key_path.read_text().strip(), lay_in(factory, accounts)
        shares = [requests // THREADS + (number < requests % THREADS) for number in range(THREADS)]
        threads = [
            threading.Thread(target=ask, args=(addresses[seed % processes], token, dataset_ids, share, seed, answers))
            for seed, share in enumerate(shares)
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
        found = judge(factory, settings)
        factory.kw["bind"].dispose()
    terms = {"database": kind, "requests": requests, "accounts": accounts, "api_processes": processes}
    return {**terms, "seconds": round(seconds, 1), "answers": dict(sorted(answers.items())), **found}


def main() -> None:
    """Run it and tell; exit code 1 where anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joint_holds", description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="postgresql")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--accounts", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2, help="API processes")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    figures = run(given.database, given.requests, given.accounts, given.processes)
    for name, value in figures.items():
        sys.stdout.write(f"{name:14} {value}\n")
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    expected = ("asked: 202", "asked: 409", "cancelled: 200")
    failed = sum(count for answer, count in figures["answers"].items() if answer not in expected)
    wrong = figures["overspends"] + figures["half_admitted"] + figures["findings"] + failed
    sys.exit(1 if wrong or not figures["joint"] else 0)


if __name__ == "__main__":
    main()
