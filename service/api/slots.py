"""How many requests of a kind may be under way at a time: in all, and by key."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Limits = TypeVar("Limits")


class Slots(Generic[Limits]):
    """Counts what is under way in this process.

    Args:
        limits: of such requests.
        in_all: the most at a time.
        per_key: the most at a time of one key.
        all_taken: makes the error that is raised where the process has no slot left.
        key_has_all: likewise where the key has none left.
    """

    def __init__(
        self,
        limits: Limits,
        in_all: int,
        per_key: int,
        *,
        all_taken: Callable[[], Exception],
        key_has_all: Callable[[], Exception],
    ) -> None:
        self.limits = limits
        self._in_all, self._per_key = in_all, per_key
        self._all_taken, self._key_has_all = all_taken, key_has_all
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    def take(self, key_id: str) -> None:
        """Take a slot, or raise one of the two errors."""
        with self._lock:
            if self._taken[key_id] >= self._per_key:
                raise self._key_has_all()
            if self._taken.total() >= self._in_all:
                raise self._all_taken()
            self._taken[key_id] += 1

    def give_back(self, key_id: str) -> None:
        """Give a slot back."""
        with self._lock:
            self._taken[key_id] -= 1
            if self._taken[key_id] <= 0:
                del self._taken[key_id]

    @contextmanager
    def taken(self, key_id: str) -> Iterator[None]:
        """Hold a slot for the time of a block."""
        self.take(key_id)
        try:
            yield
        finally:
            self.give_back(key_id)
