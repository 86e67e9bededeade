"""Notify workers of queued jobs. The database is the authoritative queue; a broker only delivers notifications.

`ring` writes an outbox row in the transaction that queues a job; `deliver` sends it after the commit. Duplicate or lost
messages are harmless: claiming a job is a compare-and-set, and the reconciler finds jobs whose message was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy import CursorResult, delete, select, update
from sqlalchemy.orm import Session

from service.background import Background
from service.db.access_tables import Outbox
from service.db.session import SessionFactory, transaction
from service.failpoints import failpoint
from service.logs import get_logger

TASK_RUN_JOB = "obscura.run_job"
DELIVERY_BATCH = 100

# Sends one task by name; raises if the broker cannot be reached. For Celery: `app.send_task(name, args=args)`.
Send = Callable[[str, Sequence[Any]], object]


def ring(session: Session, job_id: str, *, now: datetime) -> None:
    """Queue a message that notifies workers of a job after the caller's transaction has committed."""
    session.add(Outbox(task=TASK_RUN_JOB, args=[job_id], created_at=now))
    session.flush()


def deliver(factory: SessionFactory, send: Send, *, now: datetime, limit: int = DELIVERY_BATCH) -> int:
    """Send the outbox, oldest message first; return the number sent. Call it after a commit, and periodically.

    Sending holds no lock, so two processes may send the same message, which is harmless. If the broker fails, the
    remaining messages wait for the next call.
    """
    with transaction(factory, read_only=True) as session:
        waiting = session.scalars(select(Outbox).where(Outbox.sent_at.is_(None)).order_by(Outbox.id).limit(limit)).all()
    sent: list[int] = []
    for message in waiting:
        try:
            failpoint("ring.before")
            send(message.task, message.args)
            failpoint("ring.after")
        except Exception as error:  # any error of a broker's client: the job is safe in the database
            get_logger(__name__).warning(
                "doorbell_failed", error=type(error).__name__, waiting=len(waiting) - len(sent)
            )
            break
        sent.append(message.id)
    if sent:
        with transaction(factory) as session:
            session.execute(update(Outbox).where(Outbox.id.in_(sent), Outbox.sent_at.is_(None)).values(sent_at=now))
    return len(sent)


def forget_sent(session: Session, *, before: datetime) -> int:
    """Delete messages that were sent before a time, to limit the outbox; return their number."""
    result = session.execute(delete(Outbox).where(Outbox.sent_at < before))
    return cast("CursorResult[Any]", result).rowcount


class Doorbell(Background):
    """A thread that delivers the outbox after each call of `ring`, so that no request waits for a slow broker."""

    def __init__(self, factory: SessionFactory, send: Send, clock: Callable[[], datetime]) -> None:
        super().__init__("obscura-doorbell")
        self._factory, self._send, self._clock = factory, send, clock

    def ring(self) -> None:
        """Request a delivery; return at once."""
        self._noted.set()

    def _work(self) -> None:
        for _ in self._notes():  # messages that remain at the end are delivered by the next reconciliation
            while deliver(self._factory, self._send, now=self._clock()) == DELIVERY_BATCH:
                pass
