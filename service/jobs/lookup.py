"""Find jobs and related rows by id. Raise NotFound for rows that the caller may not see."""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.words import JobState
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Made, Release
from service.errors import NotFound, StaleAttempt
from service.identity.access import find, is_own, project_of, visible

MadeByJob = TypeVar("MadeByJob", bound=Made)


def get_job(session: Session, job_id: str) -> Job:
    return find(session, Job, job_id)


def get_release(session: Session, release_id: str) -> Release:
    return find(session, Release, release_id)


def get_own_release(session: Session, release_id: str) -> Release:
    """Return a release of the caller's own project: sharing a release does not share its account."""
    release = get_release(session, release_id)
    if not is_own(session, project_of(session, release.account_id)):
        raise NotFound(
            "Only the project that trained this release may see this, because it describes its account.",
            release_id=release_id,
        )
    return release


def trained_on(session: Session, release: Release) -> Dataset:
    """Return the dataset of a visible release. Only show its classes and image size: other facts may be hidden."""
    return session.get_one(Dataset, release.dataset_id)


def training_of(session: Session, release: Release) -> Job:
    """Return the training of a visible release. Only show its recipe and options: other facts may be hidden."""
    return session.get_one(Job, release.job_id)


def payer_of(session: Session, release: Release) -> dict[str, str | None]:
    """Return the account and dataset columns for a job on a release.

    They are None for a release shared by another project, because the job belongs to the caller's project.
    """
    own = is_own(session, project_of(session, release.account_id))
    return {name: getattr(release, name) if own else None for name in ("account_id", "dataset_id")}


def made_by(session: Session, table: type[MadeByJob], job_id: str) -> MadeByJob:
    made = session.scalar(visible(session, table).where(table.job_id == job_id))
    if made is None:
        raise NotFound(f"There is no {table.__name__.lower()} of this job.", job_id=job_id)
    return made


def stale_attempt(job: Job, attempt: int) -> StaleAttempt:
    """Return the error for an attempt that may no longer write."""
    return StaleAttempt(
        f"Attempt {attempt} may no longer write: attempt {job.attempt} is {job.state.value}.",
        attempt=attempt,
        current_attempt=job.attempt,
    )


def secret_of(session: Session, *, job_id: str, attempt: int) -> bytes:
    """Return the 32 bytes that seed the noise of a job's mechanisms. Only its running attempt may call this (I9).

    Never log them, store them or put them into an error.
    """
    running = Job.id == job_id, Job.attempt == attempt, Job.state == JobState.RUNNING
    secret = session.scalar(visible(session, Job, select(Job.secret)).where(*running))
    if secret is None:
        raise StaleAttempt(f"Attempt {attempt} does not run this job.", job_id=job_id, attempt=attempt)
    return bytes.fromhex(secret)
