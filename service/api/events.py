"""Server-sent events about one job: a bounded number of streams, each of bounded duration.

A stream is a sequence of snapshots, not a log: an event is sent when what may be said about the job has changed.
The event id names the snapshot, so a client that reconnects with Last-Event-ID is told only what is new to it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import anyio
from anyio.to_thread import run_sync
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from obscura.wire.job_schemas import FINAL_STATES, EventRecord
from service.api.problems import TooManyStreams
from service.api.slots import Slots

RECONNECT_MILLISECONDS = 1000


@dataclass(frozen=True)
class StreamLimits:
    """Bounds of the event streams of one process."""

    streams_max: int = 64
    streams_per_project_max: int = 32
    streams_per_key_max: int = 8
    seconds_max: float = 600.0
    poll_seconds: float = 0.5
    heartbeat_seconds: float = 15.0


@dataclass(frozen=True)
class Snapshot:
    """What may be said about a job now."""

    version: int
    record: EventRecord

    @property
    def data(self) -> str:
        """The event's data."""
        return self.record.model_dump_json()

    @property
    def id(self) -> str:
        """Names this snapshot: the progress version and a digest of the data."""
        return f"{self.version}-{hashlib.sha256(self.data.encode()).hexdigest()[:12]}"

    @property
    def final(self) -> bool:
        """Return whether this is the last event."""
        return self.record.state in FINAL_STATES


def stream_slots(limits: StreamLimits) -> Slots[StreamLimits]:
    """Return the slots of event streams; without a free one, TooManyStreams is raised."""
    return Slots(
        limits,
        limits.streams_max,
        limits.streams_per_project_max,
        limits.streams_per_key_max,
        refusal=TooManyStreams,
    )


class EventStream(StreamingResponse):
    """The streamed response; whatever happens to the connection, its slot is given back."""

    def __init__(self, content: AsyncIterator[str], *, on_close: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


async def follow(
    read: Callable[[], Snapshot | None], *, last_event_id: str | None, limits: StreamLimits, stopping: threading.Event
) -> AsyncIterator[str]:
    """Yield the wire form of each new snapshot, and heartbeat comments in between.

    Ends after the final snapshot, after `limits.seconds_max`, when the service stops, or when the caller may no longer
    read; the client reconnects.
    No thread and no transaction is held between two looks at the database.

    Args:
        read: Reads the job in a short transaction of its own, or returns None where the caller's key was revoked; runs
            in a worker thread.
        last_event_id: The snapshot that the client has seen last.
        limits: Poll interval, heartbeat and duration.
        stopping: Set when the service shuts down.
    """
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n"
    opened = spoken = time.monotonic()
    seen = last_event_id
    while True:
        snapshot = await run_sync(read)
        if snapshot is None:
            return
        now = time.monotonic()
        if snapshot.id != seen:
            seen, spoken = snapshot.id, now
            name = "finished" if snapshot.final else "progress"
            yield f"id: {seen}\nevent: {name}\ndata: {snapshot.data}\n\n"
        elif now - spoken >= limits.heartbeat_seconds:
            spoken = now
            yield ": still here\n\n"
        if snapshot.final or now - opened >= limits.seconds_max or stopping.is_set():
            return
        await anyio.sleep(limits.poll_seconds)
