"""Rings for queued jobs from a thread of its own, so that no request waits for a broker that is slow or away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError

from service.db.session import SessionFactory
from service.logs import get_logger
from service.queue import DELIVERY_BATCH, Send, deliver


class Doorbell:
    """Delivers the outbox whenever somebody has rung. Rings while it delivers are answered by one more delivery.

    Args:
        factory: Of sessions.
        send: Sends one task.
        clock: Returns the time, aware.
    """

    def __init__(self, factory: SessionFactory, send: Send, clock: Callable[[], datetime]) -> None:
        self._factory, self._send, self._clock = factory, send, clock
        self._rung = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="obscura-doorbell", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def ring(self) -> None:
        """Ask for a delivery; returns at once."""
        self._rung.set()

    def stop(self) -> None:
        """Finish the delivery that runs, and no other. What is left is delivered by the next reconciliation."""
        self._stopping = True
        self._rung.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while True:
            self._rung.wait()
            self._rung.clear()
            if self._stopping:
                return
            try:
                while deliver(self._factory, self._send, now=self._clock()) == DELIVERY_BATCH:
                    pass
            except SQLAlchemyError as error:  # the jobs are safe in the database and will be found there
                get_logger(__name__).warning("delivery_failed", error=type(error).__name__)
