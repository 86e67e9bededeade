"""Projects: the departments of an installation, none of which sees what another one has."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Base, Id, Name

EVERY_PROJECT = "*"  # in place of one, where a release is published to all
DEFAULT_PROJECT = "prj_default"  # which every installation has, and where all is that was made before there were others


class Project(Base):
    """A department. Accounts, public datasets and keys name theirs, and nothing ever moves to another one.

    Those columns are no foreign keys: SQLite adds none to a table that has rows. A project is never removed.
    `jobs_max` limits its unfinished jobs; None does not. `turn_at` is when a worker last took its job.
    """

    __tablename__ = "projects"

    id: Mapped[Id] = mapped_column(primary_key=True)
    name: Mapped[Name] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    jobs_max: Mapped[int | None] = mapped_column(BigInteger)
    turn_at: Mapped[datetime | None]
