"""Attempts at jobs: taking a job and giving it back, and how the process of one ends.

The job's own state machine is in service.jobs; here is only which job to try next, and how an attempt ends that has
not ended its job.
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
    """The right to run one attempt of a job, until a later attempt takes over."""

    job_id: str
    number: int


def claim_next(settings: Settings, factory: SessionFactory, *, kind: str, worker: str, now: datetime) -> Attempt | None:
    """Claim the oldest job of a kind that nobody runs; None when no job waits, or a disk has no room for it."""
    if short_of_room(settings):
        return None  # it waits, where it would have paid for what nobody could keep
    with transaction(factory, read_only=True) as session:
        waiting = jobs.claimable(session, now=now, kind=kind)
    for job_id in waiting:
        try:
            attempt = claim_job(settings, factory, job_id=job_id, worker=worker, now=now)
        except StorageUnavailable:
            raise
        except ObscuraError as error:  # such as a corrupt ledger: one account's trouble must not stop the others
            get_logger(__name__).error("claim_refused", job_id=job_id, code=error.code)
            continue
        if attempt is not None:
            return attempt
    return None


def claim_job(
    settings: Settings, factory: SessionFactory, *, job_id: str, worker: str, now: datetime
) -> Attempt | None:
    """Claim one job; None when somebody runs it, it has ended, or it is ended now because it was lost too often.

    Nobody claims anything of a database that is not the data folder's: it would look for its files in vain. Nor what
    needs a key that this machine does not have.
    """
    with transaction(factory, read_only=True) as session:  # a storage elsewhere may take its time
        if not belongs(session, settings) or not _is_fit(session, settings, job_id):
            return None
    with transaction(factory) as session:
        ledger.require_clock(session, now)  # another clock finds leases over that are not, or none
        claim = jobs.claim(
            session,
            worker=worker,
            now=now,
            lease_seconds=settings.lease_seconds,
            job_id=job_id,
            attempts_max=settings.attempts_max,
        )
        failpoint("claim.before")
    failpoint("claim.after")
    return None if claim is None else Attempt(claim.job_id, claim.attempt)


def _is_fit(session: Session, settings: Settings, job_id: str) -> bool:
    """Tell whether this machine has what a job needs, which may be that it is ended."""
    job = session.get(Job, job_id)
    if job is None or job.ended_early is EarlyEnd.DISCARDED:
        return True
    return has_keys(session, settings, job) and has_extractor(settings, job)


def has_keys(session: Session, settings: Settings, job: Job) -> bool:
    """Tell whether this machine has the keys that a job needs. Where machines share no folder, they may be on their
    way, and another machine may have them; and the disk of the keys may not be mounted. The job waits, where it would
    fail."""
    mounted = (settings.keys_path / "datasets").is_dir() and settings.ledger_key_path.exists()
    if mounted and not is_elsewhere(settings):
        return True
    config = {} if job.plan is None else job.plan.get("config", {})
    reads = [config.get(name) for name in PUBLIC_DATASET_OPTIONS]
    if job.kind == TRAIN:
        reads.append(job.dataset_id)
    else:
        reads.append(job.evaluation_dataset_id)
    content = select(func.coalesce(Dataset.content_name, Dataset.id))
    ready = content.where(Dataset.state == DatasetState.READY)  # the keys of others are gone for good
    wanted = among(session, ready, Dataset.id, [each for each in reads if each])
    paths = [settings.ledger_key_path, *(Vault.of(settings).key_path(name) for name in sorted(wanted))]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        get_logger(__name__).warning("keys_missing", job_id=job.id, files=missing, folder=str(settings.keys_path))
    return not missing


def has_extractor(settings: Settings, job: Job) -> bool:
    """Tell whether this machine has the network that a job needs which was begun with it: it waits, and others do not
    wait for it. One that was not begun fails, and says so."""
    name = "" if job.attempt == 0 or job.plan is None else job.plan.get("config", {}).get("extractor", "")
    paths = [settings.extractors_path / f"{name}{suffix}" for suffix in (".json", ".safetensors") if name]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        get_logger(__name__).warning("extractor_missing", job_id=job.id, files=missing)
    return not missing


def drop_lease(session: Session, attempt: Attempt, *, now: datetime) -> None:
    """Let the next claim take the job at once, because its runner died. The attempt counts as lost.

    Raises:
        StaleAttempt: the attempt has been superseded or the job has ended.
    """
    jobs.heartbeat(session, job_id=attempt.job_id, attempt=attempt.number, now=now, lease_seconds=0)
    queue.ring(session, attempt.job_id, now=now)


def worker_name(role: str) -> str:
    """Return the name under which this process holds leases: role, host, process, and something never used twice."""
    return f"{role}@{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}"


class ExitStatus(enum.IntEnum):
    """How the runner left. The database says what became of the job; this says why the process is gone."""

    ENDED = 0  # the job has ended: succeeded, failed or cancelled
    STALE = 3  # another attempt has taken over; nothing was written
    LOST = 4  # database or storage could not be reached, or a process of the training died; the attempt counts
    INTERRUPTED = 75  # told to stop, or its supervisor is gone: another attempt goes on (EX_TEMPFAIL)


_LOOK_SECONDS = 1.0


def watch_parent(stop: threading.Event, *, parent: int, grace_seconds: float) -> threading.Thread:
    """Stop when the parent is gone, and leave for good if the step that runs takes longer than is allowed.

    Args:
        stop: is set when the parent has changed.
        parent: process id of who started this process.
        grace_seconds: for the step that runs.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        stop.set()
        time.sleep(grace_seconds)
        os._exit(ExitStatus.INTERRUPTED)

    thread = threading.Thread(target=watch, name="obscura-parent-watch", daemon=True)
    thread.start()
    return thread
