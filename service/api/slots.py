"""Bounds on concurrent requests of one kind: in total, per project, per key."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Limits = TypeVar("Limits")


class Slots(Generic[Limits]):
    """Counts the requests of one kind in progress in this process.

    Args:
        limits: Of such requests.
        in_all, per_project, per_key: Maximum at a time.
        refusal: Makes the error, from "service", "project" or "key" and the limit.
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
        """Release a slot."""
        with self._lock:
            self._taken[key_id, project_id] -= 1
            if self._taken[key_id, project_id] <= 0:
                del self._taken[key_id, project_id]

    @contextmanager
    def taken(self, key_id: str, project_id: str | None = None) -> Iterator[None]:
        """Hold a slot during a block."""
        self.take(key_id, project_id)
        try:
            yield
        finally:
            self.give_back(key_id, project_id)
