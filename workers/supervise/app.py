"""The Celery application, which wakes the workers of several machines. The database remains the queue of record.

`celery --app workers.supervise.app worker` finds `app` here; it is created from the environment on first access.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any

from celery import Celery
from celery.signals import setup_logging, worker_init, worker_shutting_down
from sqlalchemy.exc import SQLAlchemyError

from obscura.private_files import keep_new_files_private
from obscura.wire.words import TRAIN
from service import disk, inspection, installation, jobs, queue
from service.datasets import deletion
from service.db.job_tables import Job
from service.db.session import SessionFactory, open_sessions, transaction
from service.errors import ClockRefused, DatabaseUnsuitable, InvalidInput
from service.failpoints import failpoint
from service.logs import configure_logging, get_logger
from service.settings import Settings
from service.storage import interface, is_elsewhere
from service.times import WatchedClock
from workers.supervise.attempts import Attempt, claim_job, claim_next, worker_name
from workers.supervise.reconcile import RECONCILE_SECONDS, reconcile, sweep
from workers.supervise.supervisor import RUNNER_COMMAND, supervise

TASK_RECONCILE = "obscura.reconcile"


def make_app(settings: Settings) -> Celery:
    """Return the Celery application of a worker, with its tasks.

    Messages are acknowledged early and may be lost or repeated: the claim in the database decides which worker runs a
    job. Never terminate tasks through Celery: `revoke(terminate=True)` would kill a supervisor and orphan its runner.
    """
    app = Celery("obscura", broker=settings.redis_url, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        result_backend=None,
        task_acks_late=False,  # with late acknowledgement, a training would run twice after Redis' visibility timeout
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=settings.redis_url.startswith(("redis://", "rediss://")),
        worker_max_tasks_per_child=1,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": 3600},
        timezone="UTC",
        # For a worker started with --beat. The API's reconciler does the same.
        beat_schedule={"reconcile": {"task": TASK_RECONCILE, "schedule": RECONCILE_SECONDS}},
    )
    # Created before Celery forks, so that the main process can signal the shutdown to its children.
    draining = multiprocessing.get_context("fork").Event()
    slot = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    weakref.finalize(app, slot.close)
    send = partial(app.send_task, ignore_result=True, retry=False)
    register(app, Workplace(settings, slot, draining=draining.is_set, send=send))

    def inspect(**_: Any) -> None:
        keep_new_files_private()
        now = datetime.now(UTC)
        try:
            with open_sessions(settings.database_url) as factory:
                inspection.require_clock(factory, now=now)
                installation.pair(settings, factory, now=now)
                inspection.inspect_at_start(settings, factory, now=now)
        except (ClockRefused, DatabaseUnsuitable, interface.StorageUnavailable, InvalidInput) as error:
            raise SystemExit(error.message) from None
        except SQLAlchemyError as error:  # without a database, no job can be claimed
            get_logger(__name__).error("ledger_not_verified", error=type(error).__name__)

    worker_init.connect(inspect, weak=False)
    worker_shutting_down.connect(lambda **_: draining.set(), weak=False)
    # A receiver keeps Celery from setting up its own logging.
    setup_logging.connect(lambda **_: configure_logging(settings.log_level), weak=False)
    return app


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    globals()["app"] = app = make_app(Settings())  # the celery command needs this attribute
    return app


@dataclass(frozen=True)
class Workplace:
    """The context of one Celery worker's tasks.

    `slot` is an open file, locked while a training runs. So trainings run one at a time, and a concurrency of three
    leaves room for a sample and an evaluation. `draining` returns whether the worker is shutting down.
    """

    settings: Settings
    slot: IO[bytes]
    draining: Callable[[], bool]
    send: queue.Send
    command: Sequence[str] = RUNNER_COMMAND


def register(app: Celery, workplace: Workplace) -> None:
    watched = WatchedClock(datetime.now(UTC))  # forked processes inherit it

    @app.task(name=queue.TASK_RUN_JOB, shared=False)  # type: ignore[untyped-decorator]  # celery has no types
    def run_job(job_id: str) -> None:
        failpoint("ack.after")  # Celery has acknowledged the message and will not deliver it again
        # Each task has its own connections, because forked processes must not share them.
        with open_sessions(workplace.settings.database_url) as factory:
            work_on(workplace, factory, job_id)

    @app.task(name=TASK_RECONCILE, shared=False)  # type: ignore[untyped-decorator]  # celery has no types
    def reconcile_and_sweep() -> None:
        with open_sessions(workplace.settings.database_url) as factory:
            reconcile(workplace.settings, factory, send=workplace.send, now=datetime.now(UTC))
            now = datetime.now(UTC)
            sweep(workplace.settings, factory, now=now, proved=watched.is_proved(now))


def work_on(workplace: Workplace, factory: SessionFactory, job_id: str) -> None:
    """Run the job of a message, unless another worker has claimed it.

    If it is a training, run the oldest queued training instead, because messages may arrive out of order while another
    training runs.
    """
    with transaction(factory, read_only=True) as session:
        job = session.get(Job, job_id)
        may_destroy = is_elsewhere(workplace.settings) and inspection.may_remove(session, workplace.settings)
    if may_destroy:
        deletion.destroy_copies(workplace.settings, factory)
    if job is None or workplace.draining() or disk.short_of_room(workplace.settings):
        return  # the reconciler sends another message
    settings, name, now = workplace.settings, worker_name("celery"), datetime.now(UTC)
    if job.kind != TRAIN:
        _run(workplace, factory, claim_job(settings, factory, job_id=job_id, worker=name, now=now))
        return
    try:
        fcntl.lockf(workplace.slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # a training is running; its process wakes the next one
    try:
        attempt = claim_next(settings, factory, kind=TRAIN, worker=name, now=now)
        _run(workplace, factory, attempt)
    finally:
        fcntl.lockf(workplace.slot, fcntl.LOCK_UN)
    if attempt is not None and not workplace.draining():  # earlier messages may have been consumed above
        with transaction(factory, read_only=True) as session:
            waiting = jobs.claimable(session, now=datetime.now(UTC), kind=TRAIN)
        for next_id in waiting[:1]:
            workplace.send(queue.TASK_RUN_JOB, [next_id])


def _run(workplace: Workplace, factory: SessionFactory, attempt: Attempt | None) -> None:
    if attempt is not None:
        supervise(workplace.settings, factory, attempt, draining=workplace.draining, command=workplace.command)
        queue.deliver(factory, workplace.send, now=datetime.now(UTC))  # for example, for the evaluation of a release
