"""The clients of the chaos benchmark: they keep asking through the HTTP API, whatever happens to the service.

Every request that starts something carries an idempotency key and is sent until it is answered, as a client that never
heard whether it was accepted must. Some are sent again after that: they must give the same job.
"""

from __future__ import annotations

import io
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from service.client import Client
from service.client.errors import ApiError, ConnectionFailed

CLASSES = ["ring", "cross", "bar", "dot"]
SIDE_PIXELS, RECORDS = 8, 600
EPSILON = 0.5
ACCOUNT_EPSILON = 1000.0  # thousands of jobs: what runs out here is the time
OPEN_JOBS_MAX = 2  # that one client waits for
LOOK_SECONDS = 0.3
# Linear teachers on tiny images: a few seconds of work, in which the runner charges, saves and reports all the time.
OPTIONS: dict[str, Any] = {
    "teachers": 40,
    "images": 200,
    "images_per_iteration": 2,
    "top_k": 4,
    "components": 8,
    "frequencies": 6,
    "features": 8,
    "rounds": 2,
    "teacher_hidden": 0,
    "pretraining_steps": 1,
    "teacher_steps": 1,
    "vote_share": 0.5,
    "evaluation_samples": 500,
}


@dataclass
class Heard:
    """What the clients were told; shared by them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    jobs: set[str] = field(default_factory=set)
    releases: list[str] = field(default_factory=list)
    cancels: int = 0
    repeated: int = 0
    duplicated: int = 0  # requests that were sent again with their key and gave another job
    refusals: Counter[str] = field(default_factory=Counter)

    def add(self, name: str) -> None:
        """Count something."""
        with self.lock:
            setattr(self, name, getattr(self, name) + 1)


def set_up(client: Client) -> str:
    """Open an account, declare a dataset and push random images; returns the dataset's id."""
    account = client.create_account(
        name="chaos", owner="benchmark", epsilon=ACCOUNT_EPSILON, delta=1e-5, unit="record", filter="gdp"
    )
    dataset = client.declare_dataset(
        name="noise",
        visibility="private",
        classes=CLASSES,
        height=SIDE_PIXELS,
        width=SIDE_PIXELS,
        channels=1,
        records_declared=RECORDS,
        account_id=account.id,
    )
    dice = np.random.default_rng(0)
    images = dice.integers(0, 256, (RECORDS, SIDE_PIXELS, SIDE_PIXELS), dtype=np.uint8)
    labels = np.arange(RECORDS, dtype=np.int64) % len(CLASSES)
    content = io.BytesIO()
    np.savez(content, images=images, labels=labels)
    dataset.push([content.getvalue()], format="npz")
    return dataset.id


class Customer(threading.Thread):
    """One client: submits, repeats, samples, cancels and looks, until it is told that nothing more is wanted.

    After that it goes on until every request it has begun was answered and every job of it has ended.

    Args:
        url: of the service.
        token: with the right to train.
        dataset_id: to train on.
        heard: shared with the other clients.
        closing: set when nothing more is wanted.
        until: time (monotonic) at which it gives up; read again and again.
        seed: of its choices.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        dataset_id: str,
        heard: Heard,
        closing: threading.Event,
        until: Callable[[], float],
        seed: int,
    ) -> None:
        super().__init__(name=f"customer-{seed}", daemon=True)
        self._client = Client(url, token)
        self._dataset_id, self._heard, self._closing, self._until = dataset_id, heard, closing, until
        self._dice = random.Random(seed)
        self._open: dict[str, float | None] = {}  # job: when to cancel it

    def run(self) -> None:
        """Work until there is nothing left to wait for."""
        with self._client:
            while time.monotonic() < self._until() and not (self._closing.is_set() and not self._open):
                if len(self._open) < OPEN_JOBS_MAX and not self._closing.is_set():
                    self._submit()
                for job_id in list(self._open):
                    self._look(job_id)
                time.sleep(LOOK_SECONDS)

    def _submit(self) -> None:
        key = secrets.token_hex(16)
        release_id = self._dice.choice(self._heard.releases) if self._heard.releases else None
        if release_id is not None and self._dice.random() < 0.25:
            body: dict[str, Any] = {"count": 40, "seed": self._dice.randrange(2**31), "format": "npz"}
            ask = self._starter(f"/v1/releases/{release_id}/samples", body, key, "job_id")
        else:
            body = {"dataset_id": self._dataset_id, "recipe": "datalens", "epsilon": EPSILON, "options": OPTIONS}
            ask = self._starter("/v1/jobs", body, key, "id")
        job_id = self._insist(ask)
        if job_id is None:
            return
        with self._heard.lock:
            self._heard.jobs.add(job_id)
        self._open[job_id] = time.monotonic() + self._dice.uniform(0, 15) if self._dice.random() < 0.15 else None
        if self._dice.random() < 0.3:
            again = self._insist(ask)
            self._heard.add("repeated")
            if again is not None and again != job_id:
                self._heard.add("duplicated")

    def _look(self, job_id: str) -> None:
        cancel_at = self._open[job_id]
        try:
            if cancel_at is not None and time.monotonic() > cancel_at:
                self._client.transport.request("POST", f"/v1/jobs/{job_id}/cancel", repeatable=True)
                self._open[job_id] = None
                self._heard.add("cancels")
            job = self._client.job(job_id)
        except ConnectionFailed:
            return
        except ApiError as error:
            self._open[job_id] = None
            self._refused(error)
            return
        if job.finished:
            del self._open[job_id]
            if job.release_id is not None and job.kind == "train":
                with self._heard.lock:
                    self._heard.releases.append(job.release_id)

    def _starter(self, path: str, body: dict[str, Any], key: str, name: str) -> Callable[[], str]:
        def ask() -> str:
            answer = self._client.transport.request("POST", path, json=body, headers={"Idempotency-Key": key})
            return str(answer.json()[name])

        return ask

    def _insist(self, ask: Callable[[], str]) -> str | None:
        """Ask until there is an answer; None when the service refuses, or the time is over."""
        while time.monotonic() < self._until():
            try:
                return ask()
            except ConnectionFailed:
                time.sleep(LOOK_SECONDS)
            except ApiError as error:
                self._refused(error)
                if error.status < 500:
                    return None
                time.sleep(LOOK_SECONDS)
        return None

    def _refused(self, error: ApiError) -> None:
        with self._heard.lock:
            self._heard.refusals[error.code] += 1
