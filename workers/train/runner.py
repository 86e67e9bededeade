"""The process that runs one attempt: `python -m workers.train.runner --job ID --attempt N`.

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
from typing import Any

import torch
from sqlalchemy.exc import SQLAlchemyError

from obscura.wire.words import JobState
from privacy.errors import BudgetExceeded
from service import jobs
from service.db.session import open_sessions, transaction
from service.errors import ClockRefused, Conflict, NotFound, ObscuraError, StaleAttempt
from service.ledger.stops import ArmingStopped
from service.logs import get_logger
from service.settings import Settings
from service.storage.interface import StorageUnavailable
from workers.recipes.interface import Cancelled, NothingUseful, Trainer
from workers.recipes.ranks import RankLost
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import Attempt, ExitStatus, SignsOfLife, watch_parent
from workers.train import orders, process

_PLACE_SECONDS = 30.0  # between two attempts at a job that waits for space, a disk or a file
_LOOK_SECONDS = 0.5
_ORPHAN_GRACE_SECONDS = 20.0  # at most; also at most a third of a lease, to end before the job is claimed again
_LOST: Mapping[type[Exception], str] = {  # log events
    SQLAlchemyError: "database_lost",
    StorageUnavailable: "storage_lost",
    RankLost: "rank_lost",
}


def main(arguments: Sequence[str] | None = None, *, trainers: Mapping[str, Trainer] = TRAINERS) -> int:
    """Run one attempt; return the exit status (`workers.supervise.attempts.ExitStatus`)."""
    parser = argparse.ArgumentParser(prog="python -m workers.train.runner", description="Run one attempt of a job.")
    parser.add_argument("--job", required=True, help="id of the job")
    parser.add_argument("--attempt", required=True, type=int, help="number of the attempt that was claimed")
    parser.add_argument("--supervisor", type=int, default=None, help="process id of the supervisor (the parent)")
    parser.add_argument("--signs", type=int, default=None, help="file descriptor for signs of life")
    given = parser.parse_args(arguments)

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = process.begin_process(processes=1)
    grace_seconds = min(_ORPHAN_GRACE_SECONDS, settings.lease_seconds / 3)
    watch_parent(stop, parent=given.supervisor or os.getppid(), grace_seconds=grace_seconds)
    signs = SignsOfLife(given.signs)
    signs.give()
    process.sign_while_computing(signs.give)
    return run(settings, Attempt(given.job, given.attempt), stop=stop, trainers=trainers, alive=signs.give)


def run(
    settings: Settings,
    attempt: Attempt,
    *,
    stop: threading.Event,
    trainers: Mapping[str, Trainer],
    alive: Callable[[], None] = lambda: None,
) -> ExitStatus:
    """Run the attempt and end its job."""
    log = get_logger(__name__).bind(job_id=attempt.job_id, attempt=attempt.number)
    try:
        with open_sessions(settings.database_url) as factory:
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            status = _attempt(orders.Context(settings, factory, attempt, stop, device, alive=alive, trainers=trainers))
    except (StaleAttempt, NotFound) as error:
        log.warning("attempt_superseded", trace=process.trace_of(error).splitlines())
        status = ExitStatus.STALE
    except tuple(_LOST) as error:  # the job has not failed: the supervisor lets another attempt continue
        event = next(event for kind, event in _LOST.items() if isinstance(error, kind))
        log.error(event, trace=process.trace_of(error).splitlines())
        status = ExitStatus.LOST
    log.info("attempt_over", status=status.name)
    return status


def _attempt(context: orders.Context) -> ExitStatus:
    this: dict[str, Any] = {"job_id": context.attempt.job_id, "attempt": context.attempt.number}
    log = get_logger(__name__).bind(**this)
    with transaction(context.factory, read_only=True) as session:
        job = jobs.get_job(session, context.attempt.job_id)
        if job.state is not JobState.RUNNING or job.attempt != context.attempt.number:
            return ExitStatus.STALE
        request, kind = jobs.stop_request(session, **this), jobs.KINDS[job.kind]
    try:
        if request is jobs.StopRequest.STOP:
            raise Cancelled
        import_module(kind.module or f"workers.train.kinds.{kind.name}").run(context)
    except Cancelled:
        try:
            context.end(jobs.finish_cancelled)
        except Conflict:  # not cancelled, or a release is paid for: another attempt continues
            return ExitStatus.INTERRUPTED
    except (NothingUseful, BudgetExceeded) as error:
        log.warning("nothing_useful")
        sys.stderr.write(process.trace_of(error) + "\n")
        context.end(jobs.finish_unsaved)
    except (ArmingStopped, ClockRefused) as stop:  # wait until an operator repairs the ledger or the clock
        return _handed_on(context, stop)
    except (StaleAttempt, SQLAlchemyError, RankLost):
        raise
    except Exception as error:
        is_missing = isinstance(error, orders.MissingPrerequisite)
        if is_missing or isinstance(error, OSError):
            # Wait if releases are paid for: an operator may repair this machine or its storage, and then the training
            # can continue or publish. Failing the job would lose these releases.
            with transaction(context.factory, read_only=True) as session:
                job = jobs.get_job(session, context.attempt.job_id)
                publishes = is_missing or job.salvage_attempt == context.attempt.number
                waits = publishes and jobs.may_publish(session, job)
            if waits:
                return _handed_on(context, error, pause_seconds=_PLACE_SECONDS)
        if isinstance(error, StorageUnavailable):
            raise
        code = process.failure_code(error, kind)
        log.error("attempt_failed", code=code.value)
        sys.stderr.write(process.trace_of(error) + "\n")
        context.end(jobs.finish_failed, failure_code=code)
    return ExitStatus.ENDED


def _handed_on(context: orders.Context, error: Exception, *, pause_seconds: float = 0.0) -> ExitStatus:
    """Leave the job to another attempt after a pause. This attempt does not count as lost."""
    this = {"job_id": context.attempt.job_id, "attempt": context.attempt.number}
    code = error.code if isinstance(error, ObscuraError) else type(error).__name__
    get_logger(__name__).error("operator_needed", **this, code=code, trace=process.trace_of(error).splitlines())
    until = time.monotonic() + pause_seconds
    while time.monotonic() < until and not context.stop.wait(_LOOK_SECONDS):
        context.alive()
    context.end(jobs.give_back)
    return ExitStatus.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
