"""A thread of the service's own, that works beside requests from its start until it is told to stop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from service.logs import get_logger

RESTART_SECONDS = 5.0  # after an error that nobody has expected


class Background(ABC):
    """Works in `_work` until `_stopping` is set; `_noted` is set then, too, and whenever there is something to do.

    No error ends it: it says so, and begins anew, for others may wait for what it does.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._noted, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep_working, name=name, daemon=True)

    @abstractmethod
    def _work(self) -> None: ...

    def _keep_working(self) -> None:
        while not self._stopping.is_set():
            try:
                self._work()
                return
            except Exception as error:
                get_logger(__name__).error("background_failed", thread=self._thread.name, error=type(error).__name__)
            self._stopping.wait(RESTART_SECONDS)
            self._noted.set()  # what was noted is looked at once more

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is being done, and begin nothing more. May be called without a start."""
        self._stopping.set()
        self._noted.set()
        if self._thread.is_alive():
            self._thread.join()
