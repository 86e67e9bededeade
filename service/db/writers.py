"""SQLite writers take turns: first come, first served, instead of asleep and asking again.

SQLite lets one transaction write and makes the others sleep and retry, for longer and longer, so that under load some
wait for seconds while others pass them. Here a writer queues before it begins. The queue is a courtesy: `BEGIN
IMMEDIATE` still decides who writes. A writer that has waited too long, or cannot have the lock file, goes ahead
without its turn, and so does any other program.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class NestedTransaction(RuntimeError):
    """A thread that is writing wants to begin a second writing transaction, which could only wait for the first."""


class WriterQueue:
    """The writers of one database file: a queue of this process's threads, whose first waits for a lock file.

    The kernel queues the processes, and frees the lock file of one that dies.
    """

    def __init__(self, database: Path, *, seconds_max: float) -> None:
        self._lock_file = database.with_name(database.name + "-writers")
        self._seconds_max = seconds_max
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()  # the first one's turn it is
        self._thread = threading.local()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for this thread's turn and keep it. However the body ends, the next writer has its turn then.

        Raises:
            NestedTransaction: this thread has its turn already.
        """
        if getattr(self._thread, "has_turn", False):
            raise NestedTransaction("This thread is in a writing transaction already; SQLite has one writer at a time.")
        place, lock_file = threading.Event(), -1
        try:
            self._thread.has_turn = True
            with self._guard:
                self._waiting.append(place)
                self._waiting[0].set()
            if place.wait(self._seconds_max):
                lock_file = self._lock_among_processes()
            yield
        finally:
            if lock_file >= 0:
                fcntl.flock(lock_file, fcntl.LOCK_UN)  # closing is not enough while a forked child has it open
                os.close(lock_file)
            self._thread.has_turn = False
            with self._guard:
                with suppress(ValueError):  # interrupted before it stood in the queue
                    self._waiting.remove(place)
                if self._waiting:
                    self._waiting[0].set()

    def _lock_among_processes(self) -> int:
        """Return the locked lock file, to be closed; -1 where it cannot be had in time, or at all."""
        try:
            lock_file = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return -1
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock_file
        except BlockingIOError:
            return lock_file if _Waiter(lock_file).wait(self._seconds_max) else -1
        except OSError:
            os.close(lock_file)
            return -1


class _Waiter:
    """Another thread that waits in the kernel's queue, which knows no time limit, for one that does.

    Whoever comes second decides what becomes of the lock file: it is closed where nobody waits for it any more.
    """

    def __init__(self, lock_file: int) -> None:
        self._lock_file = lock_file
        self._guard = threading.Lock()
        self._locked = self._given_up = False

    def wait(self, seconds_max: float) -> bool:
        """Return whether the lock was had in time. If not, the lock file belongs to this object."""
        try:
            thread = threading.Thread(target=self._lock, name="writer-queue", daemon=True)
            thread.start()
            thread.join(seconds_max)
        except BaseException:
            if self._give_up():
                os.close(self._lock_file)
            raise
        return self._give_up()

    def _give_up(self) -> bool:
        """Wait no longer; return whether the lock was had by now."""
        with self._guard:
            self._given_up = not self._locked
            return self._locked

    def _lock(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)
            with self._guard:
                self._locked = not self._given_up
        if not self._locked:
            os.close(self._lock_file)
