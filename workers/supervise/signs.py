"""Signs of life: what the main loop of a runner sends to its supervisor, so that one which hangs is noticed.

They go through a pipe, a byte each, and say nothing else. A runner gives one with every report, before every layer of a
network and after every step of an optimiser (`workers.train.process`). A thread of it gives none: that would only show
that the process is scheduled. Work of a step comes in passes of one public size, so how long two signs are apart does
not grow with the records that a step has drawn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

_APART_SECONDS = 0.5  # between two signs: layers may take microseconds
_UNHEARD_SECONDS = 5.0  # that count of a pause in which the supervisor itself did not listen
_READ_BYTES = 2**16


class SignsOfLife:
    """The runner's end.

    Args:
        descriptor: of the pipe; None where nobody listens.
        clock: seconds, monotonic.
    """

    def __init__(self, descriptor: int | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._descriptor, self._clock = descriptor, clock
        self._given = float("-inf")

    def give(self) -> None:
        """Show that the main loop goes on. Takes no time, and fails silently: a supervisor that is gone hears nothing.

        Called in the main loop alone.
        """
        now = self._clock()
        if self._descriptor is not None and now - self._given >= _APART_SECONDS:
            self._given = now
            with suppress(OSError):
                os.write(self._descriptor, b".")


class Listener:
    """The supervisor's end. Close it when the runner is gone.

    Args:
        clock: seconds, monotonic.

    Attributes:
        theirs: descriptor that the runner is to inherit; `hand_over` closes it here.
        silent_seconds: for which nothing was heard when `listen` was called last.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mine, self.theirs = os.pipe()
        self._open = {self._mine, self.theirs}
        for descriptor in self._open:
            os.set_blocking(descriptor, False)
        self._listened, self.silent_seconds = clock(), 0.0

    def hand_over(self) -> None:
        """Close the runner's end here, once it has it."""
        self._close(self.theirs)

    def listen(self) -> float:
        """Return for how many seconds there was no sign; its start is a runner's first one.

        A pause in which nobody listened counts for a few seconds at most: whoever stops all processes, as for a pause
        of a container, stops this one as well.
        """
        now = self._clock()
        passed, self._listened = min(now - self._listened, _UNHEARD_SECONDS), now
        self.silent_seconds = 0.0 if self._heard() else self.silent_seconds + passed
        return self.silent_seconds

    def close(self) -> None:
        """Hear nothing more."""
        for descriptor in tuple(self._open):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.remove(descriptor)
            os.close(descriptor)

    def _heard(self) -> bool:
        try:
            return bool(os.read(self._mine, _READ_BYTES))
        except BlockingIOError:
            return False
