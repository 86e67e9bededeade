"""Run work for asyncio in a thread. Cancelling the task stops the thread at its next image or chunk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextvars import ContextVar, copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


def go_on() -> None:
    """Raise CancelledError (of `concurrent.futures`) if the work that `in_thread` started was cancelled.

    Long work calls this between its chunks.
    """
    event = _abandoned.get()
    if event is not None and event.is_set():
        raise CancelledError


async def in_thread(act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function in a thread. Cancelling ends the wait at once; the function stops when it next calls `go_on`."""
    event, context = threading.Event(), copy_context()
    context.run(_abandoned.set, event)
    try:
        return await asyncio.get_running_loop().run_in_executor(None, partial(context.run, act, *args, **kwargs))
    except asyncio.CancelledError:
        event.set()
        raise
