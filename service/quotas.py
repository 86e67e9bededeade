"""Quotas of jobs and of uploads of known images, and the fair order of the jobs of several projects.

An error depends only on the number of jobs, or on earlier answers: never on private records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.orm import Session

from obscura.wire.words import JobState
from service.db.dataset_tables import KnownUploads
from service.db.job_tables import Job
from service.db.project_tables import Project
from service.errors import InvalidInput, ObscuraError
from service.identity.access import find
from service.identity.recording import Act, record

QUOTA_MAX = 2**53 - 1  # the largest integer that every JSON parser keeps exactly
Jobs = TypeVar("Jobs", bound=Select[*tuple[Any, ...]])
_KNOWN_OF_PROJECT = 5  # a project may have this many times the uploads of known images of a key


class QuotaExceeded(ObscuraError):
    """A request exceeds a quota. Nothing was written."""


def set_quota(session: Session, project_id: str, *, jobs_max: int | None) -> Project:
    """Limit the unfinished jobs of a project; None removes the limit. Jobs beyond a new limit continue."""
    project = find(session, Project, project_id, lock=True)
    if jobs_max is not None and not 0 <= jobs_max <= QUOTA_MAX:
        raise InvalidInput(f"A quota of jobs is a whole number from 0 to {QUOTA_MAX}.")
    project.jobs_max = jobs_max
    session.flush()
    record(session, Act.QUOTA_SET, project.id, project_id=project.id)
    return project


def unfinished_jobs(session: Session, project_ids: Sequence[str]) -> Counter[str]:
    """Count the jobs that wait or run, by project."""
    waiting = select(Job.project_id, func.count(Job.id)).group_by(Job.project_id)
    waiting = waiting.where(Job.project_id.in_(project_ids), Job.finished_at.is_(None))  # as an index has them
    return Counter({row[0]: row[1] for row in session.execute(waiting)})


def require_jobs(session: Session, project_id: str) -> None:
    """Raise QuotaExceeded if the jobs that a project has just queued exceed its quota."""
    limited = select(Project).where(Project.id == project_id)
    if session.scalars(limited).one().jobs_max is None:
        return
    # Locked, so that two requests cannot both take the last place.
    project = session.scalars(limited.with_for_update().execution_options(populate_existing=True)).one()
    if project.jobs_max is not None and unfinished_jobs(session, [project_id])[project_id] > project.jobs_max:
        raise QuotaExceeded(
            f"Project *{project.name}* may have {project.jobs_max} jobs waiting or running at a time, and this would "
            "exceed that. Wait until one has ended, cancel one, or ask an admin of the installation for more.",
            quota="jobs",
            quota_jobs=project.jobs_max,
        )


def in_turn(query: Jobs, now: datetime) -> Jobs:
    """Order jobs as workers take them, fair among projects whatever the length of their queues.

    The project with the fewest running jobs comes first, then the one whose last turn is longest ago, then the oldest
    job.
    """
    running = (
        select(Job.project_id, func.count().label("jobs"))
        .where(Job.state == JobState.RUNNING, Job.lease_until > now)
        .group_by(Job.project_id)
        .subquery()
    )
    ordered = query.outerjoin(Project, Project.id == Job.project_id).outerjoin(
        running, running.c.project_id == Job.project_id
    )
    turns = (func.coalesce(running.c.jobs, 0), Project.turn_at.is_not(None), Project.turn_at)
    return ordered.order_by(*turns, Job.created_at, Job.id)


def take_turn(session: Session, project_id: str, *, now: datetime) -> None:
    """Record that a worker has taken a job of a project."""
    session.execute(update(Project).where(Project.id == project_id).values(turn_at=now))


def require_known_uploads(session: Session, project_id: str, key_id: str, most: int, *, now: datetime) -> None:
    """Raise QuotaExceeded if a key, or all keys of a project, have learned too often today whether images are known.

    The answer to an upload reveals whether its images are in another account. Call this before any lookup, so that the
    error depends on earlier answers alone. `most` is per key and day. A project gets more, so new keys do not help.
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
    """Count an upload whose answer reveals that its images or subjects are known."""
    session.execute(delete(KnownUploads).where(KnownUploads.day < _day(now - timedelta(days=1))))
    row = session.get(KnownUploads, (project_id, key_id, _day(now)), with_for_update=True)
    if row is None:
        session.add(KnownUploads(project_id=project_id, key_id=key_id, day=_day(now), count=1))
    else:
        row.count += 1
    session.flush()


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).date().isoformat()
