"""How often something happened within a window of time: counted in this process, or in Redis for several of them.

A window begins with the first that is counted. Neither way writes to disk: what is forgotten here lets somebody pass.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from redis import Redis, RedisError
from sqlalchemy import make_url

from service.logs import get_logger
from service.settings import Settings

REDIS_SECONDS = 0.25  # that a request waits for an answer of Redis
REDIS_PAUSE_SECONDS = 30.0  # after it gave none
REDIS_SCHEMES = ("redis://", "rediss://", "unix://")  # Celery may have another broker


class Counts(Protocol):
    """Counts by name."""

    def count(self, name: str, window_seconds: float) -> tuple[int, float]:
        """Count one more; return how many there were in this window with it, and the seconds until its end."""
        ...


@dataclass
class ProcessCounts:
    """Counts in the memory of this process, which is bounded: of too many names the oldest are forgotten.

    Attributes:
        clock: seconds, on a clock that never goes back.
    """

    names_max: int = 20_000
    clock: Callable[[], float] = time.monotonic
    _counts: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str, window_seconds: float) -> tuple[int, float]:
        """As `Counts` has it."""
        now = self.clock()
        with self._lock:
            until, count = self._counts.get(name, (now + window_seconds, 0))
            if until <= now:
                until, count = now + window_seconds, 0
            self._counts[name] = until, count + 1
            self._counts.move_to_end(name)
            while len(self._counts) > self.names_max:
                self._counts.popitem(last=False)
        return count + 1, until - now


class SharedCounts:
    """Counts in Redis, for all processes of an installation; while that does not answer, each for itself.

    Args:
        url: of Redis.
        installation: a text that all processes of one installation have, and no other.
    """

    def __init__(self, url: str, installation: str) -> None:
        self._redis = Redis.from_url(url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS)
        self._prefix = f"obscura:{hashlib.sha256(installation.encode()).hexdigest()[:16]}:"
        self._own = ProcessCounts()
        self._paused_until = float("-inf")

    def count(self, name: str, window_seconds: float) -> tuple[int, float]:
        """As `Counts` has it."""
        if time.monotonic() >= self._paused_until:
            try:
                return self._count(self._prefix + name, window_seconds)
            except RedisError as error:
                self._paused_until = time.monotonic() + REDIS_PAUSE_SECONDS
                get_logger(__name__).warning("counts_not_shared", error=type(error).__name__)
        return self._own.count(name, window_seconds)

    def _count(self, name: str, window_seconds: float) -> tuple[int, float]:
        with self._redis.pipeline(transaction=True) as steps:
            steps.set(name, 0, px=round(window_seconds * 1000), nx=True)
            steps.incr(name)
            steps.pttl(name)
            _, count, left_milliseconds = steps.execute()
        return int(count), max(int(left_milliseconds), 0) / 1000


def counts_of(settings: Settings) -> Counts:
    """Return what counts for the processes that these settings allow: several, where workers are elsewhere."""
    if settings.mode == "embedded" or not settings.redis_url.startswith(REDIS_SCHEMES):
        return ProcessCounts()
    database = make_url(settings.database_url)
    return SharedCounts(settings.redis_url, f"{database.host}:{database.port}/{database.database}")
