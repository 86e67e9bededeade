"""What a process does when the one that started it is gone: stop, and leave for good soon after."""

from __future__ import annotations

import os
import threading
import time

from workers.exits import ExitStatus

_LOOK_SECONDS = 1.0


def watch_parent(stop: threading.Event, *, parent: int, grace_seconds: float) -> threading.Thread:
    """Stop when the parent is gone, and leave for good if the step that runs takes longer than is allowed.

    Args:
        stop: is set when the parent has changed.
        parent: process id of who started this process.
        grace_seconds: for the step that runs.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        stop.set()
        time.sleep(grace_seconds)
        os._exit(ExitStatus.INTERRUPTED)

    thread = threading.Thread(target=watch, name="obscura-parent-watch", daemon=True)
    thread.start()
    return thread
