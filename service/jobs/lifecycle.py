"""Leases: one live attempt for each job, claimed by compare-and-set; everything later is fenced by its number.

queued -> running -> (lease expires) running again with the next attempt -> ...; the ends are in endings.py.
Rows are locked in the order job, account, hold.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import ColumnElement, CursorResult, Update, and_, or_, select, update
from sqlalchemy.orm import Session

from obscura.wire.words import TRAIN, UNFINISHED, EarlyEnd, JobState
from service import ledger, queue, quotas
from service.db.job_tables import FailureCode, Job
from service.errors import Conflict, InvalidInput
from service.jobs.endings import end_job, end_unpublished, may_publish, settle, tries_left
from service.jobs.lookup import get_job, lock_job, stale_attempt
from service.jobs.silence import without_silence
from service.ledger.stops import locked, stopped

CANDIDATES, LISTED_MAX = 16, 64  # that one claim looks at, and that are listed
TEXT_CHARACTERS_MAX = 64
# All that a running job may say: steps and prices that follow from the plan, and the time still needed.
PROGRESS_KEYS = frozenset(
    {
        "stage",
        "step",
        "steps",
        "charged_nano",
        "planned_nano",
        "charged_epsilon",
        "planned_epsilon",
        "eta_seconds",
    }
)


class Wish(enum.StrEnum):
    """What a running attempt should do instead of going on."""

    WIND_UP = "wind_up"  # charge no more, and publish what there is
    STOP = "stop"  # at once, publishing nothing


@dataclass(frozen=True)
class Claim:
    """The right to run one attempt of a job until the lease ends or a later attempt takes over."""

    job_id: str
    attempt: int
    kind: str
    account_id: str | None
    hold_id: str | None


def claimable(session: Session, *, now: datetime, kind: str | None = None) -> Sequence[str]:
    """Return the ids of jobs that nobody runs, as they are taken in turn: queued, or running with an expired lease.

    Trainings whose account is stopped are not among them: they wait.
    """
    waiting = quotas.in_turn(select(Job.id).where(_claimable(now)), now)
    if kind is not None:
        waiting = waiting.where(Job.kind == kind)
    return session.scalars(waiting.limit(LISTED_MAX)).all()


def claim(
    session: Session,
    *,
    worker: str,
    now: datetime,
    lease_seconds: float,
    job_id: str | None = None,
    attempts_max: int = 3,
) -> Claim | None:
    """Take the job whose turn it is, of those that nobody runs: queued, or running with an expired lease.

    A job that lost its worker too often, or whose cancellation its lost worker never saw, is ended instead: captured
    when armed, released when held. A training that has paid for something is claimed again before that, as often, only
    to publish it.

    Args:
        lease_seconds: how long the lease lasts without a heartbeat.
        job_id: claim this job or none.
        attempts_max: how many attempts may lose their worker; the job ends with the last of them (`tries_left`).

    Returns:
        The claim, or None when there is nothing to run.
    """
    # A row that somebody else has locked is somebody else's: it is skipped, so claimers never wait for each other.
    waiting = (
        quotas.in_turn(select(Job).where(_claimable(now)), now)
        .limit(CANDIDATES)
        .with_for_update(skip_locked=True, of=Job)
        .execution_options(populate_existing=True)
    )
    if job_id is not None:
        waiting = waiting.where(Job.id == job_id)
    ended = False
    for job in session.scalars(waiting).all():
        early = job.ended_early
        if job.state is JobState.RUNNING:  # its worker was lost
            if _is_over(session, job, attempts_max):
                if not ended:  # one in a transaction: ending locks an account, and two locked accounts could deadlock
                    _end_lost(session, job, now)
                    ended = True
                continue
            if early is None and not tries_left(job, attempts_max):
                early = EarlyEnd.WORKER_LOST
        lease_until = now + timedelta(seconds=lease_seconds)
        taken = _take(session, job, worker=worker, now=now, lease_until=lease_until, early=early)
        if taken is not None:
            return taken
    return None


def heartbeat(session: Session, *, job_id: str, attempt: int, now: datetime, lease_seconds: float) -> bool:
    """Extend the lease of a running attempt.

    Returns:
        Whether somebody asked for the job to be cancelled.

    Raises:
        StaleAttempt: the attempt has been superseded or the job has ended: stop at once.
    """
    beat = _of_attempt(job_id, attempt).values(lease_until=now + timedelta(seconds=lease_seconds))
    _change(session, beat, job_id, attempt)
    return bool(session.scalar(select(Job.cancel_requested).where(Job.id == job_id)))


def report_progress(session: Session, *, job_id: str, attempt: int, progress: Mapping[str, Any]) -> None:
    """Replace what a running job says about itself. Only planned and public facts are let through (I14).

    Args:
        progress: some of PROGRESS_KEYS; the stage is a short text, the others finite numbers.

    Raises:
        InvalidInput: another key, or a value of another kind.
    """
    for name, value in progress.items():
        is_text = name == "stage" and isinstance(value, str) and len(value) <= TEXT_CHARACTERS_MAX
        is_number = name != "stage" and not isinstance(value, bool | str) and isinstance(value, int | float)
        is_absent = name == "eta_seconds" and value is None
        if name not in PROGRESS_KEYS or not (is_text or is_absent or (is_number and math.isfinite(value))):
            raise InvalidInput(f"Progress may not carry {name!r}: only {', '.join(sorted(PROGRESS_KEYS))}.")
    report = _of_attempt(job_id, attempt).values(progress=dict(progress), progress_version=Job.progress_version + 1)
    _change(session, report, job_id, attempt)


def request_cancel(session: Session, *, job_id: str, now: datetime, discard: bool = False) -> Job:
    """Ask for a job to end. A queued one ends at once and its hold is returned; asking twice changes nothing.

    A training that has paid for something charges no more, and publishes what it has made, marked as incomplete.

    Args:
        discard: publish nothing all the same; what was charged stays spent. May be asked for after a cancellation.

    Raises:
        Conflict: the job has succeeded or failed already.
    """
    job = lock_job(session, job_id)
    if job.state not in (*UNFINISHED, JobState.CANCELLED):
        raise Conflict(f"This job has {job.state.value} already; there is nothing to cancel.", job_id=job_id)
    if job.state is not JobState.CANCELLED:
        cancel(session, job, now=now, discard=discard)
    return job


def cancel(session: Session, job: Job, *, now: datetime, discard: bool = False) -> None:
    """As `request_cancel`, of an unfinished job whose row is locked."""
    early = None
    if job.kind == TRAIN:
        early = EarlyEnd.DISCARDED if discard else job.ended_early or EarlyEnd.CANCELLED
    if not job.cancel_requested or job.ended_early is not early:
        job.cancel_requested, job.ended_early = True, early
        job.progress_version += 1
        session.flush()
    if job.state is JobState.QUEUED and not may_publish(session, job):
        settle(session, job, reason="cancelled before it started", now=now)
        end_job(session, job, JobState.CANCELLED, now=now)


def wish_for(session: Session, *, job_id: str, attempt: int) -> Wish | None:
    """Return what a running attempt should do instead of going on; None lets it go on.

    An attempt that was started only to publish winds up as it is.
    """
    job = session.get(Job, job_id, populate_existing=True)
    if job is None or job.attempt != attempt or not (job.cancel_requested or job.ended_early is not None):
        return None
    if not may_publish(session, job):
        return Wish.STOP if job.cancel_requested else None
    return None if job.salvage_attempt == attempt else Wish.WIND_UP


def end_early(session: Session, *, job_id: str, attempt: int, why: EarlyEnd) -> bool:
    """Let a running training charge no more, and publish what it has; False where it has paid for nothing."""
    job = lock_job(session, job_id)
    if job.attempt != attempt or job.state is not JobState.RUNNING or not may_publish(session, job):
        return False
    if job.salvage_attempt == attempt:
        return False
    if job.ended_early is None:
        job.ended_early = why
        job.progress_version += 1
        session.flush()
    return True


def give_back(session: Session, *, job_id: str, attempt: int, now: datetime) -> None:
    """Queue a job again whose worker shuts down. Its hold stays as it is, and the attempt does not count as lost."""
    given = _of_attempt(job_id, attempt).values(
        state=JobState.QUEUED, lease_owner=None, lease_until=None, progress_version=Job.progress_version + 1
    )
    _change(session, given, job_id, attempt)
    queue.ring(session, job_id, now=now)


def _claimable(now: datetime) -> ColumnElement[bool]:
    """Jobs that nobody runs; trainings whose account is stopped, and all jobs of a locked installation, wait."""
    expired = and_(Job.state == JobState.RUNNING, Job.lease_until <= now)
    armable = or_(Job.hold_id.is_(None), ~stopped(Job.account_id))
    return and_(or_(Job.state == JobState.QUEUED, expired), armable, ~locked())


def _take(
    session: Session, job: Job, *, worker: str, now: datetime, lease_until: datetime, early: EarlyEnd | None
) -> Claim | None:
    """Compare and set: the row must still be as it was read."""
    taken = (
        update(Job)
        .where(Job.id == job.id, Job.attempt == job.attempt, Job.state == job.state, _claimable(now))
        .values(
            state=JobState.RUNNING,
            attempt=job.attempt + 1,
            attempts_lost=job.attempts_lost + (job.state is JobState.RUNNING),
            lease_owner=worker,
            lease_until=lease_until,
            ended_early=early,
            salvage_attempt=None if early is None else job.attempt + 1,
            started_at=job.started_at or now,
            progress=without_silence(job.progress),
            progress_version=Job.progress_version + 1,
        )
    )
    if _changed(session, taken) != 1:
        return None
    session.refresh(job)
    if job.hold_id is not None:
        ledger.fence(session, hold_id=job.hold_id, attempt=job.attempt, now=now)
    quotas.take_turn(session, job.project_id, now=now)
    return Claim(job.id, job.attempt, job.kind, job.account_id, job.hold_id)


def _is_over(session: Session, job: Job, attempts_max: int) -> bool:
    """Tell whether a job whose worker was lost is not tried again."""
    again = tries_left(job, attempts_max)
    if job.cancel_requested or job.ended_early is not None or not again:
        return (job.salvage_attempt == job.attempt and not again) or not may_publish(session, job)
    return False


def _end_lost(session: Session, job: Job, now: datetime) -> None:
    """End a job that cannot be recovered: towards spent, never towards refunded (DESIGN: expiry captures)."""
    job.attempts_lost += 1
    end_unpublished(session, job, FailureCode.WORKER_LOST, now=now)


def _of_attempt(job_id: str, attempt: int) -> Update:
    return update(Job).where(Job.id == job_id, Job.attempt == attempt, Job.state == JobState.RUNNING)


def _change(session: Session, statement: Update, job_id: str, attempt: int) -> None:
    """Write to the job of a running attempt, or raise StaleAttempt (NotFound: no such job)."""
    if _changed(session, statement) != 1:
        job = get_job(session, job_id)
        session.refresh(job)
        raise stale_attempt(job, attempt)


def _changed(session: Session, statement: Update) -> int:
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount
