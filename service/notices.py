"""Notices for webhooks, written in the transaction of their event.

A notice holds ids, kinds and states. Its time is the minute, as everywhere, and it is sent after that minute, so that
its arrival reveals no more. See docs/operate/monitor.md.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, exists, func, not_, or_, select, true
from sqlalchemy.orm import Session

from obscura.wire.schemas import to_the_minute
from obscura.wire.words import NoticeKind
from service.db.access_tables import ApiKey, Person
from service.db.base import canonical_text, new_id
from service.db.ledger_tables import Account
from service.db.project_tables import ONE_PROJECT
from service.db.webhook_tables import Delivery, Webhook
from service.logs import get_logger

WAITING_MAX = 1000  # unsent notices of one webhook; further ones are dropped
MINUTE = timedelta(minutes=1)


def tell_of_job(session: Session, project_id: str, *, now: datetime, **facts: str) -> None:
    """Notify webhooks that a job has ended: the project's, and the installation's while there is one project."""
    whose = or_(Webhook.project_id == project_id, and_(Webhook.project_id.is_(None), ONE_PROJECT))
    _tell(session, NoticeKind.JOB_ENDED, whose, project_id, now, facts)


def tell_of_decision(session: Session, project_id: str | None, *, now: datetime, **facts: str) -> None:
    """Notify webhooks of a project and of the installation that a decision waits for a second person."""
    whose = or_(Webhook.project_id == project_id, Webhook.project_id.is_(None))
    _tell(session, NoticeKind.DECISION_WAITING, whose, project_id, now, facts)


def tell_of_stop(session: Session, account_id: str | None, *, now: datetime) -> None:
    """Notify webhooks that trainings are stopped, of one account or (None) of all."""
    project_id = session.scalar(select(Account.project_id).where(Account.id == account_id))
    whose = true() if project_id is None else or_(Webhook.project_id == project_id, Webhook.project_id.is_(None))
    facts = {"state": "stopped"} | ({} if project_id is None else {"account_id": str(account_id)})
    _tell(session, NoticeKind.TRAININGS_STOPPED, whose, project_id, now, facts)


def is_of_somebody_gone(now: datetime) -> ColumnElement[bool]:
    """Return the condition that a webhook's creator has no valid key, or has lapsed at the sign-in provider."""
    lapsed = exists().where(Person.id == ApiKey.person_id, Person.lapsed_at.is_not(None))
    over = ApiKey.revoked_at.is_not(None), ApiKey.expires_at <= now, lapsed
    return exists().where(ApiKey.id == Webhook.made_by, or_(*over))


def body_of(event_id: str, kind: str, project_id: str | None, now: datetime, facts: dict[str, str]) -> str:
    """Return the body of a request, JSON in ASCII."""
    created = to_the_minute(now).isoformat().replace("+00:00", "Z")
    event = {"id": event_id, "type": kind, "created": created, "project_id": project_id, "data": facts}
    return canonical_text(event)


def _tell(
    session: Session,
    kind: NoticeKind,
    whose: ColumnElement[bool],
    project_id: str | None,
    now: datetime,
    facts: dict[str, str],
) -> None:
    webhook_ids = session.scalars(select(Webhook.id).where(whose, not_(is_of_somebody_gone(now)))).all()
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
