"""Projects: the departments of an installation, isolated from each other."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, exists, not_
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Entity, Name

EVERY_PROJECT = "*"  # instead of a project id: all projects
DEFAULT_PROJECT = "prj_default"  # the project that every installation has


class Project(Entity):
    """A department. Its accounts, public datasets and keys never move to another project. Projects are never removed.

    `jobs_max` limits its unfinished jobs, if set. `turn_at` is the time when a worker last claimed one of its jobs.
    """

    __tablename__ = "projects"

    name: Mapped[Name] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    jobs_max: Mapped[int | None] = mapped_column(BigInteger)
    turn_at: Mapped[datetime | None]


ONE_PROJECT = not_(exists().where(Project.id != DEFAULT_PROJECT))  # the SQL condition that there is only one project
