"""Tables around the request: API keys, idempotency keys, and the outbox that rings the queue."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Base, Id, Name, Sha256, ShortText


class ApiKey(Base):
    """An API key. Only the SHA-256 of its 256-bit random token is kept.

    `created_by` is the key that asked for it, whose holder has seen its token; None for the first key.
    """

    __tablename__ = "api_keys"

    id: Mapped[Id] = mapped_column(primary_key=True)
    name: Mapped[Name]
    hash: Mapped[Sha256]
    scopes: Mapped[list[str]]
    created_by: Mapped[Id | None] = mapped_column(ForeignKey("api_keys.id"))
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]

    def __repr__(self) -> str:
        return f"ApiKey(id={self.id!r}, scopes={self.scopes!r})"


class Idempotency(Base):
    """The first answer given to one principal's idempotency key."""

    __tablename__ = "idempotency"

    principal: Mapped[Name] = mapped_column(primary_key=True)
    key: Mapped[Name] = mapped_column(primary_key=True)
    body_hash: Mapped[Sha256]
    resource_id: Mapped[Id]
    created_at: Mapped[datetime]


class Outbox(Base):
    """A task to send once the transaction that wrote this row has committed. Sending twice is harmless."""

    __tablename__ = "outbox"
    __table_args__ = (
        Index(
            "ix_outbox_unsent",
            "id",
            sqlite_where=text("sent_at IS NULL"),
            postgresql_where=text("sent_at IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    task: Mapped[ShortText]
    args: Mapped[list[Any]]
    created_at: Mapped[datetime]
    sent_at: Mapped[datetime | None]
