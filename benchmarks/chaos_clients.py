"""The clients of the chaos benchmark: they repeat their requests through the HTTP API until each is answered.

Every request that starts a job carries an idempotency key. Some are sent again after the answer: they must return the
same job. A request that was not answered goes to the next API process. One client only uploads.
"""

from __future__ import annotations

import hashlib
import io
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from obscura.client import Client
from obscura.errors import ApiError, ConnectionFailed

CLASSES = ["ring", "cross", "bar", "dot"]
SIDE_PIXELS, RECORDS = 8, 600
UPLOAD_RECORDS, UPLOAD_BLOCK_BYTES = 3000, 2**14
EPSILON = 0.5
ACCOUNT_EPSILON = 1000.0  # enough for thousands of jobs
OPEN_JOBS_MAX = 2  # that one client waits for
LOOK_SECONDS = 0.3
# Linear teachers on tiny images: a few seconds of work, in which the runner often charges, saves and reports.
OPTIONS: dict[str, Any] = {  # six payments, with a checkpoint after each
    "teachers": 40,
    "images": 450,
    "top_k": 8,
    "evaluation_samples": 500,
}
# 40 Poisson-sampled steps of tiny networks: the first one pays for the whole stage.
SAMPLED_OPTIONS: dict[str, Any] = {
    "features": 4,
    "latent": 4,
    "expected_batch": 30,
    "epochs": 2.0,
    "learning_rate": 1e-3,
    "generator_learning_rate": 1e-3,
    "generator_batch": 16,
    "evaluation_samples": 500,
}
PUBLIC_PICTURES = 40


def trainings(dataset_id: str, public_id: str) -> list[tuple[dict[str, Any], float]]:
    """Return the requests for trainings, each with its share."""
    of: tuple[tuple[str, dict[str, Any], float], ...] = (
        ("datalens", OPTIONS, 0.3),
        ("datalens", {**OPTIONS, "preset": "published"}, 0.25),
        ("moments", {"components": 8, "evaluation_samples": 500}, 0.05),
        ("moments", {"guide": True, "components": 8, "evaluation_samples": 500}, 0.05),
        ("select_public", {"public_dataset_id": public_id}, 0.1),
        ("dpgan", SAMPLED_OPTIONS, 0.25),
    )
    return [
        ({"dataset_id": dataset_id, "recipe": recipe, "epsilon": EPSILON, "options": options}, share)
        for recipe, options, share in of
    ]


@dataclass
class Heard:
    """The answers that the clients were given."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    jobs: set[str] = field(default_factory=set)
    releases: list[str] = field(default_factory=list)
    cancels: int = 0
    repeated: int = 0
    duplicated: int = 0  # requests that were sent again with their key and gave another job
    uploads: dict[str, bytes] = field(default_factory=dict)  # dataset that was reported ready: SHA-256 of its images
    uploads_repeated: int = 0
    refusals: Counter[str] = field(default_factory=Counter)

    def add(self, name: str) -> None:
        with self.lock:
            setattr(self, name, getattr(self, name) + 1)

    def refused(self, error: ApiError) -> None:
        with self.lock:
            self.refusals[error.code] += 1


def set_up(client: Client, epsilon: float = ACCOUNT_EPSILON) -> str:
    """Open an account, declare a dataset and push random images; return the dataset's id."""
    account = client.accounts.create(name="chaos", owner="benchmark", epsilon=epsilon, delta=1e-5, unit="record")
    return push_random(client, 0, RECORDS, name="noise", visibility="private", account_id=account.id)


def declare(client: Client, records: int, **declared: Any) -> Any:
    """Declare a dataset of tiny grey images."""
    sizes = {"height": SIDE_PIXELS, "width": SIDE_PIXELS, "channels": 1}
    return client.datasets.create(classes=CLASSES, records_declared=records, **sizes, **declared)


def push_random(client: Client, seed: int, records: int, **declared: Any) -> str:
    """Declare a dataset and push random images; return its id."""
    dataset = declare(client, records, **declared)
    images = np.random.default_rng(seed).integers(0, 256, (records, SIDE_PIXELS, SIDE_PIXELS), dtype=np.uint8)
    dataset.push([npz_of(images)], format="npz")
    return str(dataset.id)


def npz_of(images: npt.NDArray[np.uint8]) -> bytes:
    """Return an upload of images (n, h, w), whose labels go through the classes in turn."""
    content = io.BytesIO()
    np.savez(content, images=images, labels=np.arange(len(images), dtype=np.int64) % len(CLASSES))
    return content.getvalue()


class Asker(threading.Thread):
    """A client that repeats each request until it is answered or the time is over.

    Args:
        closing: set when nothing new is to be asked.
        until: returns when to give up, by `time.monotonic`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        token: str,
        *,
        heard: Heard,
        closing: threading.Event,
        until: Callable[[], float],
        seed: int,
    ) -> None:
        super().__init__(name=f"{type(self).__name__} {seed}", daemon=True)
        self.clients = [Client(url, token) for url in urls]
        self.heard, self.closing, self.until, self.seed = heard, closing, until, seed

    def ask_another(self) -> None:
        """Turn to the next API."""
        self.clients.append(self.clients.pop(0))

    def insist(self, ask: Callable[[Client], str], *, refusable: bool = True) -> str | None:
        """Return the answer, or None if the time is over or, unless `refusable` is False, the service refuses."""
        while time.monotonic() < self.until():
            try:
                return ask(self.clients[0])
            except ConnectionFailed:
                if not refusable:
                    self.heard.add("uploads_repeated")
                self.ask_another()
            except ApiError as error:
                self.heard.refused(error)
                if refusable and error.status < 500:
                    return None
            time.sleep(LOOK_SECONDS)
        return None


class Uploader(Asker):
    """Declare public datasets and upload each until the service reports that it is ready."""

    def run(self) -> None:
        number, images_of = 0, np.random.default_rng(self.seed)
        while time.monotonic() < self.until() and not self.closing.is_set():
            number += 1
            images = images_of.integers(0, 256, (UPLOAD_RECORDS, SIDE_PIXELS, SIDE_PIXELS), dtype=np.uint8)
            facts = {"name": f"public {number}", "visibility": "public"}
            dataset_id = self.insist(lambda api, facts=facts: declare(api, UPLOAD_RECORDS, **facts).id, refusable=False)
            if dataset_id is None:
                return
            push = partial(self._push, dataset_id=dataset_id, content=npz_of(images))
            if self.insist(push, refusable=False) is not None:
                with self.heard.lock:
                    self.heard.uploads[dataset_id] = hashlib.sha256(images.tobytes()).digest()
            time.sleep(LOOK_SECONDS)

    def _push(self, client: Client, dataset_id: str, content: bytes) -> str:
        dataset = client.datasets.get(dataset_id)
        if dataset.state != "ready":  # an earlier try may have succeeded without an answer
            blocks = range(0, len(content), UPLOAD_BLOCK_BYTES)
            dataset.push((self._slowly(content[start : start + UPLOAD_BLOCK_BYTES]) for start in blocks), format="npz")
        return dataset_id

    def _slowly(self, block: bytes) -> bytes:
        time.sleep(0.05)  # about a second for an upload, so that a kill may come in the middle
        return block


class Customer(Asker):
    """Submit, repeat, sample, cancel and look until `closing`; then until every job has ended."""

    def __init__(self, *args: Any, trainings: Sequence[tuple[dict[str, Any], float]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._trainings, self._dice = trainings, random.Random(self.seed)
        self._open: dict[str, float | None] = {}  # job: when to cancel it

    def run(self) -> None:
        while time.monotonic() < self.until() and not (self.closing.is_set() and not self._open):
            if len(self._open) < OPEN_JOBS_MAX and not self.closing.is_set():
                self._submit()
            for job_id in list(self._open):
                self._look(job_id)
            time.sleep(LOOK_SECONDS)

    def _submit(self) -> None:
        release_id = self._dice.choice(self.heard.releases) if self.heard.releases else None
        if release_id is not None and self._dice.random() < 0.25:
            path, name = f"/v1/releases/{release_id}/samples", "job_id"
            body: dict[str, Any] = {"count": 40, "seed": self._dice.randrange(2**31), "format": "npz"}
        else:
            path, name = "/v1/jobs", "id"
            ((body, _),) = self._dice.choices(self._trainings, [share for _, share in self._trainings])
        headers = {"Idempotency-Key": secrets.token_hex(16)}

        def ask(client: Client) -> str:
            return str(client.transport.request("POST", path, json=body, headers=headers).json()[name])

        job_id = self.insist(ask)
        if job_id is None:
            return
        with self.heard.lock:
            self.heard.jobs.add(job_id)
        self._open[job_id] = time.monotonic() + self._dice.uniform(0, 15) if self._dice.random() < 0.15 else None
        if self._dice.random() < 0.3:
            self.ask_another()
            again = self.insist(ask)
            self.heard.add("repeated")
            if again is not None and again != job_id:
                self.heard.add("duplicated")

    def _look(self, job_id: str) -> None:
        cancel_at, client = self._open[job_id], self.clients[0]
        try:
            if cancel_at is not None and time.monotonic() > cancel_at:
                client.transport.request("POST", f"/v1/jobs/{job_id}/cancel", repeatable=True)
                self._open[job_id] = None
                self.heard.add("cancels")
            job = client.jobs.get(job_id)
        except ConnectionFailed:
            self.ask_another()
        except ApiError as error:
            self._open[job_id] = None
            self.heard.refused(error)
        else:
            if job.finished:
                del self._open[job_id]
            if job.finished and job.release_id is not None and job.kind == "train":
                with self.heard.lock:
                    self.heard.releases.append(job.release_id)
