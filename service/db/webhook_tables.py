"""Webhooks, and what is still to be told to them: written in the transaction of what they are told."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Base, Id, check


class Webhook(Base):
    """An address that is told of what happens in a project; without one, in the installation.

    `secret` signs its requests. `made_by` is the key that asked for it: with that it is revoked. From `failing_since`
    on no request was answered with 2xx.
    """

    __tablename__ = "webhooks"

    id: Mapped[Id] = mapped_column(primary_key=True)
    project_id: Mapped[Id | None] = mapped_column(index=True)
    url: Mapped[str] = mapped_column(String(500))
    secret: Mapped[str] = mapped_column(String(80))
    made_by: Mapped[Id]
    created_at: Mapped[datetime]
    failing_since: Mapped[datetime | None]

    def __repr__(self) -> str:
        return f"Webhook(id={self.id!r}, project_id={self.project_id!r})"


class Delivery(Base):
    """A request that a webhook gets, with the bytes of its body. Sending it twice is harmless: its event has an id.

    At `next_at` it is sent, or sent again; without one it was answered, or given up.
    """

    __tablename__ = "deliveries"
    __table_args__ = (
        check("attempts >= 0", "attempts_not_negative"),
        check("delivered_at IS NULL OR next_at IS NULL", "delivered_is_over"),
        Index(
            "ix_deliveries_due",
            "next_at",
            sqlite_where=text("next_at IS NOT NULL"),
            postgresql_where=text("next_at IS NOT NULL"),
        ),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    webhook_id: Mapped[Id] = mapped_column(ForeignKey("webhooks.id"), index=True)
    body: Mapped[str] = mapped_column(Text)
    attempts: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(index=True)
    next_at: Mapped[datetime | None]
    delivered_at: Mapped[datetime | None]
