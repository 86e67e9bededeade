"""The process that does the work of one attempt: `python -m workers.train.runner --job ID --attempt N`.

A new process for every attempt returns all memory, never forks CUDA, and isolates crashes. It reads its settings from
the environment and everything else from the database.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from sqlalchemy.exc import SQLAlchemyError

from privacy.errors import BudgetExceeded
from service import jobs
from service.db.session import make_engine, make_session_factory, transaction
from service.errors import ClockRefused, Conflict, NotFound, ObscuraError, StaleAttempt
from service.jobs import JobState
from service.ledger.stops import ArmingStopped
from service.logs import get_logger
from service.settings import Settings
from service.storage.interface import StorageUnavailable
from workers.recipes.interface import Cancelled, NothingUseful, Trainer
from workers.recipes.ranks import RankLost
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import Attempt, ExitStatus, watch_parent
from workers.supervise.signs import SignsOfLife
from workers.train.orders import Context, MissingPrerequisite
from workers.train.process import (
    begin_process,
    device_kind,
    failure_code,
    lines_of_trace,
    sign_while_computing,
    trace_of,
)

_PLACE_SECONDS = 30.0  # between two tries of a job that waits for room, a disk or a file
_LOOK_SECONDS = 0.5
_ORPHAN_GRACE_SECONDS = 20.0  # at most, and a third of a lease: gone before anybody else may claim the job


def main(arguments: Sequence[str] | None = None, *, trainers: Mapping[str, Trainer] = TRAINERS) -> int:
    """Run one attempt; return the exit status (`workers.supervise.attempts.ExitStatus`)."""
    parser = argparse.ArgumentParser(prog="python -m workers.train.runner", description="Run one attempt of a job.")
    parser.add_argument("--job", required=True, help="id of the job")
    parser.add_argument("--attempt", required=True, type=int, help="number of the attempt that was claimed")
    parser.add_argument("--supervisor", type=int, default=None, help="process that renews the lease (the parent)")
    parser.add_argument("--signs", type=int, default=None, help="descriptor of the pipe that takes signs of life")
    given = parser.parse_args(arguments)

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = begin_process(processes=1)
    grace_seconds = min(_ORPHAN_GRACE_SECONDS, settings.lease_seconds / 3)
    watch_parent(stop, parent=given.supervisor or os.getppid(), grace_seconds=grace_seconds)
    signs = SignsOfLife(given.signs)
    signs.give()
    sign_while_computing(signs.give)
    return run(settings, Attempt(given.job, given.attempt), stop=stop, trainers=trainers, alive=signs.give)


def run(
    settings: Settings,
    attempt: Attempt,
    *,
    stop: threading.Event,
    trainers: Mapping[str, Trainer],
    alive: Callable[[], None] = lambda: None,
) -> ExitStatus:
    """Do the attempt's work and end its job."""
    log = get_logger(__name__).bind(job_id=attempt.job_id, attempt=attempt.number)
    engine = make_engine(settings.database_url, pool_size=2)
    factory, device = make_session_factory(engine), device_kind()
    context = Context(settings, factory, attempt, stop, device, alive=alive, trainers=trainers)
    try:
        status = _attempt(context)
    except (StaleAttempt, NotFound) as error:
        log.warning("attempt_superseded", trace=lines_of_trace(error))
        status = ExitStatus.STALE
    except SQLAlchemyError as error:
        # Nothing can be said to a database that is away. The supervisor lets another attempt go on.
        log.error("database_lost", trace=lines_of_trace(error))
        status = ExitStatus.LOST
    except StorageUnavailable as error:
        log.error("storage_lost", message=error.message, trace=lines_of_trace(error))
        status = ExitStatus.LOST
    except RankLost as error:
        # Nor is there a verdict about a training that lost one of its processes.
        log.error("rank_lost", trace=lines_of_trace(error))
        status = ExitStatus.LOST
    finally:
        engine.dispose()
    log.info("attempt_over", status=status.name)
    return status


def _attempt(context: Context) -> ExitStatus:
    job_id, attempt = context.attempt.job_id, context.attempt.number
    with transaction(context.factory, read_only=True) as session:
        job = jobs.get_job(session, job_id)
        if job.state is not JobState.RUNNING or job.attempt != attempt:
            return ExitStatus.STALE
        request, kind = jobs.stop_request(session, job_id=job_id, attempt=attempt), jobs.KINDS[job.kind]
    try:
        if request is jobs.StopRequest.STOP:
            raise Cancelled
        import_module(kind.module).run(context)
    except Cancelled:
        return _stopped(context)
    except (NothingUseful, BudgetExceeded) as error:
        get_logger(__name__).warning("nothing_useful", job_id=job_id, attempt=attempt)
        sys.stderr.write(trace_of(error) + "\n")
        context.end(jobs.finish_unsaved)
    except (ArmingStopped, ClockRefused) as stop:  # the job waits until an operator has mended the ledger, or the clock
        return _handed_on(context, stop)
    except (StaleAttempt, SQLAlchemyError, RankLost):
        raise
    except Exception as error:
        if _waits(context, error):
            return _handed_on(context, error, pause_seconds=_PLACE_SECONDS)
        if isinstance(error, StorageUnavailable):
            raise
        code = failure_code(error, kind)
        get_logger(__name__).error("attempt_failed", job_id=job_id, attempt=attempt, code=code.value)
        sys.stderr.write(trace_of(error) + "\n")
        context.end(jobs.finish_failed, failure_code=code)
    return ExitStatus.ENDED


def _waits(context: Context, error: Exception) -> bool:
    """Return whether an attempt failed because of its machine or storage and should be retried later.

    A verdict would lose what was paid for: a training that only needs to publish that, or could not even continue.
    """
    if not isinstance(error, MissingPrerequisite | OSError):
        return False
    with transaction(context.factory, read_only=True) as session:
        job = jobs.get_job(session, context.attempt.job_id)
        publishes = job.salvage_attempt == context.attempt.number or isinstance(error, MissingPrerequisite)
        return publishes and jobs.may_publish(session, job)


def _handed_on(context: Context, error: Exception, *, pause_seconds: float = 0.0) -> ExitStatus:
    """Leave the job to another attempt, after a pause; it does not count as lost."""
    this = {"job_id": context.attempt.job_id, "attempt": context.attempt.number}
    code = error.code if isinstance(error, ObscuraError) else type(error).__name__
    get_logger(__name__).error("operator_needed", **this, code=code, trace=lines_of_trace(error))
    until = time.monotonic() + pause_seconds
    while time.monotonic() < until and not context.stop.wait(_LOOK_SECONDS):
        context.alive()
    context.end(jobs.give_back)
    return ExitStatus.INTERRUPTED


def _stopped(context: Context) -> ExitStatus:
    """End the job if its user asked for that and nothing paid for is lost; otherwise leave it to another attempt."""
    try:
        context.end(jobs.finish_cancelled)
    except Conflict:  # this process drains
        return ExitStatus.INTERRUPTED
    return ExitStatus.ENDED


if __name__ == "__main__":
    sys.exit(main())
