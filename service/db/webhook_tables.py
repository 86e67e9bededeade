"""Tables of webhooks and their pending requests, which are written in the transaction of the event."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Entity, Id, partial_index


class Webhook(Entity):
    """An address that receives the events of a project, or of the installation.

    `secret` signs its requests. Revoking the key `made_by` revokes the webhook. No 2xx response since `failing_since`.
    """

    __tablename__ = "webhooks"

    project_id: Mapped[Id | None] = mapped_column(index=True)
    url: Mapped[str] = mapped_column(String(500))
    secret: Mapped[str] = mapped_column(String(80))
    made_by: Mapped[Id]
    created_at: Mapped[datetime]
    failing_since: Mapped[datetime | None]


class Delivery(Entity):
    """A request to a webhook, with its body. Receivers can detect duplicates by the event's id.

    `next_at` is the time of the next try; None after a 2xx response or the last try.
    """

    __tablename__ = "deliveries"
    __table_args__ = (
        CheckConstraint("attempts >= 0", "attempts_not_negative"),
        CheckConstraint("delivered_at IS NULL OR next_at IS NULL", "delivered_is_over"),
        partial_index("ix_deliveries_due", "next_at", where="next_at IS NOT NULL"),
    )

    webhook_id: Mapped[Id] = mapped_column(ForeignKey("webhooks.id"), index=True)
    body: Mapped[str] = mapped_column(Text)
    attempts: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(index=True)
    next_at: Mapped[datetime | None]
    delivered_at: Mapped[datetime | None]
