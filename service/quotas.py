"""What a project may take of what all share, and whose turn it is: disk, jobs, hours of workers. Never commits.

All is counted from what was declared or asked for, and from the times of jobs as everybody in the project is shown
them: a refusal tells nothing else of the records. What runs already is never ended by a quota.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Select, and_, case, cast, delete, extract, func, select, update
from sqlalchemy.orm import Session

from obscura.wire.schemas import to_the_minute
from obscura.wire.words import UNFINISHED, DatasetState, JobState
from service.access import find
from service.db.dataset_tables import Dataset, KnownUploads
from service.db.job_tables import Job, Release, Sample
from service.db.project_tables import Project
from service.errors import InvalidInput, ObscuraError
from service.recording import Act, record

QUOTA_MAX = 2**53 - 1  # what every reader of JSON keeps exactly
SHOWN_BYTES = 100_000_000  # bytes are told as a multiple of these, rounded up
Jobs = TypeVar("Jobs", bound=Select[*tuple[Any, ...]])
_LIMITS = {"disk_bytes_max": "disk", "jobs_max": "jobs", "worker_hours_max": "worker hours"}
_KEPT = tuple(state for state in DatasetState if state not in (DatasetState.FAILED, DatasetState.DELETED))
_KNOWN_OF_PROJECT = 5  # times as many uploads of known images as a key
_DRAWN = (*UNFINISHED, JobState.SUCCEEDED)


class QuotaExceeded(ObscuraError):
    """What is asked for is more than a quota leaves to the project. Nothing was written."""

    code: ClassVar[str] = "quota_exceeded"


@dataclass(frozen=True)
class Use:
    """What a project takes: bytes as they were declared, unfinished jobs, and whole hours of workers this month."""

    disk_bytes: int
    jobs: int
    worker_hours: int


def set_quota(session: Session, project_id: str, changes: Mapping[str, int | None]) -> Project:
    """Change a project's quota; whoever uses more than that keeps it, and gets nothing more.

    Args:
        changes: by the columns `disk_bytes_max`, `jobs_max`, `worker_hours_max`; None lifts one, and what is left out
            stays.

    Raises:
        NotFound: no such project.
        InvalidInput: one is no whole number from 0 on.
    """
    project = find(session, Project, project_id, lock=True)
    for column, most in changes.items():
        if most is not None and not 0 <= most <= QUOTA_MAX:
            raise InvalidInput(f"A quota of {_LIMITS[column]} is a whole number from 0 on.")
        setattr(project, column, most)
    session.flush()
    record(session, Act.QUOTA_SET, project.id, project_id=project.id)
    return project


def uses_of(session: Session, projects: Sequence[Project], *, now: datetime) -> dict[str, Use]:
    """Return what projects take, by their ids; whoever sees a project may see that."""
    ids = [project.id for project in projects]
    disk, jobs, hours = _disk_bytes(session, ids), _jobs(session, ids), _worker_hours(session, ids, now)
    return {project_id: Use(disk[project_id], jobs[project_id], hours[project_id]) for project_id in ids}


def shown_bytes(declared: int) -> int:
    """Return a sum of declared bytes as it is told: rounded up, for it may be told to who sees no dataset."""
    return -(-declared // SHOWN_BYTES) * SHOWN_BYTES


def require_disk(session: Session, project_id: str) -> None:
    """Let pass what was just added to a project, if what it has declared fits its quota.

    Raises:
        QuotaExceeded: it does not.
    """
    project = _limited(session, project_id, "disk_bytes_max")
    if project is None:
        return
    used, most = _disk_bytes(session, [project_id])[project_id], project.disk_bytes_max or 0
    if used > most:
        raise QuotaExceeded(
            f"Project *{project.name}* would take {used / 1e9:,.2f} GB of disk, as declared, and its quota is "
            f"{most / 1e9:,.2f} GB. Delete datasets that nobody needs, declare or draw fewer images, or ask an admin "
            "of the installation for more.",
            quota="disk",
            used_bytes=used,
            quota_bytes=most,
        )


def require_jobs(session: Session, project_id: str, *, now: datetime) -> None:
    """Let jobs pass that a project has just queued, if its quotas leave room for them.

    Raises:
        QuotaExceeded: they do not.
    """
    require_disk(session, project_id)  # what is drawn takes some
    project = _limited(session, project_id, "jobs_max", "worker_hours_max")
    if project is None:
        return
    if project.jobs_max is not None and _jobs(session, [project_id])[project_id] > project.jobs_max:
        raise QuotaExceeded(
            f"Project *{project.name}* may have {project.jobs_max} jobs waiting or running at a time, and with this "
            "there would be more. Wait until one has ended, cancel one, or ask an admin of the installation for more.",
            quota="jobs",
            quota_jobs=project.jobs_max,
        )
    if project.worker_hours_max is not None:
        hours = _worker_hours(session, [project_id], now)[project_id]
        if hours >= project.worker_hours_max:
            raise QuotaExceeded(
                f"Project *{project.name}* has used {hours} hours of workers this month (UTC), and its quota is "
                f"{project.worker_hours_max}. What runs goes on. Wait for the next month, or ask an admin of the "
                "installation for more.",
                quota="worker_hours",
                used_hours=hours,
                quota_hours=project.worker_hours_max,
            )


def in_turn(query: Jobs, now: datetime) -> Jobs:
    """Put jobs in the order in which workers take them.

    First comes the project with the fewest running jobs; of several the one whose last turn is longest ago; and of its
    jobs the oldest. So nobody waits for the queue of another project: whoever has waited longest has had the fewest
    turns, and whatever has a job running has its share of the workers.
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
    """Note that a worker has taken a job of a project."""
    session.execute(update(Project).where(Project.id == project_id).values(turn_at=now))


def _limited(session: Session, project_id: str, *columns: str) -> Project | None:
    """Return a project, locked so that two requests cannot both take what is left; None without such a quota."""
    limited = select(Project).where(Project.id == project_id)
    project = session.scalars(limited).one()
    if all(getattr(project, column) is None for column in columns):
        return None
    return session.scalars(limited.with_for_update().execution_options(populate_existing=True)).one()


def _disk_bytes(session: Session, project_ids: Sequence[str]) -> Counter[str]:
    """A byte for each number of each image: of the datasets as many images as were declared, and of what was drawn."""
    image = cast(Dataset.height, BigInteger) * Dataset.width * Dataset.channels
    declared = select(Dataset.project_id, func.sum(image * Dataset.records_declared)).where(
        Dataset.project_id.in_(project_ids), Dataset.state.in_(_KEPT), Dataset.erased_at.is_(None)
    )
    # All samples have a job. Outer and coalesced, so that SQLite looks up the job of each sample, which are fewer, and
    # does not look for samples of all jobs of the project.
    drawn = (
        select(Job.project_id, func.sum(image * Sample.count))
        .select_from(Sample)
        .outerjoin(Job, and_(Job.id == Sample.job_id, Job.state.in_(_DRAWN)))
        .join(Release, Release.id == Sample.release_id)
        .join(Dataset, Dataset.id == Release.dataset_id)
        .where(func.coalesce(Job.project_id, "").in_(project_ids), Sample.removed_at.is_(None))
    )
    found: Counter[str] = Counter()
    for query in (declared.group_by(Dataset.project_id), drawn.group_by(Job.project_id)):
        for project_id, size in session.execute(query):
            found[project_id] += int(size)
    return found


def _jobs(session: Session, project_ids: Sequence[str]) -> Counter[str]:
    waiting = select(Job.project_id, func.count(Job.id))  # that have no end is what is unfinished, as the table checks
    waiting = waiting.where(Job.project_id.in_(project_ids), Job.finished_at.is_(None)).group_by(Job.project_id)
    return Counter({row[0]: row[1] for row in session.execute(waiting)})


def _worker_hours(session: Session, project_ids: Sequence[str], now: datetime) -> dict[str, int]:
    """Whole hours of this month (UTC) between the minutes that are shown as start and end of the projects' jobs.

    Of each job both times are rounded down to the minute; the sum of all jobs is rounded down to the hour.
    """
    month = to_the_minute(now).replace(day=1, hour=0, minute=0)
    begin = case((Job.started_at < month, month), else_=Job.started_at)
    end = func.coalesce(Job.finished_at, now)
    between = _minutes_on_sqlite if session.get_bind().dialect.name == "sqlite" else _minutes_on_postgresql
    ran = select(Job.project_id, func.sum(between(begin, end))).where(
        Job.project_id.in_(project_ids), end >= Job.started_at, end >= month
    )
    minutes = {row[0]: row[1] for row in session.execute(ran.group_by(Job.project_id))}
    return {project_id: int(minutes.get(project_id, 0)) // 60 for project_id in project_ids}


def _minutes_on_sqlite(begin: ColumnElement[Any], end: ColumnElement[Any]) -> ColumnElement[float]:
    """Return the minutes between the minutes of two times: `YYYY-MM-DD HH:MM` is how SQLite's texts of times begin.

    A Julian day is precise to 40 microseconds, so the product is a whole number but for an error that `round` takes.
    """
    return func.round((func.julianday(func.substr(end, 1, 16)) - func.julianday(func.substr(begin, 1, 16))) * 1440)


def _minutes_on_postgresql(begin: ColumnElement[Any], end: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the minutes between the minutes of two times."""
    return extract("epoch", func.date_trunc("minute", end) - func.date_trunc("minute", begin)) / 60


def require_known_uploads(session: Session, project_id: str, key_id: str, most: int, *, now: datetime) -> None:
    """Raise if a key, or all keys in a project, have learned too often today whether images are known.

    Whoever uploads a guess learns from the answer whether its image is in another account. Call it before anything is
    looked up, so that the error depends on earlier answers alone.

    Args:
        most: such answers to a key per day; its project gets more, and whoever makes new keys does not.

    Raises:
        QuotaExceeded: names the limit.
    """
    total = select(func.coalesce(func.sum(KnownUploads.count), 0)).where(KnownUploads.day == _day(now))
    for whose, most_each, counted in (
        ("This key", most, KnownUploads.key_id == key_id),
        ("This project", most * _KNOWN_OF_PROJECT, KnownUploads.project_id == project_id),
    ):
        if session.scalars(total.where(counted)).one() >= most_each:
            raise QuotaExceeded(
                f"{whose} has sent {most_each} uploads today that hold images or subjects of other accounts, the most "
                "per day. Upload again after midnight UTC, or ask the operator to raise known_uploads_per_day.",
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
