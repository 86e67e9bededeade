"""Upload bodies: concurrency, minimum rate, and draining of rejected bodies."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

import anyio
from anyio import from_thread
from fastapi import Request

from service.api.limits import SlotLimits, Slots
from service.api.problems import UploadStalled
from service.errors import InvalidInput
from service.identity.access import Principal

BLOCK_BYTES = 2**20  # passed to the worker thread at once, because thread switches are slow
DRAINED_BYTES_MAX = 4 * 2**20  # of a rejected body, so that a client can finish sending a small body and read the error
DRAIN_SECONDS_MAX = 1.0
# Route of the parts of an upload. Their number and times depend on private images, so they are neither logged nor
# counted; the request that ends the upload is.
PARTS_PATH = "/uploads"


@dataclass(frozen=True)
class UploadLimits(SlotLimits):
    """Limits for the uploads of one process. Time that the service itself needs does not count.

    In each window, a client must send `window_seconds * bytes_per_second_min` bytes; in `seconds_max`, the whole body.
    """

    noun: ClassVar[str] = "upload"
    advice: ClassVar[str] = "Wait for one to end."
    process_max: int = 8
    per_project_max: int = 6
    per_key_max: int = 4
    window_seconds: float = 30.0
    bytes_per_second_min: int = 8192
    seconds_max: float = 3600.0


def content_length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("content-length", "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


@dataclass(eq=False)
class Body:
    """The body of a request, read in blocks from a worker thread."""

    request: Request
    limits: UploadLimits
    _ended: bool = False

    def blocks(self) -> Iterator[bytes]:
        """Yield the body in order. Raise UploadStalled for a slow body, InvalidInput if the client disconnects."""
        waited, limits = 0.0, self.limits
        while not self._ended:
            started = time.monotonic()
            block = from_thread.run(self._gather, BLOCK_BYTES, limits.window_seconds)
            waited += time.monotonic() - started
            in_time = self._ended or len(block) >= BLOCK_BYTES
            if not in_time and len(block) < limits.window_seconds * limits.bytes_per_second_min:
                raise UploadStalled(
                    f"The upload was slower than {limits.bytes_per_second_min} bytes per second for "
                    f"{limits.window_seconds:.0f} seconds. Upload again over a faster connection."
                )
            if waited > limits.seconds_max and not self._ended:
                raise UploadStalled(
                    f"The body took longer than {limits.seconds_max:.0f} seconds. Upload again over a faster "
                    "connection, or split the images into several datasets."
                )
            if block:
                yield block

    def drain(self) -> None:
        """Continue to read for a moment, so that the client of a small rejected body can read the response."""
        with suppress(InvalidInput):  # the client disconnected
            from_thread.run(self._gather, DRAINED_BYTES_MAX, DRAIN_SECONDS_MAX, False)

    async def _gather(self, bytes_max: int, seconds_max: float, keep: bool = True) -> bytes:
        parts, size = list[bytes](), 0
        with anyio.move_on_after(seconds_max):
            while size < bytes_max and not self._ended:
                message = await self.request.receive()  # cancelling it loses nothing
                if message["type"] == "http.disconnect":
                    self._ended = True
                    raise InvalidInput("The client disconnected before the end of the body.")
                part = message.get("body", b"")
                size += len(part)
                self._ended = not message.get("more_body", False)
                if keep and part:
                    parts.append(part)
        return b"".join(parts)


@contextmanager
def take_slot(slots: Slots[UploadLimits], caller: Principal) -> Iterator[None]:
    """Take one of the slots for uploads inside the `with` block."""
    slots.take(caller.id, caller.project_id)
    try:
        yield
    finally:
        slots.give_back(caller.id, caller.project_id)


@contextmanager
def take_body(request: Request, slots: Slots[UploadLimits], caller: Principal) -> Iterator[Body]:
    """Take a slot while the body of an upload is read, and drain the body after an error."""
    body = Body(request, slots.limits)
    with take_slot(slots, caller):
        try:
            yield body
        except BaseException:
            body.drain()
            raise
