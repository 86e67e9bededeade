"""Finding jobs, releases and samples by id."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.job_tables import Job, Release, Sample
from service.db.words import JobState
from service.errors import NotFound, StaleAttempt


def get_job(session: Session, job_id: str) -> Job:
    """Return a job.

    Raises:
        NotFound: no such job.
    """
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound("There is no such job.", job_id=job_id)
    return job


def get_release(session: Session, release_id: str) -> Release:
    """Return a release.

    Raises:
        NotFound: no such release.
    """
    release = session.get(Release, release_id)
    if release is None:
        raise NotFound("There is no such release.", release_id=release_id)
    return release


def sample_of(session: Session, job_id: str) -> Sample:
    """Return the sample that a sample job draws.

    Raises:
        NotFound: no such sample.
    """
    sample = session.scalar(select(Sample).where(Sample.job_id == job_id))
    if sample is None:
        raise NotFound("There is no sample of this job.", job_id=job_id)
    return sample


def secret_of(session: Session, *, job_id: str, attempt: int) -> bytes:
    """Return the 32 bytes that seed a job's mechanism noise, to its running attempt alone (I9).

    Never log them, store them or put them into an error.

    Raises:
        StaleAttempt: the attempt has been superseded or the job has ended.
    """
    secret = session.scalar(
        select(Job.secret).where(Job.id == job_id, Job.attempt == attempt, Job.state == JobState.RUNNING)
    )
    if secret is None:
        raise StaleAttempt(f"Attempt {attempt} does not run this job.", job_id=job_id, attempt=attempt)
    return bytes.fromhex(secret)
