"""The audit log: who asked for what and what came of it, and what is left of its beginning once that was removed."""

from __future__ import annotations

from sqlalchemy import BigInteger, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from obscura.wire.words import Outcome
from service.db.base import Base, Id, Sha256, check, values_of

_NUMBER = BigInteger().with_variant(Integer, "sqlite")  # which then is the row's own number there, and needs no index
_MOMENT = String(32)  # a text, so that what is stored is what was hashed, to the letter; texts in UTC sort as times do


class AuditEvent(Base):
    """One request, or one act of people that is kept beside the request. Append-only and chained, like entries.

    `action` is the template of a route, such as `GET /v1/jobs/{job_id}`, or a word of `service.recording.Act`.
    `project_id` is that of whoever asked, and of an act the one that it concerns; None is the installation. What is
    hashed is every column but the hash itself.
    """

    __tablename__ = "audit_events"
    __table_args__ = (
        check("sequence >= 1", "sequence_positive"),
        Index("ix_audit_events_project_id_sequence", "project_id", "sequence"),
    )

    sequence: Mapped[int] = mapped_column(_NUMBER, primary_key=True, autoincrement=False)
    id: Mapped[Id] = mapped_column(unique=True)
    at: Mapped[str] = mapped_column(_MOMENT)
    action: Mapped[str] = mapped_column(String(128))
    object_id: Mapped[Id | None]
    outcome: Mapped[Outcome] = mapped_column(values_of(Outcome, "outcome"))
    key_id: Mapped[Id | None]
    admin_id: Mapped[Id | None]
    project_id: Mapped[Id | None]
    previous_hash: Mapped[Sha256]
    hash: Mapped[Sha256]


class AuditRemoval(Base):
    """The signed end of what was removed from the log: the database lets go of events that one covers, and no other.

    `through` is the last event that was removed, and `hash` is its hash, which the next one links to. Removals are
    append-only and chained: `previous_hash` is that of the statement before.
    """

    __tablename__ = "audit_removals"
    __table_args__ = (check("number >= 1 AND through >= number", "positive"),)

    number: Mapped[int] = mapped_column(_NUMBER, primary_key=True, autoincrement=False)
    through: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[Sha256]
    previous_hash: Mapped[Sha256]
    removed_at: Mapped[str] = mapped_column(_MOMENT)
    key_id: Mapped[Sha256]
    signature: Mapped[str] = mapped_column(String(128))
