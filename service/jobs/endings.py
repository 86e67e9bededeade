"""How an attempt ends other than by publication. Each end is one transaction with its ledger entry.

Replaying the message of the attempt that ended the job changes nothing (I12); any other attempt is refused. A training
that has paid for something does not fail or get cancelled before one more attempt has tried to publish that.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.words import TRAIN, EarlyEnd, JobState
from service import ledger, queue
from service.db.job_tables import FailureCode, Job
from service.errors import Conflict, InvalidInput
from service.failpoints import failpoint
from service.jobs.lookup import MadeByJob, lock_job, made_by, stale_attempt
from service.notices import tell_of_job

SHA256_CHARACTERS = frozenset("0123456789abcdef")
# Failures after which what was paid for is published all the same. The others would fail again, or lack the data.
SALVAGED = {code: EarlyEnd(code.value) for code in FailureCode if code.value in {early.value for early in EarlyEnd}}


def finish_made(
    session: Session,
    kind: str,
    table: type[MadeByJob],
    *,
    job_id: str,
    attempt: int,
    found: Mapping[str, Any],
    same: str,
    now: datetime,
) -> MadeByJob:
    """End a job with what it was asked to make. Replaying the message changes nothing.

    Args:
        table: of what it makes.
        job_id: of a running job.
        found: the columns that were empty so far.
        same: the one of them by which a replay is told from another outcome.

    Raises:
        Conflict: it is a job of another kind.
    """
    job = lock_attempt(session, job_id, attempt, kind, replay=JobState.SUCCEEDED)
    made = made_by(session, table, job_id)
    if job.state is JobState.SUCCEEDED:
        if getattr(made, same) != found[same]:
            raise stale_attempt(job, attempt)
        return made
    for column, value in found.items():
        setattr(made, column, value)
    end_job(session, job, JobState.SUCCEEDED, now=now)
    return made


def finish_failed(session: Session, *, job_id: str, attempt: int, failure_code: FailureCode, now: datetime) -> Job:
    """End a failed attempt, and its job unless one more attempt may publish what a training has paid for.

    Returns:
        The job: failed (cancelled, if somebody had asked for that), with what was charged captured and an untouched
        hold returned; or queued once more, to be ended by an attempt that charges nothing.
    """
    job = lock_attempt(session, job_id, attempt, None, replay=JobState.FAILED)
    code = FailureCode(failure_code)
    if job.state is JobState.RUNNING and not _salvage(session, job, code, now=now):
        end_unpublished(session, job, code, now=now)
    return job


def finish_unsaved(session: Session, *, job_id: str, attempt: int, now: datetime) -> Job:
    """End a training of which nothing useful could be made before its budget ended: what was charged is captured."""
    job = lock_attempt(session, job_id, attempt, TRAIN, replay=JobState.FAILED)
    if job.state is JobState.RUNNING:
        end_unpublished(session, job, FailureCode.HOLD_EXHAUSTED, now=now)
    return job


def finish_cancelled(session: Session, *, job_id: str, attempt: int, now: datetime) -> Job:
    """End an attempt that stopped because somebody asked for it: what was charged is captured, nothing is published.

    Raises:
        Conflict: nobody asked, or what the training has paid for is to be published. A worker that stops for its own
            reasons lets its lease expire instead.
    """
    job = lock_attempt(session, job_id, attempt, None, replay=JobState.CANCELLED)
    if job.state is JobState.RUNNING:
        if not job.cancel_requested or may_publish(session, job):
            raise Conflict("Nobody asked for this job to be stopped without publishing.", job_id=job_id)
        settle(session, job, reason="cancelled", now=now)
        end_job(session, job, JobState.CANCELLED, now=now)
    return job


def may_publish(session: Session, job: Job) -> bool:
    """Tell whether a training has paid for something, and nobody has asked to discard it."""
    if job.hold_id is None or job.ended_early is EarlyEnd.DISCARDED:
        return False
    return ledger.get_hold(session, job.hold_id).charged_nano > 0


def tries_left(job: Job, attempts_max: int) -> bool:
    """Tell whether a job whose worker is lost now is tried again.

    An attempt that only publishes what was paid for charges nothing, and is tried as often again: machines that go down
    once more must not cost a release.
    """
    return job.attempts_lost + 1 < attempts_max * (2 if job.salvage_attempt == job.attempt else 1)


def end_unpublished(session: Session, job: Job, code: FailureCode, *, now: datetime) -> None:
    """End a job that publishes nothing; why it ended early, if it did, counts more than how its last attempt ended.

    The caller holds its row's lock.
    """
    early = job.ended_early
    if early in (EarlyEnd.CANCELLED, EarlyEnd.DISCARDED) or (early is None and job.cancel_requested):
        settle(session, job, reason="cancelled", now=now)
        end_job(session, job, JobState.CANCELLED, now=now)
        return
    code = code if early is None else FailureCode(early.value)
    settle(session, job, reason=f"failed: {code.value}", now=now)
    end_job(session, job, JobState.FAILED, now=now, failure_code=code)


def _salvage(session: Session, job: Job, code: FailureCode, *, now: datetime) -> bool:
    """Queue a training once more so that what it has paid for is published; False where there is nothing to hope for.

    That is so when it has paid for nothing, was discarded, when this was that attempt, or the data are gone.
    """
    early = job.ended_early or SALVAGED.get(code)
    if early is None or job.salvage_attempt == job.attempt or not may_publish(session, job):
        return False
    job.state, job.ended_early = JobState.QUEUED, early
    job.lease_owner = job.lease_until = None
    job.progress_version += 1
    session.flush()
    queue.ring(session, job.id, now=now)
    return True


def settle(session: Session, job: Job, *, reason: str, now: datetime) -> None:
    """Close the hold, if there is one, of a job that publishes nothing; or all of them."""
    for position, hold_id in enumerate(holds_of(session, job)):
        if position > 0:
            failpoint("joint.settle")
        ledger.settle(session, hold_id=hold_id, attempt=job.attempt, reason=reason, now=now)


def holds_of(session: Session, job: Job) -> tuple[str, ...]:
    """Return the ids of a job's holds, in the order in which they are locked; none for a job that costs nothing."""
    return () if job.hold_id is None else ledger.holds_of(session, job.id)


def end_job(session: Session, job: Job, state: JobState, *, now: datetime, **facts: Any) -> None:
    """Write a job's final state; the caller holds its row's lock, and has closed its hold.

    It ends no earlier than its hold, whose last entry another process may have dated, with a clock that is ahead.
    """
    held_until = [ledger.get_hold(session, hold_id).updated_at for hold_id in holds_of(session, job)]
    job.state, job.finished_at = state, max([now, *held_until])
    job.lease_owner = job.lease_until = None
    job.progress_version += 1
    for column, value in facts.items():
        setattr(job, column, value)
    session.flush()
    tell_of_job(session, job.project_id, now=now, job_id=job.id, kind=job.kind, state=state.value)


def lock_attempt(session: Session, job_id: str, attempt: int, kind: str | None, *, replay: JobState) -> Job:
    """Lock a job for its current attempt, running or already ended in the `replay` state by this same attempt.

    Raises:
        Conflict: it is a job of another kind.
    """
    job = lock_job(session, job_id)
    if job.attempt != attempt or job.state not in (JobState.RUNNING, replay):
        raise stale_attempt(job, attempt)
    if kind is not None and job.kind != kind:
        raise Conflict(f"This is a {job.kind} job.", job_id=job_id)
    return job


def require_sha256(text: str) -> None:
    """Let the hexadecimal form of a SHA-256 pass.

    Raises:
        InvalidInput: it has another form.
    """
    if len(text) != 64 or not set(text) <= SHA256_CHARACTERS:
        raise InvalidInput("A SHA-256 is 64 lowercase hex digits.")
