"""Bounds on requests of one kind that are under way: in all, of a project, and of a key."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Limits = TypeVar("Limits")


class Slots(Generic[Limits]):
    """Counts requests of one kind that are under way in this process.

    Args:
        limits: Of such requests.
        in_all: The most at a time.
        per_project: The most at a time of all keys of one project.
        per_key: The most at a time of one key.
        refusal: Makes the error for a caller who gets no slot: of the "service", the "project" or the "key".
    """

    def __init__(
        self, limits: Limits, in_all: int, per_project: int, per_key: int, *, refusal: Callable[[str, int], Exception]
    ) -> None:
        self.limits = limits
        self._in_all, self._per_project, self._per_key = in_all, per_project, per_key
        self._refusal = refusal
        self._lock = threading.Lock()
        self._taken: Counter[tuple[str, str | None]] = Counter()  # by the key's id and its project's

    def take(self, key_id: str, project_id: str | None = None) -> None:
        """Take a slot, or raise the refusal."""
        with self._lock:
            of_project = sum(count for (_, other), count in self._taken.items() if other == project_id)
            if self._taken[key_id, project_id] >= self._per_key:
                raise self._refusal("key", self._per_key)
            if project_id is not None and of_project >= self._per_project:
                raise self._refusal("project", self._per_project)
            if self._taken.total() >= self._in_all:
                raise self._refusal("service", self._in_all)
            self._taken[key_id, project_id] += 1

    def give_back(self, key_id: str, project_id: str | None = None) -> None:
        """Give a slot back."""
        with self._lock:
            self._taken[key_id, project_id] -= 1
            if self._taken[key_id, project_id] <= 0:
                del self._taken[key_id, project_id]

    @contextmanager
    def taken(self, key_id: str, project_id: str | None = None) -> Iterator[None]:
        """Hold a slot for the time of a block."""
        self.take(key_id, project_id)
        try:
            yield
        finally:
            self.give_back(key_id, project_id)
