"""Limits for external services that web requests wait for: threads, waiting time, and a circuit breaker for each.

All requests of the web process share about forty threads, so requests that wait for one slow service must never use
most of them. The limits do not apply to workers, commands and background threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

from service.errors import ObscuraError
from service.logs import get_logger

Name = Literal["storage", "provider", "webhooks"]  # fields of Dependencies
SECONDS_MAX = 5.0  # time that a web request waits for an answer


class DependencyBusy(ObscuraError, OSError):
    """An external service has too many web requests, or did not answer the latest ones. Nothing was sent."""

    code: ClassVar[str] = "busy"


@dataclass(eq=False)
class Dependency:
    """The limiter and the circuit breaker of one external service.

    The breaker opens after `failures_max` failures in a row (0: never). Then it allows one trial request every
    `pause_seconds` until one succeeds. It also rejects requests while every slot is taken by a request that has made no
    progress for SECONDS_MAX.

    Each of `slots` concurrent requests may block a thread, and so may each of the `waiting` further requests that wait
    for a slot, for `wait_seconds`.
    """

    name: str
    _: KW_ONLY
    slots: int
    waiting: int
    wait_seconds: float = 2.0
    failures_max: int = 3
    pause_seconds: float = 10.0
    clock: Callable[[], float] = time.monotonic
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)
    _calls: dict[object, float] = field(init=False, default_factory=dict)  # in progress: time of the last progress
    _queued: int = field(init=False, default=0)
    _failures: int = field(init=False, default=0)
    _open_until: float | None = field(init=False, default=None)

    def enter(self) -> object:
        """Take a slot and return its token. Raise DependencyBusy if the breaker is open or no slot became free."""
        with self._changed:
            self._require_closed()
            if len(self._calls) >= self.slots:
                busy = DependencyBusy(f"The {self.name} is serving its maximum number of requests. Try again soon.")
                if self._queued >= self.waiting:
                    raise busy
                self._queued += 1
                try:
                    if not self._changed.wait_for(lambda: len(self._calls) < self.slots, self.wait_seconds):
                        raise busy
                finally:
                    self._queued -= 1
                self._require_closed()
            token = object()
            self._calls[token] = self.clock()
            return token

    def progress(self, token: object) -> None:
        """Record that the dependency has answered part of a call."""
        with self._changed:
            self._calls[token] = self.clock()

    def leave(self, token: object, *, failed: bool) -> None:
        """Release a slot, and record whether the dependency failed."""
        with self._changed:
            del self._calls[token]
            self._changed.notify()
            was_open = self._open_until is not None
            self._failures = self._failures + 1 if failed else 0
            if not failed:
                self._open_until = None
            elif self.failures_max and self._failures >= self.failures_max:
                self._open_until = self.clock() + self.pause_seconds
        if was_open != (self._open_until is not None):
            get_logger(__name__).warning("dependency", name=self.name, available=not failed)

    def is_away(self) -> bool:
        """Return whether requests are rejected at once."""
        with self._changed:  # reentrant
            now = self.clock()
            stuck = len(self._calls) >= self.slots and max(self._calls.values()) < now - SECONDS_MAX
            return stuck or (self._open_until is not None and now < self._open_until)

    def _require_closed(self) -> None:
        if self.is_away():
            raise DependencyBusy(f"The {self.name} does not answer. Nothing was done; try again in a minute.")
        if self._open_until is not None:  # this call is the trial; others are rejected meanwhile
            self._open_until = self.clock() + self.pause_seconds


@dataclass(frozen=True)
class Dependencies:
    """The dependencies of one web application. Together they use fewer threads than the server has."""

    storage: Dependency = field(default_factory=partial(Dependency, "storage", slots=10, waiting=5))
    provider: Dependency = field(default_factory=partial(Dependency, "sign-in provider", slots=4, waiting=4))
    # No breaker: tests of webhooks block no thread, and one silent host does not mean that others are silent.
    webhooks: Dependency = field(default_factory=partial(Dependency, "webhooks", slots=20, waiting=0, failures_max=0))

    def away(self) -> list[str]:
        """Return the names of dependencies that reject requests at once."""
        return [each.name for each in (self.storage, self.provider) if each.is_away()]


@dataclass(frozen=True)
class _Request:
    """A web request: the dependencies of its application, and its slots by dependency."""

    dependencies: Dependencies
    held: dict[Name, object]


_request: ContextVar[_Request | None] = ContextVar("obscura_web_request", default=None)


class WebRequests:
    """ASGI middleware that applies the limits to requests, in all their threads."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]], dependencies: Dependencies) -> None:
        self._app, self._dependencies = app, dependencies

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            _request.set(_Request(self._dependencies, {}))
        await self._app(scope, receive, send)


def in_web_request() -> bool:
    """Return whether the caller serves a web request, so it must not wait long."""
    return _request.get() is not None


@contextmanager
def patient() -> Iterator[None]:
    """Lift the limits for a block of a web request. Use it only if another limit applies, as for uploads."""
    before = _request.set(None)
    try:
        yield
    finally:
        _request.reset(before)


@contextmanager
def calling(name: Name) -> Iterator[None]:
    """Take a slot of a dependency while a web request uses it. Reentrant; also a decorator.

    Outside of web requests it does nothing. Raise DependencyBusy as `Dependency.enter` does.
    """
    request = _request.get()
    if request is None or name in request.held:
        yield
        return
    dependency: Dependency = getattr(request.dependencies, name)
    request.held[name] = token = dependency.enter()
    failed = False
    try:
        yield
    except BaseException as error:
        failed = getattr(error, "dependency_failed", False)
        raise
    finally:
        del request.held[name]
        dependency.leave(token, failed=failed)


def require_slot(name: Name) -> None:
    """Raise RuntimeError if a web request uses a dependency without a slot, which is a bug."""
    request = _request.get()
    if request is not None and name not in request.held:
        raise RuntimeError(f"A web request must reach the {name} inside calling({name!r}).")


def progressed(name: Name) -> None:
    """Record that a dependency has answered part of the web request's call."""
    request = _request.get()
    if request is not None and name in request.held:
        getattr(request.dependencies, name).progress(request.held[name])
