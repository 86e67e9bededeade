"""The bodies of the Celery tasks. A message is a doorbell: what is done follows from the database."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO

from celery import Celery

from service import queue
from service.db.job_tables import Job
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.db.words import JobKind
from service.failpoints import failpoint
from service.queue import TASK_RUN_JOB
from service.settings import Settings
from workers.claims import Attempt, claim_job, claim_next, claimable, worker_name
from workers.reconcile import reconcile, sweep
from workers.supervisor import RUNNER_COMMAND, supervise

TASK_RECONCILE = "obscura.reconcile"


@dataclass(frozen=True)
class Workplace:
    """One Celery worker, as its tasks see it.

    Args:
        settings: of the worker; runners get the same.
        slot: an open file that is locked while a training runs. One training at a time: with a concurrency of three, a
            free sample waits neither behind it nor behind an evaluation.
        draining: tells whether the worker shuts down.
        send: rings the doorbell.
        command: starts a runner.
    """

    settings: Settings
    slot: IO[bytes]
    draining: Callable[[], bool]
    send: queue.Send
    command: Sequence[str] = RUNNER_COMMAND


def register(app: Celery, workplace: Workplace) -> None:
    """Add the tasks to a Celery application."""

    @app.task(name=TASK_RUN_JOB, shared=False)  # type: ignore[untyped-decorator]  # celery has no types
    def run_job(job_id: str) -> None:
        failpoint("ack.after")  # Celery has acknowledged the message: nobody will deliver it again
        with _sessions(workplace.settings) as factory:
            work_on(workplace, factory, job_id)

    @app.task(name=TASK_RECONCILE, shared=False)  # type: ignore[untyped-decorator]  # celery has no types
    def put_in_order() -> None:
        with _sessions(workplace.settings) as factory:
            reconcile(workplace.settings, factory, send=workplace.send, now=datetime.now(UTC))
            sweep(workplace.settings.data_dir, factory)


def work_on(workplace: Workplace, factory: SessionFactory, job_id: str) -> None:
    """Run what a message rang for; nothing happens when somebody else has it.

    A sampling or an evaluation is that of the message. A training is the oldest that waits, whichever was rung for:
    messages overtake each other while the slot is taken.
    """
    with transaction(factory, read_only=True) as session:
        job = session.get(Job, job_id)
    if job is None or workplace.draining():
        return
    settings, name, now = workplace.settings, worker_name("celery"), datetime.now(UTC)
    if job.kind is not JobKind.TRAIN:
        _run(workplace, factory, claim_job(settings, factory, job_id=job_id, worker=name, now=now))
        return
    with _training_slot(workplace.slot) as free:
        if free:
            _run(workplace, factory, claim_next(settings, factory, kind=JobKind.TRAIN, worker=name, now=now))
    if free:
        _ring_for_next_training(workplace, factory)


def _run(workplace: Workplace, factory: SessionFactory, attempt: Attempt | None) -> None:
    if attempt is not None:
        supervise(workplace.settings, factory, attempt, draining=workplace.draining, command=workplace.command)
        queue.deliver(factory, workplace.send, now=datetime.now(UTC))  # such as for the evaluation of a release


def _ring_for_next_training(workplace: Workplace, factory: SessionFactory) -> None:
    """The messages of the trainings that waited for the slot are gone by now."""
    if workplace.draining():
        return
    with transaction(factory, read_only=True) as session:
        waiting = claimable(session, now=datetime.now(UTC), kind=JobKind.TRAIN)
    for job_id in waiting[:1]:
        workplace.send(TASK_RUN_JOB, [job_id])


@contextmanager
def _training_slot(slot: IO[bytes]) -> Iterator[bool]:
    """Try to take the worker's place for a training. The lock belongs to this process and dies with it."""
    try:
        fcntl.lockf(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.lockf(slot, fcntl.LOCK_UN)


@contextmanager
def _sessions(settings: Settings) -> Iterator[SessionFactory]:
    """Open the database for one task: a forked process must not share its parent's connections."""
    engine = make_engine(settings.database_url, pool_size=2)
    try:
        yield make_session_factory(engine)
    finally:
        engine.dispose()
