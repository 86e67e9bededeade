"""The demo's service: one of its own on this machine, whose memory is watched."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

from obscura.client.local_service import LocalService

LOOK_SECONDS = 0.5


class DemoService(LocalService):
    """Runs the embedded service for the time of a block.

    Args:
        data_dir: Of the service.
        log: Where its output goes.
    """

    def __init__(self, data_dir: Path, *, log: Path) -> None:
        super().__init__(data_dir, log=log)
        self._peak_bytes = 0
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._look, name="obscura-demo-memory", daemon=True)

    def __enter__(self) -> Self:
        super().__enter__()
        self._watch.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        super().__exit__(*_error)

    def peak_memory_bytes(self) -> int | None:
        """The most resident memory that the service and its runners had together; None where it cannot be seen."""
        return self._peak_bytes or None

    def _look(self) -> None:
        while self.process is not None and not self._stopping.wait(LOOK_SECONDS):
            self._peak_bytes = max(self._peak_bytes, resident_bytes(self.process.pid))


def resident_bytes(root: int) -> int:
    """Resident memory of a process and all its descendants, in bytes, from /proc; 0 where there is none.

    Pages that several processes share count once for each, so this errs on the high side.
    """
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents[int(folder.name)] = int(fields[1])
        sizes[int(folder.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid, size in sizes.items():
        ancestor = pid
        while ancestor not in (root, 0) and ancestor in parents:
            ancestor = parents[ancestor]
        total += size if ancestor == root else 0
    return total
