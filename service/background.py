"""Background threads of the service."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

from service.logs import get_logger


class Background(threading.Thread, ABC):
    """A thread that runs `_work` until `_stopping` is set. Set `_noted` to wake it, for new work or to stop.

    After an error, it logs the error's type and restarts after `restart_seconds`.
    """

    restart_seconds = 5.0

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._noted, self._stopping = threading.Event(), threading.Event()

    @abstractmethod
    def _work(self) -> None: ...

    def _notes(self) -> Iterator[None]:
        """Yield each time that there is new work; end when the thread is to stop."""
        while self._noted.wait() and not self._stopping.is_set():
            self._noted.clear()
            yield

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._work()
                return
            except Exception as error:
                get_logger(__name__).error("background_failed", thread=self.name, error=type(error).__name__)
            self._stopping.wait(self.restart_seconds)
            self._noted.set()  # check for work again

    def stop(self) -> None:
        """Finish the current work and stop. You may call this without a start."""
        self._stopping.set()
        self._noted.set()
        if self.is_alive():
            self.join()
