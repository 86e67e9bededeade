"""Run one attempt at a job in its own process, renew its lease, and settle (end or requeue) the job.

The supervisor never touches data or tensors. When the runner is gone, the job's state in the database counts, not the
exit status. If the runner has not ended its job, the supervisor settles it. The lease shows that the supervisor is
alive; the runner gives its own signs of life (`workers.supervise.attempts`).
"""

from __future__ import annotations

import enum
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from obscura.private_files import make_private_folder
from obscura.wire.words import EarlyEnd, JobState
from service import jobs
from service.db.job_tables import FailureCode, Job
from service.db.session import SessionFactory, transaction
from service.errors import Conflict, NotFound, StaleAttempt
from service.failpoints import failpoint
from service.inspection import may_remove
from service.logs import get_logger
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import put_away, work_key
from workers.supervise.attempts import Attempt, Listener, drop_lease

RUNNER_COMMAND = (sys.executable, "-P", "-m", "workers.train.runner")
SPARE_CORES_NICENESS = 10  # gives priority to trainings on the same cores


class Stop(enum.StrEnum):
    """Reasons to stop a runner."""

    WINDING_UP = "winding_up"  # the training must stop charging, and publish its partial result
    CANCELLED = "cancelled"  # cancelled by the user; nothing is published
    DRAINED = "drained"  # this process is shutting down; the job continues elsewhere
    TIME_LIMIT = "time_limit"
    SILENT = "silent"  # the runner hangs and cannot react to a signal; another attempt continues
    FENCED = "fenced"  # another attempt has taken over, or the lease could not be renewed in time


_STOPS = {None: None, jobs.StopRequest.STOP: Stop.CANCELLED, jobs.StopRequest.WIND_UP: Stop.WINDING_UP}


@dataclass(frozen=True)
class Patience:
    """Waiting times of the supervisor, which tests shorten."""

    grace_seconds: float = 30.0  # from SIGTERM to SIGKILL: enough for a training step and a checkpoint
    wind_up_seconds: float = 600.0  # for an early-ended training to publish; then another attempt does it
    wind_up_silent_seconds: float = 60.0  # maximum of these without a sign of life
    look_seconds: float = 0.2  # between two checks of the runner
    cancel_look_seconds: float = 1.0  # between two checks for a cancellation


def supervise(
    settings: Settings,
    factory: SessionFactory,
    attempt: Attempt,
    *,
    draining: Callable[[], bool],
    command: Sequence[str] = RUNNER_COMMAND,
    patience: Patience = Patience(),
) -> None:
    """Run one attempt, which this process has claimed, to its end. Then end or requeue the job, if necessary.

    Return when the runner's whole process group is gone. The job has then ended, waits for another attempt (because the
    runner died, or this process is shutting down), or belongs to another attempt.

    Args:
        settings: of this process, passed to the runner in its environment.
        draining: returns whether this process is shutting down.
        command: starts the runner; `--job`, `--attempt`, `--supervisor` and `--signs` are added.
    """
    log = get_logger(__name__).bind(job_id=attempt.job_id, attempt=attempt.number)
    with closing(Listener()) as listener:
        process = _spawn(settings, attempt, command, listener)
        with suppress(SQLAlchemyError, OSError), transaction(factory, read_only=True) as session:
            job = session.get(Job, attempt.job_id)
            if job is not None and jobs.KINDS[job.kind].gives_way:
                os.setpriority(os.PRIO_PROCESS, process.pid, SPARE_CORES_NICENESS)
        log.info("runner_started", pid=process.pid)
        failpoint("spawn.after")
        watch = _Watch(settings, factory, attempt, draining, patience, listener)
        try:
            while process.poll() is None:
                before = watch.stop
                stop = watch.look()
                if stop is not None and watch.out_of_patience():
                    _kill_group(process)
                elif stop is not before:
                    process.terminate()  # only the runner, because its current step still needs its children
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=patience.look_seconds)
        finally:
            _kill_group(process)
            process.wait()
    log.info("runner_ended", status=process.returncode, stop=watch.stop)
    watch.settle()
    failpoint("settle.after")
    with transaction(factory, read_only=True) as session:
        job = session.get(Job, attempt.job_id)
        over = job is not None and job.finished_at is not None and may_remove(session, settings)
    if over:  # its checkpoints are not needed any more; after a finding, a later sweep removes them
        put_away(storage_of(settings), work_key(attempt.job_id), now=datetime.now(UTC))


@dataclass
class _Watch:
    """Renews the lease, and decides when the runner must stop.

    The first reason to stop is kept, except that any reason replaces WINDING_UP, and FENCED replaces any reason.
    """

    settings: Settings
    factory: SessionFactory
    attempt: Attempt
    draining: Callable[[], bool]
    patience: Patience
    listener: Listener
    stop: Stop | None = None

    def __post_init__(self) -> None:
        self._this: dict[str, Any] = {"job_id": self.attempt.job_id, "attempt": self.attempt.number}
        self._reported_minutes: int | None = None
        self._started = self._beaten = self._looked = self._stopped = time.monotonic()

    def look(self) -> Stop | None:
        """Run due checks, and return the reason to stop, if there is one."""
        now = time.monotonic()
        reason = self._beat(now) or self._requested(now)
        if reason is None and self.stop is None and now - self._started > self.settings.job_seconds_max:
            reason = Stop.TIME_LIMIT
            with suppress(SQLAlchemyError):
                with transaction(self.factory) as session:
                    publishes = jobs.end_early(session, **self._this, why=EarlyEnd.TIME_LIMIT)
                reason = Stop.WINDING_UP if publishes else reason
        if self.listener.listen() > self.settings.silent_seconds_max and reason in (None, Stop.WINDING_UP):
            reason = Stop.SILENT
        if self.draining() and reason in (None, Stop.WINDING_UP):
            reason = Stop.DRAINED
        if reason is not None and reason is not self.stop and self.stop in (None, Stop.WINDING_UP):
            self.stop, self._stopped = reason, now
        elif reason is Stop.FENCED:
            self.stop = reason
        return self.stop

    def out_of_patience(self) -> bool:
        """Return whether the runner must be killed: at once if it hangs or is fenced, otherwise after a grace period.

        A runner that publishes a partial result (WINDING_UP) has longer, unless it gives no sign of life.
        """
        patience, passed_seconds = self.patience, time.monotonic() - self._stopped
        if self.stop is Stop.WINDING_UP:
            silent_seconds = min(self.listener.silent_seconds, passed_seconds)
            return passed_seconds > patience.wind_up_seconds or silent_seconds > patience.wind_up_silent_seconds
        return self.stop in (Stop.FENCED, Stop.SILENT) or passed_seconds > patience.grace_seconds

    def _beat(self, now: float) -> Stop | None:
        if now - self._beaten < self.settings.heartbeat_seconds:
            return None
        try:
            with transaction(self.factory) as session:
                seconds = self.settings.lease_seconds
                jobs.heartbeat(session, **self._this, now=datetime.now(UTC), lease_seconds=seconds)
        except (StaleAttempt, NotFound, Conflict):
            with suppress(SQLAlchemyError), transaction(self.factory, read_only=True) as session:
                job = session.get(Job, self.attempt.job_id)
                if job is not None and job.attempt == self.attempt.number and job.finished_at is not None:
                    self._beaten = now  # the runner has just ended the job itself
                    return None
            return Stop.FENCED
        except SQLAlchemyError:
            # The database is unavailable. Once the lease has expired, another worker may claim the job.
            return Stop.FENCED if now - self._beaten > self.settings.lease_seconds else None
        self._beaten = now
        return None

    def _requested(self, now: float) -> Stop | None:
        if now - self._looked < self.patience.cancel_look_seconds:
            return None
        self._looked = now
        minutes = jobs.reported_silence(self.listener.silent_seconds, self.settings.silent_seconds_max)
        if minutes != self._reported_minutes:
            with suppress(SQLAlchemyError, StaleAttempt, NotFound), transaction(self.factory) as session:
                jobs.report_silence(session, **self._this, minutes=minutes)
                self._reported_minutes = minutes
        with suppress(SQLAlchemyError), transaction(self.factory, read_only=True) as session:
            return _STOPS[jobs.stop_request(session, **self._this)]
        return None

    def settle(self) -> None:
        """End or requeue the job, unless the runner has ended it. A crash here is safe, because the lease expires.

        If this process is shutting down, another attempt continues, and this one does not count as lost. Otherwise, it
        counts as lost. A training that has paid for releases gets more attempts to publish them.
        """
        handed_on = self.stop is Stop.DRAINED or self.draining()
        with suppress(StaleAttempt, NotFound), transaction(self.factory) as session:
            job = session.get(Job, self.attempt.job_id)
            if job is None or job.state is not JobState.RUNNING or job.attempt != self.attempt.number:
                return
            now, goes_on = datetime.now(UTC), job.ended_early is None or job.salvage_attempt == job.attempt
            if job.cancel_requested and not jobs.may_publish(session, job):
                jobs.finish_cancelled(session, **self._this, now=now)
            elif self.stop is Stop.TIME_LIMIT:
                jobs.finish_failed(session, failure_code=FailureCode.TIME_LIMIT, **self._this, now=now)
            elif handed_on:
                jobs.give_back(session, **self._this, now=now)
            elif goes_on and jobs.tries_left(job, self.settings.attempts_max):
                drop_lease(session, self.attempt, now=now)
            else:
                jobs.finish_failed(session, failure_code=FailureCode.WORKER_LOST, **self._this, now=now)
            failpoint("settle.before")


def runner_environment(settings: Settings, inherited: Mapping[str, str]) -> dict[str, str]:
    values = settings.model_dump(mode="json", exclude_none=True)
    prefix = str(settings.model_config.get("env_prefix", ""))
    return {**inherited, **{f"{prefix}{name.upper()}": str(value) for name, value in values.items()}}


def _spawn(settings: Settings, attempt: Attempt, command: Sequence[str], listener: Listener) -> subprocess.Popen[bytes]:
    path = settings.logs_path / f"{attempt.job_id}.{attempt.number}.log"
    make_private_folder(path.parent)
    oldest = time.time() - settings.logs_days * 86_400
    for expired in settings.logs_path.glob("job_*.log") if settings.logs_days else ():
        with suppress(FileNotFoundError):  # another supervisor may remove it first
            if expired.lstat().st_mtime < oldest:
                expired.unlink()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    options = {"--job": attempt.job_id, "--attempt": attempt.number}
    options |= {"--supervisor": os.getpid(), "--signs": listener.theirs}
    try:
        return subprocess.Popen(
            [*command, *(str(word) for pair in options.items() for word in pair)],
            env=runner_environment(settings, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # its own process group, for signals
            pass_fds=(listener.theirs,),
        )
    finally:
        os.close(log)
        listener.close(listener.theirs)  # the runner has inherited the descriptor


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
