"""The hammer: `python ledger_hammer_worker.py safe|unsafe|unsafe-on-our-engine URL ACCOUNT PROCESSES OPERATIONS`.

Imports once, forks the processes, opens a database in each, lets them loose together and writes one JSON line: what
each believes has been committed.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import time
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from service import ledger
from service.db.base import new_id
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.errors import HoldExhausted, InsufficientBudget

SECONDS_MAX = 60
GRANT = 1  # what the unsafe variant takes at once


def now() -> datetime:
    return datetime.now(UTC)


def one_job(factory: SessionFactory, account_id: str, dice: random.Random, done: dict[str, Any]) -> None:
    """Take a job through a random part of its life; it may be left anywhere, as after a crash."""
    amount, job_id = dice.randint(1, 40), new_id("job")
    try:
        with transaction(factory) as session:
            hold_id = ledger.hold(session, account_id=account_id, job_id=job_id, amount_nano=amount, now=now()).id
            if dice.random() < 0.1:
                session.rollback()  # a crash before the commit
                return
    except InsufficientBudget:
        done["refused"] += 1
        return
    done["holds"][hold_id] = amount
    fate = dice.random()
    if fate < 0.1:
        return  # a crash after the commit
    if fate < 0.4:
        with transaction(factory) as session:
            ledger.release_hold(session, hold_id=hold_id, reason="cancelled", now=now())
        done["released"].append(hold_id)
        return
    with transaction(factory) as session:
        ledger.fence(session, hold_id=hold_id, attempt=1, now=now())
        ledger.arm(session, hold_id=hold_id, attempt=1, now=now())
    charged = 0
    for _ in range(dice.randint(1, 3)):
        step = dice.randint(1, 20)
        try:
            with transaction(factory) as session:
                charged = ledger.charge(session, hold_id=hold_id, attempt=1, amount_nano=step, stage="votes", now=now())
        except HoldExhausted:
            break
    done["charged"][hold_id] = charged
    if fate > 0.9:
        return  # armed for ever: the reconciler's work
    with transaction(factory) as session:
        ledger.capture(session, hold_id=hold_id, attempt=1, artifact_sha256=None, reason="failed", now=now())
    done["captured"].append(hold_id)


def hammer(url: str, account_id: str, seed: int, operations: int, start: Barrier) -> dict[str, Any]:
    """Run jobs against the ledger as the service does."""
    engine = make_engine(url, pool_size=1)
    factory, dice = make_session_factory(engine), random.Random(seed)
    done: dict[str, Any] = {"refused": 0, "holds": {}, "released": [], "charged": {}, "captured": []}
    with transaction(factory, read_only=True) as session:
        ledger.balance(session, account_id)
    start.wait(SECONDS_MAX)
    for _ in range(operations):
        one_job(factory, account_id, dice, done)
    engine.dispose()
    return done


def overspend(url: str, operations: int, start: Barrier, *, safe_engine: bool) -> dict[str, Any]:
    """Read the total, decide, write: right for one process, and what the ledger must not do."""
    engine = make_engine(url, pool_size=1) if safe_engine else create_engine(url)
    granted = 0
    with Session(engine) as session:
        session.execute(text("SELECT 1"))
    start.wait(SECONDS_MAX)
    for _ in range(operations):
        with Session(engine) as session, session.begin():
            spent = session.execute(text("SELECT coalesce(sum(amount), 0) FROM grants")).scalar_one()
            limit = session.execute(text("SELECT amount FROM limits")).scalar_one()
            time.sleep(0.001)  # the work between reading and writing
            if spent + GRANT <= limit:
                session.execute(text("INSERT INTO grants (amount) VALUES (:amount)"), {"amount": GRANT})
                granted += GRANT
    engine.dispose()
    return {"granted": granted}


def work(variant: str, url: str, account_id: str, seed: int, operations: int, start: Barrier, reports: Any) -> None:
    """What one process does."""
    if variant == "safe":
        reports.put(hammer(url, account_id, seed, operations, start))
    else:
        reports.put(overspend(url, operations, start, safe_engine=variant == "unsafe-on-our-engine"))


def main() -> None:
    """Run what the command line says."""
    variant, url, account_id, processes, operations = sys.argv[1:]
    forking = multiprocessing.get_context("fork")
    start, reports = forking.Barrier(int(processes)), forking.SimpleQueue()
    children = [
        forking.Process(target=work, args=(variant, url, account_id, seed, int(operations), start, reports))
        for seed in range(int(processes))
    ]
    for child in children:
        child.start()
    written = [reports.get() for _ in children]  # a child that dies leaves this waiting: the test's timeout ends it
    for child in children:
        child.join(SECONDS_MAX)
    sys.stdout.write(json.dumps(written) + "\n")
    sys.exit(any(child.exitcode != 0 for child in children))


if __name__ == "__main__":
    main()
