"""The connections of the web process: each in bounded time, all together in bounded number.

uvicorn waits for ever for the head of a request, and for a client that does not read, and takes connections until the
process has no file descriptors left. Then nobody is served. Here a connection that waits for a request is closed
after a while, and when there are too many, the address with the most of them loses the one that has waited longest.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from contextlib import suppress
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 1000
HEAD_SECONDS = 15.0  # from the opening of a connection, or the last answer, to the end of the next request's head
STALLED_SECONDS = 60.0  # without enough being read of an answer for more to be sent
OTHER_FILES = 256  # descriptors that are no connections: the database, uploads, downloads, pipes of processes
OPEN_FILES_MAX = 65_536
_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def raise_open_files() -> int:
    """Let this process open as many files as it may, and return how many connections that leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(min(CONNECTIONS_MAX, soft - OTHER_FILES), 16)


class Connection(H11Protocol):
    """One connection. It waits for a request from its opening, or its last answer, until a whole head has come."""

    connections_max = CONNECTIONS_MAX
    head_seconds = HEAD_SECONDS
    stalled_seconds = STALLED_SECONDS
    waits_since: float | None = None  # on the loop's clock; None while a request is being answered
    _head_deadline: asyncio.TimerHandle | None = None
    _read_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, and make room for it where there are too many."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.connections_max:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._answer()
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what has come; the wait is over when it completes a head."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._answer()

    def on_response_complete(self) -> None:
        """Wait for the next request. What still comes of the last one's body counts as waiting."""
        self._wait()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than the answer is made."""
        self._read_deadline = self.loop.call_later(self.stalled_seconds, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has read."""
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None
        super().resume_writing()

    def _wait(self) -> None:
        self._answer()
        self.waits_since = self.loop.time()
        self._head_deadline = self.loop.call_later(self.head_seconds, self._give_up, 0)

    def _answer(self) -> None:
        self.waits_since = None
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _give_up(self, unread_before: int) -> None:
        """Close, unless the client is still reading its last answer."""
        unread = self.transport.get_write_buffer_size()
        if unread and (unread_before == 0 or unread < unread_before):
            self._head_deadline = self.loop.call_later(self.head_seconds, self._give_up, unread)
            return
        if not unread and self.conn.trailing_data[0] and not self.transport.is_closing():
            self.transport.write(_TIMED_OUT)  # a head has begun
            self.transport.close()
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        """Close a connection that waits: of the address that has the most, the one that has waited longest."""
        everybody = cast("set[Connection]", self.connections)
        held = Counter(other.client[0] if other.client else "" for other in everybody)
        waiting = [other for other in everybody if other.waits_since is not None and other is not self]
        if not waiting:
            self.transport.abort()
            return

        def claim(other: Connection) -> tuple[int, float]:
            return -held[other.client[0] if other.client else ""], other.waits_since or 0.0

        out = min(waiting, key=claim)
        self.connections.discard(out)
        out.transport.abort()
