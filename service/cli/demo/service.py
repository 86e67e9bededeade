"""The demo's service: `obscura up` on a free loopback port, in a process of its own whose memory is watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from service.cli.connection import URL_FILE, find_token
from service.cli.console import CliError
from service.client import Client

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.5


class DemoService:
    """Runs the embedded service for the time of a block.

    Args:
        data_dir: Of the service; its settings come from nowhere else.
        log: Where its output goes.
    """

    def __init__(self, data_dir: Path, *, log: Path) -> None:
        self._data_dir, self._log = data_dir, log
        self._peak_bytes = 0
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._look, name="obscura-demo-memory", daemon=True)
        self.url = ""
        self.token = ""

    def __enter__(self) -> Self:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OBSCURA_")}
        command = [sys.executable, "-P", "-m", "service.cli", "--data-dir", str(self._data_dir), "up", "--port", "0"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops the service
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        self.token = find_token(None, self._data_dir)
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        self._stop()

    def wait(self) -> None:
        """Wait until the service ends."""
        self._process.wait()

    def peak_memory_bytes(self) -> int | None:
        """The most resident memory that the service and its runners had together; None where it cannot be seen."""
        return self._peak_bytes or None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        url_file = self._data_dir / URL_FILE
        while time.monotonic() < deadline and self._process.poll() is None:
            if url_file.exists():
                self.url = url_file.read_text("ascii").strip()
                with Client(self.url, None) as client:
                    if self.url and client.ready():
                        return
            time.sleep(0.1)
        raise CliError(f"The service did not start; see {self._log}.")

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _look(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self._peak_bytes = max(self._peak_bytes, resident_bytes(self._process.pid))


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
