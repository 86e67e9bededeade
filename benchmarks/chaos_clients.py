"""The clients of the chaos benchmark: they keep asking through the HTTP API, whatever happens to the service.

Every request that starts something carries an idempotency key and is sent until it is answered, as a client that never
heard whether it was accepted must. Some are sent again after that: they must give the same job. Where several API
processes serve, a request that was not answered goes to the next one. One client does nothing but upload.
"""

from __future__ import annotations

import hashlib
import io
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from obscura.client import Client
from obscura.errors import ApiError, ConnectionFailed

CLASSES = ["ring", "cross", "bar", "dot"]
SIDE_PIXELS, RECORDS = 8, 600
UPLOAD_RECORDS, UPLOAD_BLOCK_BYTES = 3000, 2**14
EPSILON = 0.5
ACCOUNT_EPSILON = 1000.0  # thousands of jobs: what runs out here is the time
OPEN_JOBS_MAX = 2  # that one client waits for
LOOK_SECONDS = 0.3
# Linear teachers on tiny images: a few seconds of work, in which the runner charges, saves and reports all the time.
OPTIONS: dict[str, Any] = {  # six payments, with a checkpoint after each
    "teachers": 40,
    "images": 450,
    "top_k": 8,
    "evaluation_samples": 500,
}
# 40 Poisson-sampled steps of tiny networks: their stage is paid as a whole, with the first of them.
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
    """Return what is trained, as requests, each with its share of the trainings."""
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
    """What the clients were told; shared by them."""

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
        """Count something."""
        with self.lock:
            setattr(self, name, getattr(self, name) + 1)

    def refused(self, error: ApiError) -> None:
        """Count an answer that is an error, by its code."""
        with self.lock:
            self.refusals[error.code] += 1


def set_up(client: Client, epsilon: float = ACCOUNT_EPSILON) -> str:
    """Open an account, declare a dataset and push random images; return the dataset's id."""
    account = client.create_account(name="chaos", owner="benchmark", epsilon=epsilon, delta=1e-5, unit="record")
    return push_random(client, 0, RECORDS, name="noise", visibility="private", account_id=account.id)


def publish_pictures(client: Client) -> str:
    """Declare a public dataset, from which `select_public` selects, and push random images; returns its id."""
    return push_random(client, 1, PUBLIC_PICTURES, name="pictures", visibility="public")


def push_random(client: Client, seed: int, records: int, **declared: Any) -> str:
    """Declare a dataset and push random images; return its id."""
    sizes = {"height": SIDE_PIXELS, "width": SIDE_PIXELS, "channels": 1}
    dataset = client.declare_dataset(classes=CLASSES, records_declared=records, **sizes, **declared)
    images = np.random.default_rng(seed).integers(0, 256, (records, SIDE_PIXELS, SIDE_PIXELS), dtype=np.uint8)
    dataset.push([npz_of(images)], format="npz")
    return dataset.id


def npz_of(images: npt.NDArray[np.uint8]) -> bytes:
    """Return an upload of images (n, h, w), whose labels go through the classes in turn."""
    content = io.BytesIO()
    np.savez(content, images=images, labels=np.arange(len(images), dtype=np.int64) % len(CLASSES))
    return content.getvalue()


def _slowly(content: bytes) -> Iterator[bytes]:
    """Yield an upload within about a second, so that a kill may come in the middle."""
    for start in range(0, len(content), UPLOAD_BLOCK_BYTES):
        yield content[start : start + UPLOAD_BLOCK_BYTES]
        time.sleep(0.05)


class Uploader(threading.Thread):
    """A client that declares public datasets and uploads each until the service says that it is ready."""

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
        super().__init__(name="uploader", daemon=True)
        self._clients = [Client(url, token) for url in urls]
        self._heard, self._closing, self._until = heard, closing, until
        self._images = np.random.default_rng(seed)

    def run(self) -> None:
        """Upload until nothing more is wanted."""
        number = 0
        while time.monotonic() < self._until() and not self._closing.is_set():
            number += 1
            images = self._images.integers(0, 256, (UPLOAD_RECORDS, SIDE_PIXELS, SIDE_PIXELS), dtype=np.uint8)
            dataset_id = self._insist(lambda client, name=f"public {number}": self._declare(client, name))
            if dataset_id is None:
                continue
            content = npz_of(images)
            if self._insist(lambda client, of=dataset_id, body=content: self._push(client, of, body)) is not None:
                with self._heard.lock:
                    self._heard.uploads[dataset_id] = hashlib.sha256(images.tobytes()).digest()
            time.sleep(LOOK_SECONDS)

    def _declare(self, client: Client, name: str) -> str:
        return client.declare_dataset(
            name=name,
            visibility="public",
            classes=CLASSES,
            height=SIDE_PIXELS,
            width=SIDE_PIXELS,
            channels=1,
            records_declared=UPLOAD_RECORDS,
        ).id

    def _push(self, client: Client, dataset_id: str, content: bytes) -> str:
        """Upload; an earlier try of this client may be under way still, or have come through unheard."""
        dataset = client.dataset(dataset_id)
        if dataset.state != "ready":
            dataset.push(_slowly(content), format="npz")
        return dataset_id

    def _insist(self, ask: Callable[[Client], str]) -> str | None:
        """Ask one API after the other until there is an answer; None when the time is over."""
        tries = 0
        while time.monotonic() < self._until():
            try:
                return ask(self._clients[tries % len(self._clients)])
            except ConnectionFailed:
                self._heard.add("uploads_repeated")
            except ApiError as error:
                self._heard.refused(error)
            tries += 1
            time.sleep(LOOK_SECONDS)
        return None


class Customer(threading.Thread):
    """One client: submits, repeats, samples, cancels and looks, until it is told that nothing more is wanted.

    After that it goes on until every request it has begun was answered and every job of it has ended.
    """

    def __init__(
        self,
        urls: Sequence[str],
        token: str,
        *,
        trainings: Sequence[tuple[dict[str, Any], float]],
        heard: Heard,
        closing: threading.Event,
        until: Callable[[], float],
        seed: int,
    ) -> None:
        super().__init__(name=f"customer-{seed}", daemon=True)
        self._clients = [Client(url, token) for url in urls]
        self._trainings, self._heard, self._closing, self._until = trainings, heard, closing, until
        self._dice = random.Random(seed)
        self._open: dict[str, float | None] = {}  # job: when to cancel it

    def run(self) -> None:
        """Work until there is nothing left to wait for."""
        while time.monotonic() < self._until() and not (self._closing.is_set() and not self._open):
            if len(self._open) < OPEN_JOBS_MAX and not self._closing.is_set():
                self._submit()
            for job_id in list(self._open):
                self._look(job_id)
            time.sleep(LOOK_SECONDS)

    @property
    def _client(self) -> Client:
        """The API that is asked now."""
        return self._clients[0]

    def _ask_another(self) -> None:
        """Turn to the next API: this one did not answer."""
        self._clients.append(self._clients.pop(0))

    def _submit(self) -> None:
        key = secrets.token_hex(16)
        release_id = self._dice.choice(self._heard.releases) if self._heard.releases else None
        if release_id is not None and self._dice.random() < 0.25:
            body = {"count": 40, "seed": self._dice.randrange(2**31), "format": "npz"}
            ask = self._starter(f"/v1/releases/{release_id}/samples", body, key, "job_id")
        else:
            ((body, _),) = self._dice.choices(self._trainings, [share for _, share in self._trainings])
            ask = self._starter("/v1/jobs", body, key, "id")
        job_id = self._insist(ask)
        if job_id is None:
            return
        with self._heard.lock:
            self._heard.jobs.add(job_id)
        self._open[job_id] = time.monotonic() + self._dice.uniform(0, 15) if self._dice.random() < 0.15 else None
        if self._dice.random() < 0.3:
            self._ask_another()
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
            self._ask_another()
            return
        except ApiError as error:
            self._open[job_id] = None
            self._heard.refused(error)
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
                self._ask_another()
                time.sleep(LOOK_SECONDS)
            except ApiError as error:
                self._heard.refused(error)
                if error.status < 500:
                    return None
                time.sleep(LOOK_SECONDS)
        return None
