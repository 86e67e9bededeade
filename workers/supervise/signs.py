"""Signs of life: bytes that a runner's main loop writes into a pipe, so that its supervisor notices a hang.

A runner writes a sign with every report, before every layer of a network and after every optimiser step
(`workers.train.process`). No other thread writes signs, because that would only show that the process is scheduled. A
step consists of passes of one public size, so the time between two signs does not depend on the number of sampled
records.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

_APART_SECONDS = 0.5  # minimum between two signs, because layers may take microseconds
_UNHEARD_SECONDS = 5.0  # maximum that counts for a pause in which the supervisor did not listen
_READ_BYTES = 2**16


class SignsOfLife:
    """The runner's end of the pipe; its descriptor is None without a supervisor."""

    def __init__(self, descriptor: int | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._descriptor, self._clock = descriptor, clock
        self._given = float("-inf")

    def give(self) -> None:
        """Write a sign without blocking; ignore errors. Call it only in the main loop."""
        now = self._clock()
        if self._descriptor is not None and now - self._given >= _APART_SECONDS:
            self._given = now
            with suppress(OSError):
                os.write(self._descriptor, b".")


class Listener:
    """The supervisor's end of the pipe. Close it when the runner is gone.

    The runner inherits the descriptor `theirs`. `silent_seconds` is the time without a sign at the last `listen`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mine, self.theirs = os.pipe()
        self._open = {self._mine, self.theirs}
        for descriptor in self._open:
            os.set_blocking(descriptor, False)
        self._listened, self.silent_seconds = clock(), 0.0

    def listen(self) -> float:
        """Return the seconds since the last sign, or since the start before the first one.

        A pause between two calls counts for a few seconds at most, because a paused container also pauses this process.
        """
        now = self._clock()
        passed, self._listened = min(now - self._listened, _UNHEARD_SECONDS), now
        try:
            heard = bool(os.read(self._mine, _READ_BYTES))
        except BlockingIOError:
            heard = False
        self.silent_seconds = 0.0 if heard else self.silent_seconds + passed
        return self.silent_seconds

    def close(self, *descriptors: int) -> None:
        """Close the given ends in this process, or both. Idempotent."""
        for descriptor in self._open.intersection(descriptors or self._open):
            self._open.remove(descriptor)
            os.close(descriptor)
