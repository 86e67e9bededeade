"""Signs of life: bytes that the main loop of a runner writes into a pipe, so that its supervisor notices a hang.

A runner writes one with every report, before every layer of a network and after every step of an optimiser
(`workers.train.process`). No other thread writes any, because that would only show that the process is scheduled. A
step works in passes of one public size, so the time between two signs does not depend on how many records it has drawn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

_APART_SECONDS = 0.5  # between two signs: layers may take microseconds
_UNHEARD_SECONDS = 5.0  # the most that a pause counts in which the supervisor itself did not listen
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
    """The supervisor's end. Close it when the runner is gone.

    The runner inherits the descriptor `theirs`. `silent_seconds` is the time without a sign, by the last `listen`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mine, self.theirs = os.pipe()
        self._open = {self._mine, self.theirs}
        for descriptor in self._open:
            os.set_blocking(descriptor, False)
        self._listened, self.silent_seconds = clock(), 0.0

    def listen(self) -> float:
        """Return the seconds without a sign, at first since the start.

        A pause between two calls counts for a few seconds at most: a paused container pauses this process as well.
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
