"""Webhooks: creation, removal and state. Takes a session, never commits."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.db.base import new_id
from service.db.webhook_tables import Delivery, Webhook
from service.errors import Conflict
from service.identity.access import Principal, find
from service.notices import is_of_somebody_gone
from service.webhooks.addresses import read_url

WEBHOOKS_MAX = 20  # of a project
SECRET_BYTES = 32


def create(session: Session, by: Principal, *, url: str, private: bool, now: datetime) -> Webhook:
    """Create a webhook, with a new secret, for the caller's project, or for the installation.

    Args:
        private: allow addresses that are not public.

    Raises:
        AddressRefused: as `read_url`.
        Conflict: there are WEBHOOKS_MAX already.
    """
    read_url(url, private=private)
    of_project = Webhook.project_id.is_not_distinct_from(by.project_id)
    if (session.scalar(select(func.count(Webhook.id)).where(of_project)) or 0) >= WEBHOOKS_MAX:
        raise Conflict(f"There are {WEBHOOKS_MAX} webhooks already, which is the limit. Remove one first.")
    webhook = Webhook(
        id=new_id("whk"),
        project_id=by.project_id,
        url=url,
        secret=f"whsec_{b64encode(secrets.token_bytes(SECRET_BYTES)).decode('ascii')}",
        made_by=by.id,
        created_at=now,
    )
    session.add(webhook)
    session.flush()
    return webhook


def remove(session: Session, webhook_id: str) -> None:
    """Remove a webhook and its deliveries. Raises NotFound if there is none."""
    webhook = find(session, Webhook, webhook_id, lock=True)
    session.execute(delete(Delivery).where(Delivery.webhook_id == webhook_id))
    session.delete(webhook)
    session.flush()


def states_of(session: Session, webhooks: Sequence[Webhook], now: datetime) -> dict[str, str]:
    """Return the state of each webhook by its id: active, failing or revoked."""
    ids = [webhook.id for webhook in webhooks]
    gone = set(session.scalars(select(Webhook.id).where(Webhook.id.in_(ids), is_of_somebody_gone(now))))
    return {
        webhook.id: "revoked" if webhook.id in gone else "active" if webhook.failing_since is None else "failing"
        for webhook in webhooks
    }
