"""A real service behind a real socket: the application in a server thread, on an SQLite file of the test's own.

Its mode is "celery" with a broker that takes no message, so jobs stay queued until a test plays the worker.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI

from service import jobs, ledger
from service.api.events import StreamLimits
from service.api.uploading import UploadLimits
from service.audit.signing import open_signing_key
from service.cli.serving import listen, server_config
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.session import SessionFactory, transaction
from service.db.words import DatasetState
from service.main import create_app, utc_now
from service.settings import Settings
from tests.service.people import make_key

START_SECONDS = 180
SCOPES = ("admin", "data", "train", "read")
REPORT = "<!doctype html><title>Report</title><!-- usefulness --><p>not measured</p><!-- /usefulness --><h2>4.</h2>"
SMALL = {"teachers": 10, "top_k": 4, "images": 50}  # fits images of 4 x 4 pixels and 100 declared records


@dataclass
class Served:
    """A running service and ways to talk to it and to play its worker."""

    app: FastAPI
    url: str
    data_dir: Path
    factory: SessionFactory
    tokens: dict[str, str]
    http: dict[str, httpx.Client] = field(default_factory=dict)

    def client(self, scope: str | None = "admin") -> httpx.Client:
        """An HTTP client with the key of a scope, or without any."""
        name = scope or ""
        if name not in self.http:
            headers = {"Authorization": f"Bearer {self.tokens[scope]}"} if scope else {}
            self.http[name] = httpx.Client(base_url=self.url, headers=headers, timeout=20)
        return self.http[name]

    def account(self, **changes: Any) -> dict[str, Any]:
        """Open an account over HTTP."""
        body = {"name": f"people {new_id('x')}", "owner": "clinic", "epsilon": 2.0, "delta": 1e-5}
        body |= {"unit": "record", "adjacency": "add_remove"} | changes
        answer = self.client().post("/v1/accounts", json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def dataset(self, **changes: Any) -> dict[str, Any]:
        """Declare a dataset over HTTP."""
        body = {"name": "pictures", "visibility": "public", "classes": ["cat", "dog"], "height": 4, "width": 4}
        body |= {"channels": 1, "records_declared": 100} | changes
        answer = self.client().post("/v1/datasets", json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def upload(self, dataset_id: str, body: bytes, format: str = "npz") -> httpx.Response:
        """Send a dataset's content."""
        return self.client().put(f"/v1/datasets/{dataset_id}/content", params={"format": format}, content=body)

    def ready_dataset(self, account_id: str) -> dict[str, Any]:
        """A private dataset whose content is said to have arrived."""
        made = self.dataset(visibility="private", account_id=account_id)
        self._arrived(made["id"])
        return made

    def public_like_a_training(self) -> str:
        """A public dataset that releases of `ready_dataset` can be measured on, by its id."""
        made = self.dataset()
        self._arrived(made["id"])
        return str(made["id"])

    def _arrived(self, dataset_id: str) -> None:
        with transaction(self.factory) as session:
            row = session.get_one(Dataset, dataset_id)
            row.state, row.content_sha256, row.content_bytes, row.ready_at = DatasetState.READY, "0" * 64, 1, utc_now()

    def train(self, dataset_id: str, *, key: str | None = None, **changes: Any) -> httpx.Response:
        """Ask for a training."""
        body = {"dataset_id": dataset_id, "recipe": "datalens", "epsilon": 1.0, "options": SMALL} | changes
        return self.client().post("/v1/jobs", json=body, headers={"Idempotency-Key": key or new_id("key")})

    def claim(self, job_id: str) -> int:
        """Take a job as a worker does; returns the attempt."""
        with transaction(self.factory) as session:
            claim = jobs.claim(session, worker="test", now=utc_now(), lease_seconds=600, job_id=job_id)
        assert claim is not None
        return claim.attempt

    def progress(self, job_id: str, attempt: int, **facts: Any) -> None:
        """Report progress as a worker does."""
        with transaction(self.factory) as session:
            jobs.report_progress(session, job_id=job_id, attempt=attempt, progress=facts)

    def publish(self, job_id: str, attempt: int, *, charge_nano: int = 1000) -> str:
        """Arm, charge, write artifact files and publish, as a worker does; returns the release's id."""
        with transaction(self.factory, read_only=True) as session:
            hold_id = jobs.get_job(session, job_id).hold_id
        assert hold_id is not None
        release_id = new_id("rel")
        folder = self.data_dir / "releases" / release_id
        folder.mkdir(parents=True)
        (folder / "report.html").write_text(REPORT, "utf-8")
        (folder / "report.json").write_text('{"report": true}', "utf-8")
        (folder / "grid.png").write_bytes(b"\x89PNG not really")
        with transaction(self.factory) as session:
            ledger.arm(session, hold_id=hold_id, attempt=attempt, now=utc_now())
            ledger.charge(
                session, hold_id=hold_id, attempt=attempt, amount_nano=charge_nano, stage="votes", now=utc_now()
            )
            jobs.publish(
                session,
                job_id=job_id,
                attempt=attempt,
                release_id=release_id,
                name="release",
                artifact_sha256="ab" * 32,
                artifact_dir=f"releases/{release_id}",
                card={"epsilon": 1.0, "delta": 1e-5},
                summary={"accuracy": {"cnn": 0.7}},
                key=open_signing_key(self.data_dir / "keys" / "ledger.pem"),
                now=utc_now(),
            )
        return release_id

    def finish_evaluation(self, evaluation: dict[str, Any], **accuracy: float) -> None:
        """End an evaluation with accuracies by classifier, as a worker does."""
        attempt = self.claim(evaluation["job_id"])
        facts = {"dataset": "held out", "dataset_id": evaluation["dataset_id"], "train_images": 50, "test_images": 7}
        with transaction(self.factory) as session:
            jobs.finish_evaluation(
                session,
                job_id=evaluation["job_id"],
                attempt=attempt,
                results={
                    "accuracy": accuracy,
                    "accuracy_warm_start_only": None,
                    "evaluation": {**facts, "seeds": [evaluation["seed"]]},
                },
                confusion=[[3, 1], [0, 3]],
                now=utc_now(),
            )

    def finish_sample(self, sample: dict[str, Any], content: bytes, name: str) -> None:
        """Write a sample's file and end its job, as a worker does."""
        attempt = self.claim(sample["job_id"])
        folder = self.data_dir / "samples" / sample["id"]
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
        with transaction(self.factory) as session:
            jobs.finish_sample(
                session,
                job_id=sample["job_id"],
                attempt=attempt,
                path=f"samples/{sample['id']}/{name}",
                sha256=hashlib.sha256(content).hexdigest(),
                size_bytes=len(content),
                now=utc_now(),
            )


@pytest.fixture
def stream_limits() -> StreamLimits:
    """Bounds of the event streams; tests override it."""
    return StreamLimits(poll_seconds=0.05)


@pytest.fixture
def upload_limits() -> UploadLimits:
    """Bounds of the uploads; tests override it."""
    return UploadLimits()


@pytest.fixture
def settings(tmp_path: Path, sqlite_template: Path) -> Settings:
    """Settings of the test's service, with a migrated database."""
    data_dir = tmp_path / "service"
    data_dir.mkdir()
    shutil.copyfile(sqlite_template, data_dir / "obscura.db")
    return Settings(data_dir=data_dir, mode="celery", page_size_max=5)


def _broker_that_is_away(name: str, args: Sequence[Any]) -> None:
    raise ConnectionRefusedError


@pytest.fixture
def served(settings: Settings, stream_limits: StreamLimits, upload_limits: UploadLimits) -> Iterator[Served]:
    """The running service."""
    app = create_app(settings, stream_limits=stream_limits, upload_limits=upload_limits, send=_broker_that_is_away)
    with running(app) as url:
        factory: SessionFactory = app.state.factory
        with transaction(factory) as session:
            tokens = {s: make_key(session, name=s, scopes=[s], now=utc_now())[1] for s in SCOPES}
        served = Served(app, url, settings.data_dir, factory, tokens)
        yield served
        for client in served.http.values():
            client.close()


class running:
    """Runs an application on a free loopback port for the time of a block."""

    def __init__(self, app: FastAPI, *, connections_max: int = 100, head_seconds: float = 15.0) -> None:
        self._listener = listen("127.0.0.1", 0)
        self._server = uvicorn.Server(
            server_config(app, connections_max=connections_max, head_seconds=head_seconds, grace_seconds=3)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._app = app

    def __enter__(self) -> str:
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if time.monotonic() > deadline:
                self.__exit__()
                pytest.fail("the server did not start")
            time.sleep(0.01)
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._app.state.service.stopping.set()
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()


@pytest.fixture
def released(served: Served) -> Callable[[], tuple[dict[str, Any], str]]:
    """Make a job that has published; returns the account and the release's id."""

    def make() -> tuple[dict[str, Any], str]:
        account = served.account()
        dataset = served.ready_dataset(account["id"])
        job = served.train(dataset["id"]).json()
        return account, served.publish(job["id"], served.claim(job["id"]))

    return make


@pytest.fixture
def make_npz() -> Callable[..., bytes]:
    """Make a small upload: `make_npz(20, side=4, classes=2)`."""
    return npz


def npz(count: int, *, side: int = 4, classes: int = 2) -> bytes:
    """A small upload: `count` images of noise with labels in turn."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, side, side), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, images=images, labels=np.arange(count, dtype=np.int64) % classes)
    return buffer.getvalue()
