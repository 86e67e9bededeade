"""Projects: the departments of an installation, isolated from each other."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, exists, not_
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Entity, Name

EVERY_PROJECT = "*"  # instead of an id, if a release is shared with all projects
DEFAULT_PROJECT = "prj_default"  # the project that every installation has


class Project(Entity):
    """A department. Its accounts, public datasets and keys never move to another one, and it is never removed.

    `jobs_max` limits its unfinished jobs, if set. `turn_at` is when a worker last took its job.
    """

    __tablename__ = "projects"

    name: Mapped[Name] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    jobs_max: Mapped[int | None] = mapped_column(BigInteger)
    turn_at: Mapped[datetime | None]


ONE_PROJECT = not_(exists().where(Project.id != DEFAULT_PROJECT))  # the condition that there is no other project
