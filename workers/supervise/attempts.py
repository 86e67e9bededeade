"""Attempts at jobs: claiming the next job, and the signals between a runner and its supervisor.

The state machine of jobs is in `service.jobs`. A runner ends with an `ExitStatus`, stops if its parent is gone, and
gives signs of life: bytes that its main loop writes into a pipe, so that its supervisor notices a hang.

A runner writes a sign with every report, before every layer of a network and after every optimiser step
(`workers.train.process`). No other thread writes signs, because its signs would not show that the main loop makes
progress. A step consists of passes of one public size, so the time between two signs does not depend on the number of
sampled records.
"""

from __future__ import annotations

import enum
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from obscura.wire.words import TRAIN, DatasetState, EarlyEnd
from privacy.plans.options import PUBLIC_DATASET_OPTIONS
from service import jobs, ledger, queue
from service.datasets.vault import Vault
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import SessionFactory, among, transaction
from service.disk import short_of_room
from service.errors import ObscuraError
from service.failpoints import failpoint
from service.installation import belongs
from service.logs import get_logger
from service.settings import Settings
from service.storage import is_elsewhere
from service.storage.interface import StorageUnavailable

_LOOK_SECONDS = 1.0  # between two looks at the parent process
_APART_SECONDS = 0.5  # minimum between two signs, because layers may take microseconds
_UNHEARD_SECONDS = 5.0  # a longer pause between two calls of `listen` counts as this much silence


@dataclass(frozen=True)
class Attempt:
    """The right to run one attempt at a job, until a later attempt takes over."""

    job_id: str
    number: int


def claim_next(settings: Settings, factory: SessionFactory, *, kind: str, worker: str, now: datetime) -> Attempt | None:
    """Claim the oldest queued job of a kind. Return None if there is none, or the disk has no room for results."""
    if short_of_room(settings):
        return None
    with transaction(factory, read_only=True) as session:
        waiting = jobs.claimable(session, now=now, kind=kind)
    for job_id in waiting:
        try:
            attempt = claim_job(settings, factory, job_id=job_id, worker=worker, now=now)
        except StorageUnavailable:
            raise
        except ObscuraError as error:  # one account's error, such as a corrupt ledger, must not stop the others
            get_logger(__name__).error("claim_refused", job_id=job_id, code=error.code)
            continue
        if attempt is not None:
            return attempt
    return None


def claim_job(
    settings: Settings, factory: SessionFactory, *, job_id: str, worker: str, now: datetime
) -> Attempt | None:
    """Claim one job. Return None if it is running or has ended.

    If a job has lost too many attempts, end it and return None. Also return None if the database does not belong to the
    data folder, or this machine lacks the job's files.
    """
    with transaction(factory, read_only=True) as session:  # no write lock, because remote storage can be slow
        job = session.get(Job, job_id)
        fit = belongs(session, settings)
        if fit and job is not None and job.ended_early is not EarlyEnd.DISCARDED:  # ending a job needs no files
            fit = has_files(session, settings, job)
    if not fit:
        return None
    with transaction(factory) as session:
        ledger.require_clock(session, now)  # leases cannot be judged with a wrong clock
        number = jobs.claim(
            session,
            worker=worker,
            now=now,
            lease_seconds=settings.lease_seconds,
            job_id=job_id,
            attempts_max=settings.attempts_max,
        )
        failpoint("claim.before")
    failpoint("claim.after")
    return None if number is None else Attempt(job_id, number)


def has_files(session: Session, settings: Settings, job: Job) -> bool:
    """Return whether this machine has a job's keys and, if the job has begun, its extractor. If not, the job waits.

    Machines that share no folder receive keys with a delay, and the disk with the keys may not be mounted. A job that
    has not begun does not wait for its extractor: it starts, and fails with a message.
    """
    config = {} if job.plan is None else job.plan.get("config", {})
    name = "" if job.attempt == 0 else config.get("extractor", "")
    files = [settings.extractors_path / f"{name}{suffix}" for suffix in (".json", ".safetensors") if name]
    if lacking := [path.name for path in files if not path.is_file()]:
        get_logger(__name__).warning("extractor_missing", job_id=job.id, files=lacking)
        return False
    mounted = (settings.keys_path / "datasets").is_dir() and settings.ledger_key_path.exists()
    if mounted and not is_elsewhere(settings):
        return True
    reads = [config.get(name) for name in PUBLIC_DATASET_OPTIONS]
    reads.append(job.dataset_id if job.kind == TRAIN else job.evaluation_dataset_id)
    content = select(func.coalesce(Dataset.content_name, Dataset.id))
    ready = content.where(Dataset.state == DatasetState.READY)  # datasets in other states have no keys
    wanted = among(session, ready, Dataset.id, [each for each in reads if each])
    paths = [settings.ledger_key_path, *(Vault.of(settings).key_path(name) for name in sorted(wanted))]
    if missing := [path.name for path in paths if not path.exists()]:
        get_logger(__name__).warning("keys_missing", job_id=job.id, files=missing, folder=str(settings.keys_path))
    return not missing


def drop_lease(session: Session, attempt: Attempt, *, now: datetime) -> None:
    """Expire the lease of an attempt whose runner died, so that the job can be claimed at once."""
    jobs.heartbeat(session, job_id=attempt.job_id, attempt=attempt.number, now=now, lease_seconds=0)
    queue.ring(session, attempt.job_id, now=now)


def worker_name(role: str) -> str:
    """Return a unique name for this process's leases: role, host, process id and a random part."""
    return f"{role}@{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}"


class ExitStatus(enum.IntEnum):
    """Exit statuses of a runner. The state of the job is in the database."""

    ENDED = 0  # the job has ended: succeeded, failed or cancelled
    STALE = 3  # another attempt has taken over; nothing was written
    LOST = 4  # database or storage unavailable, or a process of the training died; the attempt counts
    INTERRUPTED = 75  # stopped, or without a supervisor: another attempt continues (EX_TEMPFAIL)


def watch_parent(stop: threading.Event, *, parent: int, grace_seconds: float) -> threading.Thread:
    """Start a thread that sets `stop` when the parent process changes, and exits the process after the grace period."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        stop.set()
        time.sleep(grace_seconds)
        os._exit(ExitStatus.INTERRUPTED)

    thread = threading.Thread(target=watch, name="obscura-parent-watch", daemon=True)
    thread.start()
    return thread


class SignsOfLife:
    """The runner's end of the pipe for signs of life. Without a supervisor, `descriptor` is None."""

    def __init__(self, descriptor: int | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._descriptor, self._clock = descriptor, clock
        self._given = float("-inf")

    def give(self) -> None:
        """Write a sign if there is a descriptor. Never block or raise. Call this only in the main loop."""
        now = self._clock()
        if self._descriptor is not None and now - self._given >= _APART_SECONDS:
            self._given = now
            with suppress(OSError):
                os.write(self._descriptor, b".")


class Listener:
    """The supervisor's end of the pipe for signs of life. Close it when the runner is gone.

    The runner inherits the descriptor `theirs`. `silent_seconds` is the result of the last `listen`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mine, self.theirs = os.pipe()
        self._open = {self._mine, self.theirs}
        for descriptor in self._open:
            os.set_blocking(descriptor, False)
        self._listened, self.silent_seconds = clock(), 0.0

    def listen(self) -> float:
        """Return the seconds since the last sign of life or, if there was none yet, since the start.

        A long pause between two calls counts as a few seconds, because a paused container also pauses the runner.
        """
        now = self._clock()
        passed, self._listened = min(now - self._listened, _UNHEARD_SECONDS), now
        try:
            heard = bool(os.read(self._mine, 2**16))
        except BlockingIOError:
            heard = False
        self.silent_seconds = 0.0 if heard else self.silent_seconds + passed
        return self.silent_seconds

    def close(self, *descriptors: int) -> None:
        """Close the given descriptors in this process, by default both ends. Idempotent."""
        for descriptor in self._open.intersection(descriptors or self._open):
            self._open.remove(descriptor)
            os.close(descriptor)
