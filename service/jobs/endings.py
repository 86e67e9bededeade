"""How an attempt ends: published, sampled, failed or cancelled. Each is one transaction with its ledger entry.

Replaying the message of the attempt that ended the job changes nothing (I12); any other attempt is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service import ledger
from service.db.base import is_id
from service.db.job_tables import FailureCode, Job, JobKind, JobState, Release, ReleaseKind, Sample
from service.errors import Conflict, InvalidInput, LedgerCorruption, NotFound, StaleAttempt
from service.jobs.lookup import sample_of
from service.ledger.chain import canonical_json
from service.ledger.receipts import make_receipt
from service.ledger.signing import SigningKey

SHA256_CHARACTERS = frozenset("0123456789abcdef")


def publish(
    session: Session,
    *,
    job_id: str,
    attempt: int,
    release_id: str,
    name: str,
    artifact_sha256: str,
    artifact_dir: str,
    card: Mapping[str, Any],
    summary: Mapping[str, Any],
    key: SigningKey,
    now: datetime,
    kind: str = ReleaseKind.GENERATOR,
) -> Release:
    """Publish what was trained: capture, receipt, release row and success in one transaction (I7).

    Args:
        session: in a writing transaction.
        job_id: a running training.
        attempt: the current one.
        release_id: `rel_...`, chosen when the artifact was written.
        name: for people.
        artifact_sha256: of the artifact that is in place already, as hex.
        artifact_dir: relative to the data directory.
        card: the privacy card, JSON.
        summary: measurements on public data, JSON.
        key: signs the receipt.
        now: aware.
        kind: what the release is, a `ReleaseKind`.

    Raises:
        StaleAttempt: the attempt has been superseded or the job has ended otherwise.
        Conflict: the hold was never armed or nothing was charged to it.
        InvalidInput: a field is malformed.
    """
    if not is_id(release_id, "rel"):
        raise InvalidInput("A release id is rel_ and 20 base32 characters.")
    _require_sha256(artifact_sha256)
    job = _lock_attempt(session, job_id, attempt, JobKind.TRAIN, replay=JobState.SUCCEEDED)
    if job.state is JobState.SUCCEEDED:
        published = session.scalars(select(Release).where(Release.job_id == job_id)).one()
        if (published.id, published.artifact_sha256) != (release_id, artifact_sha256):
            raise _ended(job, attempt)
        return published
    hold_id, account_id, dataset_id = _training_ids(job)
    ledger.capture(
        session, hold_id=hold_id, attempt=attempt, artifact_sha256=artifact_sha256, reason="published", now=now
    )
    release = Release(
        id=release_id,
        job_id=job_id,
        account_id=account_id,
        dataset_id=dataset_id,
        name=name,
        kind=ReleaseKind(kind),
        artifact_sha256=artifact_sha256,
        artifact_dir=artifact_dir,
        card=_json(card),
        summary=_json(summary),
        receipt=make_receipt(session, hold_id=hold_id, release_id=release_id, key=key),
        created_at=now,
    )
    session.add(release)
    end_job(session, job, JobState.SUCCEEDED, now=now, release_id=release_id)
    return release


def finish_sample(
    session: Session, *, job_id: str, attempt: int, path: str, sha256: str, size_bytes: int, now: datetime
) -> Sample:
    """End a sample job: the file is in place; one zero-cost ledger entry is written.

    Args:
        session: in a writing transaction.
        job_id: a running sampling.
        attempt: the current one.
        path: of the file, relative to the data directory.
        sha256: of the file, as hex.
        size_bytes: of the file, > 0.
        now: aware.

    Raises:
        StaleAttempt: the attempt has been superseded or the job has ended otherwise.
    """
    _require_sha256(sha256)
    if size_bytes <= 0:
        raise InvalidInput("A sample's file is not empty.")
    job = _lock_attempt(session, job_id, attempt, JobKind.SAMPLE, replay=JobState.SUCCEEDED)
    sample = sample_of(session, job_id)
    if job.state is JobState.SUCCEEDED:
        if sample.sha256 != sha256:
            raise _ended(job, attempt)
        return sample
    if job.account_id is None:
        raise LedgerCorruption("A sample job has no account.", job_id=job_id)
    ledger.record_sample(session, account_id=job.account_id, job_id=job_id, release_id=sample.release_id, now=now)
    sample.path, sample.sha256, sample.bytes = path, sha256, size_bytes
    end_job(session, job, JobState.SUCCEEDED, now=now)
    return sample


def finish_failed(session: Session, *, job_id: str, attempt: int, failure_code: FailureCode, now: datetime) -> Job:
    """End a failed attempt for good: what was charged is captured, an untouched hold is returned.

    Raises:
        StaleAttempt: the attempt has been superseded or the job has ended otherwise.
    """
    job = _lock_attempt(session, job_id, attempt, None, replay=JobState.FAILED)
    if job.state is JobState.RUNNING:
        code = FailureCode(failure_code)
        settle(session, job, reason=f"failed: {code.value}", now=now)
        end_job(session, job, JobState.FAILED, now=now, failure_code=code)
    return job


def finish_cancelled(session: Session, *, job_id: str, attempt: int, now: datetime) -> Job:
    """End an attempt that stopped because somebody asked for it: what was charged is captured.

    Raises:
        Conflict: nobody asked. A worker that stops for its own reasons lets its lease expire instead.
        StaleAttempt: the attempt has been superseded or the job has ended otherwise.
    """
    job = _lock_attempt(session, job_id, attempt, None, replay=JobState.CANCELLED)
    if job.state is JobState.RUNNING:
        if not job.cancel_requested:
            raise Conflict("Nobody asked for this job to be cancelled.", job_id=job_id)
        settle(session, job, reason="cancelled", now=now)
        end_job(session, job, JobState.CANCELLED, now=now)
    return job


def settle(session: Session, job: Job, *, reason: str, now: datetime) -> None:
    """Close the hold, if there is one, of a job that publishes nothing."""
    if job.hold_id is not None:
        ledger.settle(session, hold_id=job.hold_id, attempt=job.attempt, reason=reason, now=now)


def end_job(session: Session, job: Job, state: JobState, *, now: datetime, **facts: Any) -> None:
    """Write a job's final state; the caller holds its row's lock."""
    job.state, job.finished_at = state, now
    job.lease_owner = job.lease_until = None
    job.progress_version += 1
    for column, value in facts.items():
        setattr(job, column, value)
    session.flush()


def _lock_attempt(session: Session, job_id: str, attempt: int, kind: JobKind | None, *, replay: JobState) -> Job:
    """Lock a job for its current attempt, running or already ended in the `replay` state by this same attempt."""
    job = session.scalar(
        select(Job).where(Job.id == job_id).with_for_update().execution_options(populate_existing=True)
    )
    if job is None:
        raise NotFound("There is no such job.", job_id=job_id)
    if job.attempt != attempt or job.state not in (JobState.RUNNING, replay):
        raise _ended(job, attempt)
    if kind is not None and job.kind is not kind:
        raise Conflict(f"This is a {job.kind.value} job.", job_id=job_id)
    return job


def _training_ids(job: Job) -> tuple[str, str, str]:
    if job.hold_id is None or job.account_id is None or job.dataset_id is None:
        raise LedgerCorruption("A training job lacks its hold, account or dataset.", job_id=job.id)
    return job.hold_id, job.account_id, job.dataset_id


def _ended(job: Job, attempt: int) -> StaleAttempt:
    return StaleAttempt(
        f"Attempt {attempt} may no longer write: attempt {job.attempt} is {job.state.value}.",
        attempt=attempt,
        current_attempt=job.attempt,
    )


def _require_sha256(text: str) -> None:
    if len(text) != 64 or not set(text) <= SHA256_CHARACTERS:
        raise InvalidInput("A SHA-256 is 64 lowercase hex digits.")


def _json(value: Mapping[str, Any]) -> dict[str, Any]:
    try:
        canonical_json(dict(value))
    except (TypeError, ValueError):
        raise InvalidInput("A release's card and summary are JSON with finite numbers.") from None
    return dict(value)
