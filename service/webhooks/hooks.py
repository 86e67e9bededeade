"""Webhooks as people make them: their secrets, what state they are in, their ends. Takes a session, never commits."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from obscura.wire.words import NoticeKind
from service.access import Principal, find
from service.db.base import new_id
from service.db.webhook_tables import Delivery, Webhook
from service.errors import Conflict
from service.notices import is_of_somebody_gone
from service.webhooks.addresses import read_url

WEBHOOKS_MAX = 20  # of a project


def create(
    session: Session, by: Principal, *, url: str, events: Sequence[NoticeKind], private: bool, now: datetime
) -> Webhook:
    """Make a webhook of the project of whoever asks, or of the installation. Its secret is new.

    Args:
        private: whether the operator allows addresses that are not public.

    Raises:
        AddressRefused: requests are not sent to such a URL.
        Conflict: the project has as many webhooks as are kept.
    """
    read_url(url, private=private)
    of_project = Webhook.project_id.is_not_distinct_from(by.project_id)
    if (session.scalar(select(func.count(Webhook.id)).where(of_project)) or 0) >= WEBHOOKS_MAX:
        raise Conflict(f"There are {WEBHOOKS_MAX} webhooks here, as many as are kept. Remove one first.")
    webhook = Webhook(
        id=new_id("whk"),
        project_id=by.project_id,
        url=url,
        events=[kind.value for kind in NoticeKind if kind in events],
        secret=_new_secret(),
        made_by=by.id,
        created_at=now,
    )
    session.add(webhook)
    session.flush()
    return webhook


def rotate(session: Session, webhook_id: str, *, overlap_seconds: int, now: datetime) -> Webhook:
    """Give a webhook another secret; for a time its requests are signed under the one before as well.

    Raises:
        NotFound: no such webhook.
    """
    webhook = find(session, Webhook, webhook_id, lock=True)
    former = webhook.secret if overlap_seconds > 0 else None
    webhook.secret, webhook.former_secret = _new_secret(), former
    webhook.overlap_until = None if former is None else now + timedelta(seconds=overlap_seconds)
    session.flush()
    return webhook


def remove(session: Session, webhook_id: str) -> None:
    """Remove a webhook, and what it was not told yet.

    Raises:
        NotFound: no such webhook.
    """
    webhook = find(session, Webhook, webhook_id, lock=True)
    session.execute(delete(Delivery).where(Delivery.webhook_id == webhook_id))
    session.delete(webhook)
    session.flush()


def secrets_of(webhook: Webhook, now: datetime) -> list[str]:
    """Return the secrets that sign a request now, the newest first."""
    former = webhook.former_secret if webhook.overlap_until is not None and webhook.overlap_until > now else None
    return [webhook.secret] if former is None else [webhook.secret, former]


def states_of(session: Session, webhooks: Sequence[Webhook], now: datetime) -> dict[str, str]:
    """Return the word for what became of each webhook, by its id: active, failing, disabled or revoked."""
    ids = [webhook.id for webhook in webhooks]
    gone = set(session.scalars(select(Webhook.id).where(Webhook.id.in_(ids), is_of_somebody_gone(now))))
    return {webhook.id: "revoked" if webhook.id in gone else _state(webhook) for webhook in webhooks}


def _state(webhook: Webhook) -> str:
    if webhook.disabled_at is not None:
        return "disabled"
    return "active" if webhook.failing_since is None else "failing"


def _new_secret() -> str:
    return f"whsec_{secrets.token_hex(32)}"
