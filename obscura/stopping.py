"""Work in a thread for asyncio, which stops at its next image or chunk when nobody awaits it any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


class Abandoned(Exception):
    """Nobody awaits this work any more. It is raised in the work's own thread, where nobody sees it."""


def go_on() -> None:
    """Called between two pieces of long work.

    Raises:
        Abandoned: The work was begun by `in_thread`, whose awaiting was cancelled.
    """
    event = _abandoned.get()
    if event is not None and event.is_set():
        raise Abandoned


async def in_thread(act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do something in a thread. Cancelling stops the awaiting at once, and the work at its next `go_on`."""
    event = threading.Event()

    def run() -> R:
        _abandoned.set(event)  # in this call's own context, which is a copy
        return act(*args, **kwargs)

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        event.set()
        raise
