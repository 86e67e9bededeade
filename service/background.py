"""A thread of the service's own, that works beside requests from its start until it is told to stop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Background(ABC):
    """Works in `_work` until `_stopping` is set; `_noted` is set then, too, and whenever there is something to do.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._noted, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @abstractmethod
    def _work(self) -> None: ...

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is being done, and begin nothing more. May be called without a start."""
        self._stopping.set()
        self._noted.set()
        if self._thread.is_alive():
            self._thread.join()
