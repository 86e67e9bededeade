"""The embedded dispatcher: threads in the API's process that claim jobs and supervise their runners.

Each kind of job has its own thread, which runs one job at a time. So samples, evaluations and previews never wait for a
training. Every attempt runs in its own process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from service.db.session import SessionFactory
from service.jobs.kinds import KINDS
from service.logs import get_logger
from service.settings import Settings
from workers.supervise.attempts import claim_next, worker_name
from workers.supervise.reconcile import Reconciler
from workers.supervise.supervisor import RUNNER_COMMAND, Patience, supervise

POLL_SECONDS = 2.0  # maximum delay of a job without a message
_BACKOFF_SECONDS = 5.0  # after the database or the disk failed


@dataclass
class Dispatcher:
    """Claims and supervises jobs until it is stopped; runners get the settings of this process."""

    settings: Settings
    factory: SessionFactory
    command: Sequence[str] = RUNNER_COMMAND
    patience: Patience = field(default_factory=Patience)
    poll_seconds: float = POLL_SECONDS

    def __post_init__(self) -> None:
        self._draining = threading.Event()
        self._bells = {kind: threading.Event() for kind in KINDS}
        self._lanes: list[threading.Thread] = []
        self._reconciler = Reconciler(self.settings, self.factory, send=self.send)

    def start(self) -> None:
        self._reconciler.start()
        self._lanes = [threading.Thread(target=self._work, args=(kind,), name=f"obscura-{kind}-lane") for kind in KINDS]
        for lane in self._lanes:
            lane.start()

    def send(self, *_message: object) -> None:
        """Wake all threads: any message of the outbox does that in the embedded mode (`service.queue.Send`)."""
        for bell in self._bells.values():
            bell.set()

    def stop(self) -> None:
        """Stop all runners at their next step, requeue their jobs, and return when no runner is left.

        No job is cancelled, and every hold remains.
        """
        self._draining.set()
        self.send()
        for lane in self._lanes:
            lane.join()
        self._reconciler.stop()
        self._lanes = []

    def _work(self, kind: str) -> None:
        bell = self._bells[kind]
        worker = worker_name(f"embedded-{kind}")
        supervise_here = partial(supervise, self.settings, self.factory, command=self.command, patience=self.patience)
        while not self._draining.is_set():
            bell.clear()
            try:
                attempt = claim_next(self.settings, self.factory, kind=kind, worker=worker, now=datetime.now(UTC))
                if attempt is not None:
                    supervise_here(attempt, draining=self._draining.is_set)
                    continue
            except Exception as error:  # for example, a full disk; the job is claimed again after its lease expires
                get_logger(__name__).error("lane_failed", lane=kind, error=type(error).__name__)
                self._draining.wait(_BACKOFF_SECONDS)
                continue
            bell.wait(self.poll_seconds)
