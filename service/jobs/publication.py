"""Publication: a training's artifact becomes readable in the transaction that pays for it (I7)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.schemas import to_the_minute
from obscura.wire.words import EarlyEnd, EntryKind, JobKind, JobState, ReleaseKind
from service import ledger
from service.audit.receipts import make_receipt
from service.audit.signing import SigningKey
from service.db.base import is_id, new_id
from service.db.job_tables import Job, Release
from service.errors import InvalidInput, LedgerCorruption, StaleAttempt
from service.jobs.endings import end_job, lock_attempt, require_sha256
from service.jobs.evaluations import queue_evaluation
from service.jobs.lookup import stale_attempt
from service.ledger.chain import canonical_json
from service.ledger.commitments import columns_of, row_digest


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
    incomplete: Mapping[str, Any] | None = None,
) -> Release:
    """Publish what was trained: capture, receipt, release row and success in one transaction (I7).

    The evaluation on the dataset that the training names is queued in the same transaction.

    Args:
        session: in a writing transaction.
        job_id: a running training.
        attempt: the current one.
        release_id: `rel_...`, chosen when the artifact was written.
        name: for people.
        artifact_sha256: of the artifact that is in place already, as hex.
        artifact_dir: relative to the data directory.
        card: the privacy card, JSON.
        summary: public facts, JSON.
        key: signs the receipt.
        now: aware.
        kind: what the release is, a `ReleaseKind`.
        incomplete: of a training that ended early, how much of its plan was made, and why it ended, JSON.

    Raises:
        StaleAttempt: the attempt has been superseded, or the job has ended otherwise or was discarded.
        Conflict: the hold was never armed or nothing was charged to it.
        InvalidInput: a field is malformed.
    """
    if not is_id(release_id, "rel"):
        raise InvalidInput("A release id is rel_ and 20 base32 characters.")
    require_sha256(artifact_sha256)
    job = lock_attempt(session, job_id, attempt, JobKind.TRAIN, replay=JobState.SUCCEEDED)
    if job.state is JobState.SUCCEEDED:
        published = session.scalars(select(Release).where(Release.job_id == job_id)).one()
        if (published.id, published.artifact_sha256) != (release_id, artifact_sha256):
            raise stale_attempt(job, attempt)
        return published
    if job.ended_early is EarlyEnd.DISCARDED:
        raise StaleAttempt("What this training has made was discarded.", attempt=attempt, current_attempt=job.attempt)
    hold_id, account_id, dataset_id = _training_ids(job)
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
        incomplete=None if incomplete is None else _json(incomplete),
        created_at=to_the_minute(now),
    )
    ledger.capture(
        session,
        hold_id=hold_id,
        attempt=attempt,
        artifact_sha256=artifact_sha256,
        reason="published",
        now=now,
        release={"id": release_id, "sha256": row_digest("releases", columns_of(release))},
    )
    capture = ledger.entry_of_hold(session, hold_id, EntryKind.CAPTURE)
    release.receipt = make_receipt(session, capture, release_id=release_id, key=key)
    session.add(release)
    if incomplete is None:  # everything was made before anybody could end it
        job.ended_early = job.salvage_attempt = None
    end_job(session, job, JobState.SUCCEEDED, now=now, release_id=release_id)
    if job.evaluation_dataset_id is not None:
        queue_evaluation(session, release, job, job.evaluation_dataset_id, job_id=new_id("job"), now=now)
    return release


def _training_ids(job: Job) -> tuple[str, str, str]:
    if job.hold_id is None or job.account_id is None or job.dataset_id is None:
        raise LedgerCorruption("A training job lacks its hold, account or dataset.", job_id=job.id)
    return job.hold_id, job.account_id, job.dataset_id


def _json(value: Mapping[str, Any]) -> dict[str, Any]:
    try:
        canonical_json(dict(value))
    except (TypeError, ValueError):
        raise InvalidInput("A release's card and summary are JSON with finite numbers.") from None
    return dict(value)
