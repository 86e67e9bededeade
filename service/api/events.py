"""Server-sent events about one job: a bounded number of streams, each of bounded duration.

A stream is a sequence of snapshots, not a log: an event is sent when the public state of the job has changed. The event
id identifies the snapshot, so a client that reconnects with Last-Event-ID receives only newer snapshots.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import ClassVar

import anyio
from anyio.to_thread import run_sync
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from obscura.wire.job_schemas import FINAL_STATES, EventRecord
from service.api.limits import SlotLimits

RECONNECT_MILLISECONDS = 1000


@dataclass(frozen=True)
class StreamLimits(SlotLimits):
    """Bounds of the event streams of one process."""

    noun: ClassVar[str] = "event stream"
    advice: ClassVar[str] = "Close one, or poll the job instead."
    process_max: int = 64
    per_project_max: int = 32
    per_key_max: int = 8
    seconds_max: float = 600.0
    poll_seconds: float = 0.5
    heartbeat_seconds: float = 15.0


class Snapshot:
    """The public state of a job. Its id consists of the progress version and a digest of the data."""

    def __init__(self, version: int, record: EventRecord) -> None:
        self.data = record.model_dump_json()
        self.id = f"{version}-{hashlib.sha256(self.data.encode()).hexdigest()[:12]}"
        self.final = record.state in FINAL_STATES


class EventStream(StreamingResponse):
    """The streamed response. It releases its slot (`StreamLimits`), however the connection ends."""

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
    """Yield each new snapshot as an event, with heartbeat comments in between. Blocks no thread between reads.

    Ends after the final snapshot, after `limits.seconds_max`, when the service stops, or when the caller loses access.
    Clients reconnect. `read` runs in a worker thread, and returns None if the caller's key was revoked.
    """
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n"
    opened = last_sent = time.monotonic()
    seen = last_event_id
    while True:
        snapshot = await run_sync(read)
        if snapshot is None:
            return
        now = time.monotonic()
        if snapshot.id != seen:
            seen, last_sent = snapshot.id, now
            name = "finished" if snapshot.final else "progress"
            yield f"id: {seen}\nevent: {name}\ndata: {snapshot.data}\n\n"
        elif now - last_sent >= limits.heartbeat_seconds:
            last_sent = now
            yield ": still here\n\n"
        if snapshot.final or now - opened >= limits.seconds_max or stopping.is_set():
            return
        await anyio.sleep(limits.poll_seconds)
