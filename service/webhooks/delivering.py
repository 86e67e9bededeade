"""Delivery of notices to webhooks by a background thread: at least once, with retries.

A process claims a delivery by postponing its next try, so no other sends it; if the process dies, the next try is
another's. No transaction is open during a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from anyio.to_thread import run_sync
from sqlalchemy import delete, not_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.background import Background
from service.db.base import new_id
from service.db.session import SessionFactory, transaction
from service.db.webhook_tables import Delivery, Webhook
from service.dependencies import calling
from service.identity.access import find
from service.logs import get_logger
from service.notices import body_of, is_of_somebody_gone
from service.webhooks.sending import Answer, Outgoing, Sender

ROUND_SECONDS = 10.0
WEBHOOKS_A_ROUND_MAX, OF_ONE_MAX = 40, 5  # so that one that never answers does not delay the others
TAKEN = timedelta(minutes=5)  # longer than a round takes
BACKOFF = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 30, 120, 360, 720, 1440, 1440))
KEPT = timedelta(days=7)  # after an answer or the last try
TEST = "test"


class Deliveries(Background):
    """Sends due deliveries every few seconds."""

    def __init__(self, factory: SessionFactory, sender: Sender, clock: Callable[[], datetime]) -> None:
        super().__init__("obscura-webhooks")
        self._factory, self._sender, self._clock = factory, sender, clock

    def _work(self) -> None:
        while not self._stopping.wait(ROUND_SECONDS):
            try:
                deliver(self._factory, self._sender, self._clock)
            except SQLAlchemyError as error:  # the next round tries again
                get_logger(__name__).warning("webhooks_not_delivered", error=type(error).__name__)


def deliver(factory: SessionFactory, sender: Sender, clock: Callable[[], datetime]) -> int:
    """Send due deliveries, record the results, and return the number of requests."""
    now = clock()
    with transaction(factory, read_only=True) as session:  # usually nothing is due, and no write lock is needed
        if session.scalar(select(Delivery.id).where(Delivery.next_at <= now).limit(1)) is None:
            return 0
    with transaction(factory) as session:
        taken = _take(session, now)
    answers = sender.send(taken)
    with transaction(factory) as session:
        _note(session, answers, clock())
        session.execute(delete(Delivery).where(Delivery.next_at.is_(None), Delivery.created_at < now - KEPT))
    return len(taken)


async def try_out(factory: SessionFactory, sender: Sender, webhook_id: str, clock: Callable[[], datetime]) -> Answer:
    """Send a `test` request now. A 2xx answer ends the webhook's failing. The wait holds no thread.

    Raises:
        NotFound: no such webhook.
        DependencyBusy: too many tests are in progress.
    """

    def outgoing() -> Outgoing:
        now = clock()
        with transaction(factory, read_only=True) as session:
            webhook = find(session, Webhook, webhook_id)
            body = body_of(new_id("whe"), TEST, webhook.project_id, now, {})
            return Outgoing(webhook_id, webhook.url, body, webhook.secret)

    def note_delivery() -> None:
        with transaction(factory) as session:
            find(session, Webhook, webhook_id, lock=True).failing_since = None

    with calling("webhooks"):
        request = await run_sync(outgoing)
        answer = (await sender.send_all([request]))[webhook_id]
        if answer.delivered:
            await run_sync(note_delivery)
    return answer


def _take(session: Session, now: datetime) -> Sequence[Outgoing]:
    """Claim due deliveries; cancel those of webhooks whose creator is gone."""
    due = select(Delivery.webhook_id).where(Delivery.next_at <= now).distinct().limit(WEBHOOKS_A_ROUND_MAX)
    waiting = session.scalars(due).all()
    live = session.scalars(select(Webhook).where(Webhook.id.in_(waiting), not_(is_of_somebody_gone(now)))).all()
    gone = set(waiting) - {webhook.id for webhook in live}
    session.execute(update(Delivery).where(Delivery.webhook_id.in_(gone)).values(next_at=None))
    taken = []
    for webhook in live:
        first = select(Delivery).where(Delivery.webhook_id == webhook.id, Delivery.next_at <= now)
        first = first.order_by(Delivery.next_at, Delivery.id).limit(OF_ONE_MAX).with_for_update(skip_locked=True)
        for delivery in session.scalars(first).all():
            delivery.next_at, delivery.attempts = now + TAKEN, delivery.attempts + 1
            taken.append(Outgoing(delivery.id, webhook.url, delivery.body, webhook.secret))
    session.flush()
    return taken


def _note(session: Session, answers: Mapping[str, Answer], now: datetime) -> None:
    """Record the results of requests, except of webhooks that were removed meanwhile."""
    for delivery in session.scalars(select(Delivery).where(Delivery.id.in_(answers)).order_by(Delivery.id)).all():
        webhook = session.get_one(Webhook, delivery.webhook_id)
        if answers[delivery.id].delivered:
            delivery.next_at, delivery.delivered_at = None, now
            webhook.failing_since = None
            continue
        webhook.failing_since = webhook.failing_since or now
        left = BACKOFF[delivery.attempts - 1 :]
        delivery.next_at = now + left[0] if left else None
    session.flush()
