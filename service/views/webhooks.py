"""Webhooks as people see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.schemas import record_of
from obscura.wire.webhook_schemas import WebhookRecord
from service.db.webhook_tables import Webhook
from service.webhooks.hooks import state_of


def records(session: Session, rows: Sequence[Webhook]) -> list[WebhookRecord]:
    """Webhooks without their secrets."""
    return [shown(session, row, WebhookRecord) for row in rows]


def shown(session: Session, row: Webhook, record: type[Any], **more: str) -> Any:
    """A webhook as a record of some kind."""
    return record_of(record, row, state=state_of(session, row), **more)
