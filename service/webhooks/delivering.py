"""Create webhooks, and deliver notices to them in a background thread: at least once, with retries.

A process claims a delivery by postponing its next try, so that no other process sends it. If the process dies, another
process makes the next try. No transaction is open during a request.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from anyio.to_thread import run_sync
from sqlalchemy import delete, func, not_, select, update
from sqlalchemy.orm import Session

from service.background import Background
from service.db.access_tables import Delivery, Webhook
from service.db.base import new_id
from service.db.session import SessionFactory, transaction
from service.dependencies import calling
from service.errors import Conflict
from service.identity.access import Principal, find
from service.notices import body_of, has_no_valid_creator
from service.webhooks.sending import Answer, Outgoing, Sender, read_url

WEBHOOKS_MAX = 20  # per project
ROUND_SECONDS = 10.0
WEBHOOKS_A_ROUND_MAX, OF_ONE_MAX = 40, 5  # so that a silent webhook does not delay the others
TAKEN = timedelta(minutes=5)  # longer than a round
BACKOFF = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 30, 120, 360, 720, 1440, 1440))
KEPT = timedelta(days=7)  # after an answer or the last try
TEST = "test"


def create(session: Session, by: Principal, *, url: str, private: bool, now: datetime) -> Webhook:
    """Create a webhook, with a new secret, for the caller's project, or for the installation."""
    read_url(url, private=private)
    of_project = Webhook.project_id.is_not_distinct_from(by.project_id)
    if (session.scalar(select(func.count(Webhook.id)).where(of_project)) or 0) >= WEBHOOKS_MAX:
        raise Conflict(f"There are {WEBHOOKS_MAX} webhooks already, which is the limit. Remove one first.")
    webhook = Webhook(
        id=new_id("whk"),
        project_id=by.project_id,
        url=url,
        secret=f"whsec_{b64encode(secrets.token_bytes(32)).decode('ascii')}",
        made_by=by.id,
        created_at=now,
    )
    session.add(webhook)
    session.flush()
    return webhook


def remove(session: Session, webhook_id: str) -> None:
    webhook = find(session, Webhook, webhook_id, lock=True)
    session.execute(delete(Delivery).where(Delivery.webhook_id == webhook_id))
    session.delete(webhook)
    session.flush()


def states_of(session: Session, webhooks: Sequence[Webhook], now: datetime) -> dict[str, str]:
    """Return the state of each webhook by its id: active, failing or revoked."""
    ids = [webhook.id for webhook in webhooks]
    gone = set(session.scalars(select(Webhook.id).where(Webhook.id.in_(ids), has_no_valid_creator(now))))
    return {
        webhook.id: "revoked" if webhook.id in gone else "active" if webhook.failing_since is None else "failing"
        for webhook in webhooks
    }


class Deliveries(Background):
    """Sends due deliveries every few seconds."""

    def __init__(self, factory: SessionFactory, sender: Sender, clock: Callable[[], datetime]) -> None:
        super().__init__("obscura-webhooks")
        self._factory, self._sender, self._clock = factory, sender, clock

    def _work(self) -> None:
        while not self._stopping.wait(ROUND_SECONDS):
            deliver(self._factory, self._sender, self._clock)


def deliver(factory: SessionFactory, sender: Sender, clock: Callable[[], datetime]) -> int:
    """Send due deliveries, record the results, and return the number of requests.

    Cancels deliveries of webhooks whose creator has no valid key.
    """
    now, taken = clock(), list[Outgoing]()
    due = select(Delivery.webhook_id).where(Delivery.next_at <= now)
    with transaction(factory, read_only=True) as session:  # avoids a write lock if nothing is due, the usual case
        if session.scalar(due.limit(1)) is None:
            return 0
    with transaction(factory) as session:
        waiting = set(session.scalars(due.distinct().limit(WEBHOOKS_A_ROUND_MAX)))
        ours = Webhook.id.in_(waiting), not_(has_no_valid_creator(now))
        live = session.scalars(select(Webhook).where(*ours)).all()
        gone = waiting - {webhook.id for webhook in live}
        session.execute(update(Delivery).where(Delivery.webhook_id.in_(gone)).values(next_at=None))
        for webhook in live:
            first = select(Delivery).where(Delivery.webhook_id == webhook.id, Delivery.next_at <= now)
            first = first.order_by(Delivery.next_at, Delivery.id).limit(OF_ONE_MAX).with_for_update(skip_locked=True)
            for delivery in session.scalars(first).all():
                delivery.next_at, delivery.attempts = now + TAKEN, delivery.attempts + 1
                taken.append(Outgoing(delivery.id, webhook.url, delivery.body, webhook.secret))
        session.flush()
    answers = sender.send(taken)
    with transaction(factory) as session:
        now_answered = clock()
        sent = select(Delivery).where(Delivery.id.in_(answers)).order_by(Delivery.id)
        for delivery in session.scalars(sent).all():  # except for webhooks that were removed meanwhile
            webhook = session.get_one(Webhook, delivery.webhook_id)
            delivery.status = answers[delivery.id].status
            if answers[delivery.id].delivered:
                delivery.next_at, delivery.delivered_at = None, now_answered
                webhook.failing_since = None
                continue
            webhook.failing_since = webhook.failing_since or now_answered
            left = BACKOFF[delivery.attempts - 1 :]
            delivery.next_at = now_answered + left[0] if left else None
        session.flush()
        session.execute(delete(Delivery).where(Delivery.next_at.is_(None), Delivery.created_at < now - KEPT))
    return len(taken)


async def try_out(factory: SessionFactory, sender: Sender, webhook_id: str, clock: Callable[[], datetime]) -> Answer:
    """Send a `test` request now. A 2xx response ends the state `failing`. Waiting blocks no thread."""

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
