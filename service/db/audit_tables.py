"""The audit log: requests and their outcomes."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from obscura.wire.words import Outcome
from service.db.base import Base, Id, values_of


class AuditEvent(Base):
    """One request, or one act of a person within a request. Append-only.

    Triggers reject every UPDATE, and the DELETE of an event less than 12 hours old; `recording.remove_old` deletes old
    events. `sequence` is the order of insertion. `action` is the template of a route, such as `GET /v1/jobs/{job_id}`,
    or a `service.identity.recording.Act`. `project_id` is the caller's project, or the project that an act concerns;
    None is the installation.
    """

    __tablename__ = "audit_events"
    __table_args__ = (Index("ix_audit_events_project_id_sequence", "project_id", "sequence"),)

    sequence: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    id: Mapped[Id] = mapped_column(unique=True)
    at: Mapped[datetime]
    action: Mapped[str] = mapped_column(String(128))
    object_id: Mapped[Id | None]
    outcome: Mapped[Outcome] = mapped_column(values_of(Outcome, "outcome"))
    key_id: Mapped[Id | None]
    admin_id: Mapped[Id | None]
    project_id: Mapped[Id | None]
