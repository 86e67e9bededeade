"""Turns a synchronous verb into one for asyncio that has the same arguments, for people and for type checkers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from obscura.stopping import in_thread

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

Sync = Callable[Concatenate[Any, P], R]
Async = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


@overload
def verb(method: Sync[P, R]) -> Async[P, R]: ...
@overload
def verb(method: Sync[P, R], turn: Callable[[R], A]) -> Async[P, A]: ...
def verb(method: Sync[P, Any], turn: Callable[[Any], Any] | None = None) -> Async[P, Any]:
    """Make a method that runs another one in a thread, on the synchronous object behind its own (`self.sync`).

    Args:
        method: Of the synchronous class.
        turn: Makes of its answer what is returned here; by default, the answer itself.
    """

    @wraps(method)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        answer = await in_thread(method, self.sync, *args, **kwargs)
        return answer if turn is None else turn(answer)

    return run


@overload
def listed(method: Sync[P, Iterator[R]]) -> Callable[Concatenate[Any, P], AsyncIterator[R]]: ...
@overload
def listed(method: Sync[P, Iterator[R]], turn: Callable[[R], A]) -> Callable[Concatenate[Any, P], AsyncIterator[A]]: ...
def listed(
    method: Sync[P, Iterator[Any]], turn: Callable[[Any], Any] | None = None
) -> Callable[Concatenate[Any, P], AsyncIterator[Any]]:
    """Make a method that yields what another one yields; see `verb`. Its pages are read in threads."""

    @wraps(method)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
        items, end = method(self.sync, *args, **kwargs), object()
        while (item := await in_thread(next, items, end)) is not end:
            yield item if turn is None else turn(item)

    return run
