"""Notices for webhooks, written in the transaction of their event.

A notice contains ids, kinds and states. Its time is rounded to the minute. It is sent after that minute, so that its
arrival reveals no exact time. See docs/operate/monitor.md.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, exists, func, not_, or_, select, true
from sqlalchemy.orm import Session

from obscura.wire.schemas import to_the_minute
from obscura.wire.words import NoticeKind
from service.db.access_tables import ONE_PROJECT, ApiKey, Delivery, Person, Webhook
from service.db.base import canonical_text, new_id
from service.logs import get_logger

WAITING_MAX = 1000  # unsent notices per webhook; further notices are dropped
MINUTE = timedelta(minutes=1)


def notify(session: Session, kind: NoticeKind, project_id: str | None, facts: dict[str, str], *, now: datetime) -> None:
    """Notify the webhooks of a project and of the installation. Drop notices for webhooks with too many unsent ones.

    There are two exceptions. The installation's webhooks get notices of jobs only while there is one project. If
    trainings are stopped for more than one project, all webhooks are notified.
    """
    informed = ONE_PROJECT if kind is NoticeKind.JOB_ENDED else true()
    whose = or_(Webhook.project_id == project_id, and_(Webhook.project_id.is_(None), informed))
    if kind is NoticeKind.TRAININGS_STOPPED and project_id is None:
        whose = true()
    webhook_ids = session.scalars(select(Webhook.id).where(whose, not_(has_no_valid_creator(now)))).all()
    if not webhook_ids:
        return
    body, minute = body_of(new_id("whe"), kind, project_id, now, facts), to_the_minute(now)
    waiting = Delivery.webhook_id.in_(webhook_ids), Delivery.next_at.is_not(None)
    counted = select(Delivery.webhook_id, func.count(Delivery.id)).where(*waiting).group_by(Delivery.webhook_id)
    counts = {row[0]: row[1] for row in session.execute(counted)}
    for webhook_id in webhook_ids:
        if counts.get(webhook_id, 0) >= WAITING_MAX:
            get_logger(__name__).warning("webhook_notice_dropped", webhook_id=webhook_id, kind=kind.value)
            continue
        times = {"created_at": minute, "next_at": minute + MINUTE}
        session.add(Delivery(id=new_id("dlv"), webhook_id=webhook_id, body=body, attempts=0, **times))
    session.flush()


def has_no_valid_creator(now: datetime) -> ColumnElement[bool]:
    """Return the SQL condition that the key that created a webhook is invalid, or its person is no longer confirmed."""
    lapsed = exists().where(Person.id == ApiKey.person_id, Person.lapsed_at.is_not(None))
    over = ApiKey.revoked_at.is_not(None), ApiKey.expires_at <= now, lapsed
    return exists().where(ApiKey.id == Webhook.made_by, or_(*over))


def body_of(event_id: str, kind: str, project_id: str | None, now: datetime, facts: dict[str, str]) -> str:
    """Return the body of a request as ASCII JSON."""
    created = to_the_minute(now).isoformat().replace("+00:00", "Z")
    event = {"id": event_id, "type": kind, "created": created, "project_id": project_id, "data": facts}
    return canonical_text(event)
