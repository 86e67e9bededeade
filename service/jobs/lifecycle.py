"""Leases: one live attempt per job, claimed by compare-and-set. Its number fences later writes.

queued -> running -> (lease expires) running again with the next attempt -> ...; endings.py ends jobs.
Rows are locked in the order job, account, hold.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.orm import Session

from obscura.wire.job_schemas import FailureFacts
from obscura.wire.words import TRAIN, UNFINISHED, EarlyEnd, JobState
from service import ledger, queue, quotas
from service.db.job_tables import FailureCode, Job
from service.errors import Conflict, InvalidInput, StaleAttempt
from service.identity.access import find, visible
from service.jobs.endings import end_job, end_unpublished, lock_attempt, may_publish, tries_left
from service.ledger.stops import LOCKED, InstallationLocked, lock_of, stop_of, stopped

LISTED_MAX = 64
TEXT_CHARACTERS_MAX = 64
_NO_SYNC = {"synchronize_session": False}  # changed rows are refreshed where they are read
SILENT_MINUTES = "silent_minutes"  # in a job's progress, added to its runner's report
# The allow-list for a running job's report: steps and prices known from the plan, and the remaining time.
PROGRESS_KEYS = frozenset(
    {"stage", "step", "steps", "eta_seconds"}
    | {f"{when}_{unit}" for when in ("charged", "planned") for unit in ("nano", "epsilon")}
)


class StopRequest(enum.StrEnum):
    """A request to end a running attempt."""

    WIND_UP = "wind_up"  # charge no more, and publish what exists
    STOP = "stop"  # stop at once, without publishing


def get_job(session: Session, job_id: str) -> Job:
    return find(session, Job, job_id)


def claimable(session: Session, *, now: datetime, kind: str | None = None) -> Sequence[str]:
    """Return the ids of jobs that `claim` may take, in order. Excludes trainings of a stopped account."""
    waiting = quotas.in_turn(select(Job.id).where(_claimable(now)), now)
    if kind is not None:
        waiting = waiting.where(Job.kind == kind)
    return session.scalars(waiting.limit(LISTED_MAX)).all()


def claim(
    session: Session, *, job_id: str, worker: str, now: datetime, lease_seconds: float, attempts_max: int = 3
) -> int | None:
    """Claim a job that is queued, or running with an expired lease.

    Return the number of the attempt, which may run the job until the lease expires or a later attempt takes over.
    Return None if the job cannot be claimed, or another worker is claiming it.

    If a job lost `attempts_max` workers (`tries_left`), or lost one after a cancellation, end the job instead: capture
    its hold if it is armed, otherwise return the hold. A training that has charges first gets the same number of
    attempts again, which only publish.
    """
    # Skip rows that another claimer has locked, so claimers never wait for each other.
    waiting = select(Job).where(Job.id == job_id, _claimable(now)).with_for_update(skip_locked=True, of=Job)
    job = session.scalar(waiting.execution_options(populate_existing=True))
    if job is None:
        return None
    early, lost = job.ended_early, job.state is JobState.RUNNING
    if lost:
        last = not tries_left(job, attempts_max)
        over = job.salvage_attempt == job.attempt and last
        if (job.cancel_requested or early is not None or last) and (over or not may_publish(session, job)):
            job.attempts_lost += 1
            end_unpublished(session, job, FailureCode.WORKER_LOST, now=now)
            return None
        if early is None and last:
            early = EarlyEnd.WORKER_LOST
    taken = (
        update(Job)
        .where(Job.id == job.id, Job.attempt == job.attempt, Job.state == job.state, _claimable(now))
        .values(
            state=JobState.RUNNING,
            attempt=job.attempt + 1,
            attempts_lost=job.attempts_lost + lost,
            lease_owner=worker,
            lease_until=now + timedelta(seconds=lease_seconds),
            ended_early=early,
            salvage_attempt=None if early is None else job.attempt + 1,
            started_at=job.started_at or now,
            progress={name: value for name, value in job.progress.items() if name != SILENT_MINUTES},
            progress_version=Job.progress_version + 1,
        )
    )
    if session.scalar(taken.returning(Job.id), execution_options=_NO_SYNC) is None:
        return None
    session.refresh(job)
    if job.hold_id is not None:
        ledger.fence(session, hold_id=job.hold_id, attempt=job.attempt, now=now)
    quotas.take_turn(session, job.project_id, now=now)
    return job.attempt


def heartbeat(session: Session, *, job_id: str, attempt: int, now: datetime, lease_seconds: float) -> None:
    """Extend the lease of a running attempt. On StaleAttempt, the caller must stop."""
    _change(session, job_id, attempt, lease_until=now + timedelta(seconds=lease_seconds))


def report_progress(session: Session, *, job_id: str, attempt: int, progress: Mapping[str, Any]) -> None:
    """Replace a running job's progress: values for some of PROGRESS_KEYS, which are planned and public (I14)."""
    for name, value in progress.items():
        is_text = name == "stage" and isinstance(value, str) and len(value) <= TEXT_CHARACTERS_MAX
        is_number = name != "stage" and not isinstance(value, bool | str) and isinstance(value, int | float)
        is_absent = name == "eta_seconds" and value is None
        if name not in PROGRESS_KEYS or not (is_text or is_absent or (is_number and math.isfinite(value))):
            raise InvalidInput(f"Progress {name!r} is invalid. The keys are {', '.join(sorted(PROGRESS_KEYS))}.")
    _change(session, job_id, attempt, progress=dict(progress), progress_version=Job.progress_version + 1)


def reported_silence(silent_seconds: float, silent_seconds_max: float) -> int | None:
    """Return half of `silent_seconds_max`, in minutes, if a runner has been silent for at least that time; else None.

    The number does not depend on the runner's next report, so it reveals nothing about a step's duration.
    """
    reported_from = silent_seconds_max / 2
    return None if silent_seconds < reported_from else max(math.floor(reported_from / 60), 1)


def report_silence(session: Session, *, job_id: str, attempt: int, minutes: int | None) -> None:
    """Show that a running attempt has been silent for some minutes; None removes the note."""
    job = lock_attempt(session, job_id, attempt, None, replay=JobState.RUNNING)
    progress = {name: value for name, value in job.progress.items() if name != SILENT_MINUTES}
    progress |= {} if minutes is None else {SILENT_MINUTES: minutes}
    if progress != job.progress:
        job.progress = progress
        job.progress_version += 1
        session.flush()


def secret_of(session: Session, *, job_id: str, attempt: int) -> bytes:
    """Return the 32 bytes that seed the noise of a job's mechanisms. Only its running attempt may call this (I9).

    Never log them, store them or put them into an error.
    """
    running = Job.id == job_id, Job.attempt == attempt, Job.state == JobState.RUNNING
    secret = session.scalar(visible(session, Job, select(Job.secret)).where(*running))
    if secret is None:
        raise StaleAttempt(f"Attempt {attempt} does not run this job.", job_id=job_id, attempt=attempt)
    return bytes.fromhex(secret)


def request_cancel(session: Session, *, job_id: str, now: datetime, discard: bool = False) -> Job:
    """Request the cancellation of a job. A queued job ends at once and its hold is returned. Idempotent.

    A training that has charges stops charging, and publishes its results so far, marked as incomplete. With `discard`,
    also after a cancellation, it publishes nothing; charges stay spent.
    """
    job = find(session, Job, job_id, lock=True)
    if job.state not in (*UNFINISHED, JobState.CANCELLED):
        raise Conflict(f"This job has {job.state.value} already; there is nothing to cancel.", job_id=job_id)
    if job.state is not JobState.CANCELLED:
        cancel(session, job, now=now, discard=discard)
    return job


def cancel(session: Session, job: Job, *, now: datetime, discard: bool = False) -> None:
    """Cancel an unfinished job whose row is locked, as `request_cancel` does."""
    early = None
    if job.kind == TRAIN:
        early = EarlyEnd.DISCARDED if discard else job.ended_early or EarlyEnd.CANCELLED
    if not job.cancel_requested or job.ended_early is not early:
        job.cancel_requested, job.ended_early = True, early
        job.progress_version += 1
        session.flush()
    if job.state is JobState.QUEUED and not may_publish(session, job):
        end_job(session, job, JobState.CANCELLED, reason="cancelled before it started", now=now)


def stop_request(session: Session, *, job_id: str, attempt: int) -> StopRequest | None:
    """Return the request to end a running attempt; None if the attempt may continue.

    An attempt that was started only to publish may also continue, because it charges nothing.
    """
    job = session.get(Job, job_id, populate_existing=True)
    if job is None or job.attempt != attempt or not (job.cancel_requested or job.ended_early is not None):
        return None
    if not may_publish(session, job):
        return StopRequest.STOP if job.cancel_requested else None
    return None if job.salvage_attempt == attempt else StopRequest.WIND_UP


def end_early(session: Session, *, job_id: str, attempt: int, why: EarlyEnd) -> bool:
    """Make a running training stop charging and publish its results; return False if it has no charges."""
    job = find(session, Job, job_id, lock=True)
    running = job.attempt == attempt and job.state is JobState.RUNNING
    if not running or job.salvage_attempt == attempt or not may_publish(session, job):
        return False
    if job.ended_early is None:
        job.ended_early = why
        job.progress_version += 1
        session.flush()
    return True


def give_back(session: Session, *, job_id: str, attempt: int, now: datetime) -> None:
    """Queue a job again because its worker shuts down. The hold remains, and the attempt does not count as lost."""
    queued = {"state": JobState.QUEUED, "lease_owner": None, "lease_until": None}
    _change(session, job_id, attempt, progress_version=Job.progress_version + 1, **queued)
    queue.ring(session, job_id, now=now)


def blocked(session: Session, rows: Sequence[Any]) -> dict[str, FailureFacts]:
    """Return why queued jobs (or rows with a job's columns) cannot start, by job id. Must match `_claimable`."""
    queued = [row for row in rows if row.state is JobState.QUEUED]
    reason = lock_of(session) if queued else None
    lock = None if reason is None else InstallationLocked(reason)
    stops = {payer: lock or stop_of(session, payer) for payer in {row.account_id for row in queued if row.hold_id}}
    errors = {row.id: stops[row.account_id] if row.hold_id else lock for row in queued}
    return {job_id: FailureFacts(code=error.code, message=error.message) for job_id, error in errors.items() if error}


def _claimable(now: datetime) -> ColumnElement[bool]:
    expired = and_(Job.state == JobState.RUNNING, Job.lease_until <= now)
    armable = or_(Job.hold_id.is_(None), ~stopped(Job.account_id))
    return and_(or_(Job.state == JobState.QUEUED, expired), armable, ~LOCKED)


def _change(session: Session, job_id: str, attempt: int, **values: Any) -> None:
    this = Job.id == job_id, Job.attempt == attempt, Job.state == JobState.RUNNING
    changed = update(Job).where(*this).values(**values).returning(Job.id)
    if session.scalar(changed, execution_options=_NO_SYNC) is None:
        job = get_job(session, job_id)
        session.refresh(job)
        raise ledger.stale_attempt(job, attempt)
