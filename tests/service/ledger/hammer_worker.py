"""The hammer: `python -m tests.service.ledger.hammer_worker VARIANT URL FOLDER PROCESSES REQUESTS [ACCOUNT]`.

Imports and compiles once, forks the processes, opens a database in each and lets them loose together. Each writes what
it is about to do, and then what has been committed, to a journal of its own in FOLDER. Of the variant `safe`, processes
are killed without warning all the while; each is followed by another that takes over what it left open. The variant
`unsafe` reads and then writes, as the ledger must not.
"""

import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from service import ledger
from service.db.base import new_id
from service.db.session import DatabaseBusy, SessionFactory, make_engine, make_session_factory, transaction
from service.errors import HoldExhausted, InsufficientBudget, StaleAttempt
from tests.service.steps import charge, hold_amount

SECONDS_MAX = 450  # for up to 1,000 requests on a busy machine; on a quiet one they take five
GRANT = 1  # what the unsafe variant takes at once
REFUSED = (InsufficientBudget, HoldExhausted, StaleAttempt, DatabaseBusy)
REHEARSED = 5  # jobs; some are returned, the others trained
PAUSE = (0.05, 0.25)  # seconds between two kills
KILLS_MIN = 10  # however soon a fast machine has made all requests


def seconds_max(requests: int) -> float:
    return SECONDS_MAX * max(requests / 1000, 1)


def now() -> datetime:
    return datetime(2030, 1, 2, 4, tzinfo=UTC)  # by the clock of the test that has opened the account


class Journal:
    """The requests of a process and their answers. A kill loses no written line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, **line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def request(self, factory: SessionFactory, do: str, work: Callable[[Session], Any], **facts: Any) -> Any:
        """Make a request in a transaction; return its result, or None if it was refused."""
        self.write(do=do, **facts)
        try:
            with transaction(factory) as session:
                result = work(session)
        except REFUSED:
            self.write(refused=True)
            return None
        self.write(done=result)
        return result


def one_job(factory: SessionFactory, journal: Journal, account_id: str, dice: random.Random) -> None:
    """Run a job to its end, or a part of it."""
    amount, job_id = dice.randint(1, 40), new_id("job")

    def hold(session: Session) -> str:
        facts = {"account_id": account_id, "job_id": job_id, "amount_nano": amount, "now": now()}
        return hold_amount(session, **facts).id

    hold_id = journal.request(factory, "hold", hold, job=job_id, amount=amount)
    if hold_id is None:
        return
    if dice.random() < 0.3:
        journal.request(factory, "release", lambda session: release(session, hold_id), job=job_id)
        return
    train(factory, journal, job_id, hold_id, 1, [dice.randint(1, 20) for _ in range(dice.randint(1, 3))])


def train(
    factory: SessionFactory, journal: Journal, job_id: str, hold_id: str, attempt: int, charges: list[int]
) -> None:
    """Fence, arm, charge and capture, each in a transaction of its own."""

    def arm(session: Session) -> None:
        ledger.fence(session, hold_id=hold_id, attempt=attempt, now=now())
        ledger.arm(session, hold_id=hold_id, attempt=attempt, now=now())

    def capture(session: Session) -> None:
        ledger.capture(session, hold_id=hold_id, attempt=attempt, artifact_sha256=None, reason="failed", now=now())

    journal.request(factory, "arm", arm, job=job_id)
    for amount in charges:
        this = {"hold_id": hold_id, "attempt": attempt, "amount_nano": amount, "now": now()}
        if journal.request(factory, "charge", partial(charge, **this), job=job_id, amount=amount) is None:
            break
    journal.request(factory, "capture", capture, job=job_id)


def release(session: Session, hold_id: str) -> None:
    ledger.return_hold(session, hold_id=hold_id, reason="cancelled", now=now())


def take_over(factory: SessionFactory, journal: Journal, dead: Path, dice: random.Random) -> None:
    """End the job of a killed process, whose last request may have been committed."""
    jobs = [line["job"] for line in read_journal(dead) if "job" in line]
    if not jobs or dice.random() < 0.3:  # some stay as they were left
        return
    with transaction(factory, read_only=True) as session:
        row = session.execute(
            text("SELECT id, state, attempt FROM holds WHERE job_id = :job"), {"job": jobs[-1]}
        ).one_or_none()
    if row is not None and row.state in {"held", "armed"}:
        train(factory, journal, jobs[-1], row.id, row.attempt + 1, [dice.randint(1, 20)])


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def rehearse(engine: Engine, path: Path, account_id: str) -> None:
    """Run a few jobs in the process that forks, so that the others find every statement compiled; no connection stays
    open."""
    factory, journal = make_session_factory(engine), Journal(path)
    for seed in range(REHEARSED):
        one_job(factory, journal, account_id, random.Random(seed))
    engine.dispose()


def hammer(engine: Engine, path: Path, account_id: str, seed: int, start: Barrier | None, dead: Path | None) -> None:
    """Run jobs until this process is killed."""
    factory, dice, journal = make_session_factory(engine), random.Random(seed), Journal(path)
    with transaction(factory, read_only=True) as session:
        ledger.get_account(session, account_id)
    if start is not None:
        start.wait(SECONDS_MAX)
    if dead is not None:
        take_over(factory, journal, dead, dice)
    while True:
        one_job(factory, journal, account_id, dice)


def overspend(url: str, path: Path, operations: int, start: Barrier) -> None:
    """Read the total, decide, write: the race that the ledger must not have."""
    engine = create_engine(url)
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
    Journal(path).write(done=granted)


def kill_until(requests: int, folder: Path, children: dict[Path, ForkProcess], follow: Callable[..., None]) -> None:
    """Kill processes until there were enough kills and requests."""
    dice, end, kills = random.Random(), time.monotonic() + seconds_max(requests), 0
    while kills < KILLS_MIN or sum(path.read_bytes().count(b'{"do"') for path in folder.iterdir()) < requests:
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(dice.uniform(*PAUSE))
        path = dice.choice(list(children))
        victim = children.pop(path)
        if victim.exitcode is not None:
            raise ChildProcessError(path.name)
        victim.kill()
        victim.join()
        kills += 1
        follow(path)


def main() -> None:
    variant, url, folder, processes, requests = sys.argv[1:6]
    forking = multiprocessing.get_context("fork")
    start = forking.Barrier(int(processes))
    engine = make_engine(url, pool_size=1)
    children: dict[Path, ForkProcess] = {}
    number = 0

    def begin(dead: Path | None = None) -> None:
        nonlocal number
        path = Path(folder) / f"{number}.jsonl"
        path.touch()
        if variant == "safe":
            first = start if number < int(processes) else None
            child = forking.Process(target=hammer, args=(engine, path, sys.argv[6], number, first, dead))
        else:
            child = forking.Process(target=overspend, args=(url, path, int(requests), start))
        child.start()
        children[path] = child
        number += 1

    if variant == "safe":
        rehearse(engine, Path(folder) / "rehearsal.jsonl", sys.argv[6])
    for _ in range(int(processes)):
        begin()
    if variant == "safe":
        try:
            kill_until(int(requests), Path(folder), children, begin)
        finally:
            for child in children.values():
                child.kill()
        return
    for child in children.values():
        child.join(SECONDS_MAX)
    sys.exit(any(child.exitcode != 0 for child in children.values()))


if __name__ == "__main__":
    main()
