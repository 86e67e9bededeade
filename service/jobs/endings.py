"""End attempts without publishing. An end and its ledger entry are one transaction.

Ending is idempotent for the attempt that ended the job (I12); any other attempt is rejected. If a training has charged
budget, one more attempt tries to publish its results before the training fails or is cancelled.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.words import TRAIN, EarlyEnd, JobState, NoticeKind
from service import ledger, queue
from service.db.job_tables import FailureCode, Job
from service.errors import Conflict
from service.identity.access import find
from service.notices import notify

# Failures after which a training still publishes its paid results. After other failures, it would only fail again.
SALVAGED = {code: EarlyEnd(code.value) for code in FailureCode if code.value in {early.value for early in EarlyEnd}}


def finish_failed(session: Session, *, job_id: str, attempt: int, failure_code: FailureCode, now: datetime) -> Job:
    """End a failed attempt. End its job too, unless one more attempt may publish a training's paid results.

    Return the job: failed (or cancelled, if that was requested), or queued again for one attempt that only publishes.
    """
    job = lock_attempt(session, job_id, attempt, None, replay=JobState.FAILED)
    code = FailureCode(failure_code)
    if job.state is not JobState.RUNNING:
        return job
    early = job.ended_early or SALVAGED.get(code)
    if early is None or job.salvage_attempt == job.attempt or not may_publish(session, job):
        end_unpublished(session, job, code, now=now)
        return job
    job.state, job.ended_early = JobState.QUEUED, early
    job.lease_owner = job.lease_until = None
    job.progress_version += 1
    session.flush()
    queue.ring(session, job.id, now=now)
    return job


def finish_unsaved(session: Session, *, job_id: str, attempt: int, now: datetime) -> Job:
    """End a training whose hold was used up before it had anything useful to publish. Its charges are captured."""
    job = lock_attempt(session, job_id, attempt, TRAIN, replay=JobState.FAILED)
    if job.state is JobState.RUNNING:
        end_unpublished(session, job, FailureCode.HOLD_EXHAUSTED, now=now)
    return job


def finish_cancelled(session: Session, *, job_id: str, attempt: int, now: datetime) -> Job:
    """End an attempt that stopped on request. Its charges are captured, and nothing is published."""
    job = lock_attempt(session, job_id, attempt, None, replay=JobState.CANCELLED)
    if job.state is JobState.RUNNING:
        if not job.cancel_requested or may_publish(session, job):
            raise Conflict("There is no request to stop this job without publishing.", job_id=job_id)
        end_job(session, job, JobState.CANCELLED, reason="cancelled", now=now)
    return job


def may_publish(session: Session, job: Job) -> bool:
    """Return whether a job is a training that has charges and was not discarded."""
    if job.hold_id is None or job.ended_early is EarlyEnd.DISCARDED:
        return False
    return ledger.get_hold(session, job.hold_id).charged_nano > 0


def tries_left(job: Job, attempts_max: int) -> bool:
    """Return whether a job is retried if its worker is lost now.

    An attempt that only publishes charges nothing. It gets the same number of retries again, so that one more lost
    machine does not lose a release.
    """
    return job.attempts_lost + 1 < attempts_max * (2 if job.salvage_attempt == job.attempt else 1)


def end_unpublished(session: Session, job: Job, code: FailureCode, *, now: datetime) -> None:
    """End a locked job without publishing. The reason of an early end takes precedence over `code`."""
    early = job.ended_early
    if early in (EarlyEnd.CANCELLED, EarlyEnd.DISCARDED) or (early is None and job.cancel_requested):
        end_job(session, job, JobState.CANCELLED, reason="cancelled", now=now)
        return
    code = code if early is None else FailureCode(early.value)
    end_job(session, job, JobState.FAILED, reason=f"failed: {code.value}", now=now, failure_code=code)


def end_job(
    session: Session, job: Job, state: JobState, *, now: datetime, reason: str | None = None, **facts: Any
) -> None:
    """Write the final state of a locked job, and the columns in `facts`. A `reason` closes a hold that is still open.

    The end time is not before the hold's last entry, which another process may have dated with a clock that is ahead.
    """
    if reason is not None and job.hold_id is not None:
        ledger.settle(session, hold_id=job.hold_id, attempt=job.attempt, reason=reason, now=now)
    held_until = now if job.hold_id is None else ledger.get_hold(session, job.hold_id).updated_at
    job.state, job.finished_at = state, max(now, held_until)
    job.lease_owner = job.lease_until = None
    job.progress_version += 1
    for column, value in facts.items():
        setattr(job, column, value)
    session.flush()
    facts = {"job_id": job.id, "kind": job.kind, "state": state.value}
    notify(session, NoticeKind.JOB_ENDED, job.project_id, facts, now=now)


def lock_attempt(session: Session, job_id: str, attempt: int, kind: str | None, *, replay: JobState) -> Job:
    """Lock a job. Raise StaleAttempt unless this attempt runs the job, or has ended it in the state `replay`."""
    job = find(session, Job, job_id, lock=True)
    if job.attempt != attempt or job.state not in (JobState.RUNNING, replay):
        raise ledger.stale_attempt(job, attempt)
    if kind is not None and job.kind != kind:
        raise Conflict(f"This is a {job.kind} job.", job_id=job_id)
    return job
