"""Limits on concurrent requests of one kind: per process, per project and per key."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from service.errors import ObscuraError


@dataclass(frozen=True)
class SlotLimits:
    """Maximum numbers of concurrent requests of one kind."""

    noun: ClassVar[str]
    advice: ClassVar[str]
    process_max: int
    per_project_max: int
    per_key_max: int


Limits = TypeVar("Limits", bound=SlotLimits)


class NoSlot(ObscuraError):
    """The key, its project or the service has reached its limit of concurrent requests of one kind."""

    code: ClassVar[str] = "busy"

    def __init__(self, limits: SlotLimits, whose: str, most: int) -> None:
        kind = f"{limits.noun.split()[-1]}s"
        if whose != "service":
            self.code = f"too_many_{kind}_for_{whose}"  # type: ignore[misc]  # one error with several codes
        elif kind == "streams":
            self.code = "too_many_streams"  # type: ignore[misc]
        owner = "The service" if whose == "service" else f"This {whose}"
        super().__init__(
            f"{owner} has {most} {limits.noun}s under way, which is the limit. {limits.advice}", **{f"{kind}_max": most}
        )


@dataclass(eq=False)
class Slots(Generic[Limits]):
    """Counts the requests of one kind in progress in this process."""

    limits: Limits
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _taken: Counter[tuple[str, str | None]] = field(default_factory=Counter)  # by key id and project id

    def take(self, key_id: str, project_id: str | None = None) -> None:
        """Take a slot, or raise NoSlot."""
        limits = self.limits
        with self._lock:
            of_project = sum(count for (_, other), count in self._taken.items() if other == project_id)
            if self._taken[key_id, project_id] >= limits.per_key_max:
                raise NoSlot(limits, "key", limits.per_key_max)
            if project_id is not None and of_project >= limits.per_project_max:
                raise NoSlot(limits, "project", limits.per_project_max)
            if self._taken.total() >= limits.process_max:
                raise NoSlot(limits, "service", limits.process_max)
            self._taken[key_id, project_id] += 1

    def give_back(self, key_id: str, project_id: str | None = None) -> None:
        with self._lock:
            self._taken -= Counter({(key_id, project_id): 1})  # also removes zero counts
