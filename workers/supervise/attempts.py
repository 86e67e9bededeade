"""Attempts at jobs: claim the next job, and end an attempt whose job has not ended.

The state machine of jobs is in `service.jobs`.
"""

from __future__ import annotations

import enum
import os
import secrets
import socket
import threading
import time
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


@dataclass(frozen=True)
class Attempt:
    """The right to run one attempt at a job, until a later attempt takes over."""

    job_id: str
    number: int


def claim_next(settings: Settings, factory: SessionFactory, *, kind: str, worker: str, now: datetime) -> Attempt | None:
    """Claim the oldest queued job of a kind; return None if there is none, or the disk has no room for results."""
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
    """Claim one job; return None if it is running, has ended, or ends now because it was lost too often.

    A job is not claimed if the database does not belong to the data folder, or this machine lacks its keys.
    """
    with transaction(factory, read_only=True) as session:  # separate, because remote storage can be slow
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
    """Return whether this machine has a job's keys, and the extractor with which it began; otherwise the job waits.

    Machines that share no folder receive keys with a delay, and the disk with the keys may not be mounted. If the
    extractor is missing, a job that has not begun fails with a message.
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
    ready = content.where(Dataset.state == DatasetState.READY)  # other keys have been destroyed
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


_LOOK_SECONDS = 1.0


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
