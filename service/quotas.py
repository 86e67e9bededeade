"""Quotas for jobs and for uploads of known images, and fair scheduling of jobs among projects.

Errors depend only on the number of jobs or on earlier answers, never on private records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.orm import Session

from obscura.wire.words import JobState
from service.db.access_tables import Project
from service.db.dataset_tables import KnownUploads
from service.db.job_tables import Job
from service.errors import InvalidInput, ObscuraError
from service.identity.access import find
from service.identity.recording import Act, record

QUOTA_MAX = 2**53 - 1  # the largest integer that all JSON parsers represent exactly
Jobs = TypeVar("Jobs", bound=Select[*tuple[Any, ...]])
_KNOWN_OF_PROJECT = 5  # the limit of a project, as a multiple of a key's limit


class QuotaExceeded(ObscuraError):
    """A request exceeds a quota. Nothing was written."""


def set_quota(session: Session, project_id: str, *, jobs_max: int | None) -> Project:
    """Limit the unfinished jobs of a project; None removes the limit. Existing jobs above a new limit continue."""
    project = find(session, Project, project_id, lock=True)
    if jobs_max is not None and not 0 <= jobs_max <= QUOTA_MAX:
        raise InvalidInput(f"A quota of jobs is a whole number from 0 to {QUOTA_MAX}.")
    project.jobs_max = jobs_max
    session.flush()
    record(session, Act.QUOTA_SET, project.id, project_id=project.id)
    return project


def unfinished_jobs(session: Session, project_ids: Sequence[str]) -> Counter[str]:
    """Return the number of queued and running jobs by project."""
    waiting = select(Job.project_id, func.count(Job.id)).group_by(Job.project_id)
    waiting = waiting.where(Job.project_id.in_(project_ids), Job.finished_at.is_(None))  # matches an index
    return Counter({row[0]: row[1] for row in session.execute(waiting)})


def require_jobs(session: Session, project_id: str) -> None:
    """Raise QuotaExceeded if the jobs that a project has just queued exceed its quota."""
    limited = select(Project).where(Project.id == project_id)
    if session.scalars(limited).one().jobs_max is None:
        return
    # Locked, so that two requests cannot both use the last free job of the quota.
    project = session.scalars(limited.with_for_update().execution_options(populate_existing=True)).one()
    if project.jobs_max is not None and unfinished_jobs(session, [project_id])[project_id] > project.jobs_max:
        raise QuotaExceeded(
            f"Project '{project.name}' may have {project.jobs_max} jobs waiting or running at a time, and this request "
            "would exceed that quota. Wait until a job ends, cancel a job, or ask an admin of the installation for a "
            "higher quota.",
            quota="jobs",
            quota_jobs=project.jobs_max,
        )


def in_turn(query: Jobs, now: datetime) -> Jobs:
    """Order jobs for workers so that projects get fair turns, whatever the lengths of their queues.

    The project with the fewest running jobs comes first, then the project with the least recent turn, then the oldest
    job.
    """
    running = (
        select(Job.project_id, func.count().label("jobs"))
        .where(Job.state == JobState.RUNNING, Job.lease_until > now)
        .group_by(Job.project_id)
        .subquery()
    )
    ordered = query.outerjoin(Project, Project.id == Job.project_id)
    ordered = ordered.outerjoin(running, running.c.project_id == Job.project_id)
    turns = (func.coalesce(running.c.jobs, 0), Project.turn_at.is_not(None), Project.turn_at)
    return ordered.order_by(*turns, Job.created_at, Job.id)


def take_turn(session: Session, project_id: str, *, now: datetime) -> None:
    """Record that a worker has claimed a job of a project."""
    session.execute(update(Project).where(Project.id == project_id).values(turn_at=now))


def require_known_uploads(session: Session, project_id: str, key_id: str, most: int, *, now: datetime) -> None:
    """Raise QuotaExceeded if too many answers of today revealed known images to a key or to its project.

    The answer to an upload can reveal that images are in another account. Call this before any lookup, so that the
    error depends only on earlier answers. `most` is the limit per key and day. Projects have a limit too.
    """
    total = select(func.coalesce(func.sum(KnownUploads.count), 0)).where(KnownUploads.day == _day(now))
    for whose, most_each, counted in (
        ("This key", most, KnownUploads.key_id == key_id),
        ("This project", most * _KNOWN_OF_PROJECT, KnownUploads.project_id == project_id),
    ):
        if session.scalars(total.where(counted)).one() >= most_each:
            raise QuotaExceeded(
                f"{whose} has sent {most_each} uploads today that hold images or subjects of other accounts, which is "
                "the daily limit. Upload again after midnight UTC, or ask the operator to raise known_uploads_per_day.",
                quota="known_uploads",
                uploads_max=most_each,
            )


def count_known_upload(session: Session, project_id: str, key_id: str, *, now: datetime) -> None:
    """Count an upload whose answer reveals known images or subjects."""
    session.execute(delete(KnownUploads).where(KnownUploads.day < _day(now - timedelta(days=1))))
    row = session.get(KnownUploads, (project_id, key_id, _day(now)), with_for_update=True)
    if row is None:
        session.add(KnownUploads(project_id=project_id, key_id=key_id, day=_day(now), count=1))
    else:
        row.count += 1
    session.flush()


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).date().isoformat()
