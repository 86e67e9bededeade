"""When keys were last used: kept to the hour, and written beside the requests, at most once an hour for each key."""

from __future__ import annotations

import threading
from datetime import datetime

from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from service.background import Background
from service.db.access_tables import ApiKey
from service.db.session import SessionFactory, transaction
from service.logs import get_logger
from service.times import to_the_hour

RETRY_SECONDS = 60.0


class KeyUses(Background):
    """Notes in memory which keys are used, and writes that from a thread of its own: no request waits for it.

    There is one entry for each key that was valid when it was used. A note that is lost with the process is made
    again by the next use.
    """

    def __init__(self, factory: SessionFactory) -> None:
        super().__init__("obscura-key-uses")
        self._factory = factory
        self._lock = threading.Lock()
        self._hours: dict[str, datetime] = {}
        self._unwritten: dict[str, datetime] = {}

    def note(self, key_id: str, now: datetime) -> None:
        """Note that a key was used; returns at once."""
        hour = to_the_hour(now)
        with self._lock:
            if self._hours.get(key_id) == hour:
                return
            self._hours[key_id] = self._unwritten[key_id] = hour
        self._noted.set()

    def write(self) -> bool:
        """Write what was noted since the last time; what another process has written later stays. False: try again."""
        with self._lock:
            hours, self._unwritten = self._unwritten, {}
        try:
            if hours:
                with transaction(self._factory) as session:
                    for key_id, hour in sorted(hours.items()):  # in one order, so that no two processes lock each other
                        earlier = ApiKey.last_used_at.is_(None) | (ApiKey.last_used_at < hour)
                        session.execute(update(ApiKey).where(ApiKey.id == key_id, earlier).values(last_used_at=hour))
        except SQLAlchemyError as error:
            get_logger(__name__).warning("key_uses_not_written", count=len(hours), error=type(error).__name__)
            with self._lock:
                self._unwritten = hours | self._unwritten
            return False
        return True

    def _work(self) -> None:
        while True:
            self._noted.wait()
            self._noted.clear()
            if self._stopping.is_set():
                return
            if not self.write() and not self._stopping.wait(RETRY_SECONDS):
                self._noted.set()
