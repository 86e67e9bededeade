"""The world of the API's tests: a real service behind a real socket, on SQLite, started once for each module.

Every test finds it as it was at its start. `served` has a key for each scope; its methods send requests over HTTP and
play its worker (its mode is "celery" with a broker that accepts no message, so jobs stay queued until a test claims
them). `fresh` is the same service with its first admin only. `dataset`, `job` and `released` are a private dataset that
is ready, a queued training on it, and a function that makes an account with a release. Modules override `settings` and
`limits`. A test that starts a service of its own uses `serving` with `own_settings`, or with `place`.
`connected` and `received` talk to the socket as no client library would.
"""

import hashlib
import io
import json
import shutil
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import structlog
import uvicorn
from click.testing import Result
from fastapi import FastAPI
from typer.testing import CliRunner

from obscura.cli.app import app as command_line
from obscura.client import Client
from obscura.client.transport import trusted
from obscura.wire.ids import introduce
from obscura.wire.words import DatasetState
from service import jobs, ledger
from service.api.events import StreamLimits
from service.api.problems import STATUSES
from service.audit.signing import open_signing_key
from service.cli.serving import listen, server_config
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.session import SessionFactory, transaction
from service.jobs import kinds
from service.main import create_app, utc_now
from service.settings import Settings
from tests.pictures import archive, picture
from tests.service.steps import CARD, REPORT, WithDatabase, charge_planned, make_key
from tests.together import wait_until

PATIENCE_SECONDS = 120  # for an answer, on a machine that does much else
SCOPES = ("admin", "data", "train", "read")
SMALL = {"teachers": 10, "top_k": 4, "images": 50}  # fits images of 4 x 4 pixels and 100 declared records
ACCOUNT: dict[str, Any] = {"owner": "clinic", "epsilon": 2.0, "delta": 1e-5, "unit": "record"}
ACCOUNT |= {"adjacency": "add_remove"}
DATASET: dict[str, Any] = {"name": "pictures", "visibility": "public", "classes": ["cat", "dog"], "height": 4}
DATASET |= {"width": 4, "channels": 1, "records_declared": 100}


OwnSettings = Callable[..., Settings]


@dataclass
class Served(WithDatabase):
    """A running service and ways to talk to it and to play its worker."""

    app: FastAPI
    url: str
    data_dir: Path
    factory: SessionFactory
    tokens: dict[str, str]
    http: dict[str, httpx.Client] = field(default_factory=dict)
    opened: list[httpx.Client] = field(default_factory=list)  # every client, of all projects

    def make_keys(self, *scopes: str) -> None:
        for scope in scopes:
            self.named(scope, scope)

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()

    def client(self, scope: str | None = "admin") -> httpx.Client:
        name = scope or ""
        if name not in self.http:
            self.http[name] = self.bearer(self.tokens[name] if name else "")
        return self.http[name]

    def ask(
        self, method: str, path: str, body: Any = None, *, scope: str | None = "admin", status: int = 200, **more: Any
    ) -> Any:
        """Send a request below /v1 and expect an answer of this status; returns what it holds."""
        answer = self.client(scope).request(method, f"/v1/{path}", json=body, **more)
        assert answer.status_code == status, (answer.status_code, answer.text)
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
        return answer.json()

    def read(self, path: str, *, scope: str | None = "read", status: int = 200, **params: Any) -> Any:
        return self.ask("GET", path, scope=scope, status=status, params=params)

    def send(self, path: str, body: Any = None, *, key: str = "", **more: Any) -> Any:
        """POST, under an idempotency key where there is one."""
        return self.ask("POST", path, body, headers={"Idempotency-Key": key} if key else {}, **more)

    def everything(self, path: str, **params: Any) -> list[dict[str, Any]]:
        page = self.read(path, **params)
        items = list(page["items"])
        while page["next_cursor"]:
            page = self.read(path, **params, cursor=page["next_cursor"])
            items += page["items"]
        return items

    def account(self, **changes: Any) -> dict[str, Any]:
        body = {"name": f"people {new_id('x')}", **ACCOUNT, **changes}
        return dict(self.send("accounts", body, status=201))

    def dataset(self, *, scope: str = "admin", **changes: Any) -> dict[str, Any]:
        return dict(self.send("datasets", DATASET | changes, scope=scope, status=201))

    def balance(self, account_id: str) -> dict[str, Any]:
        return dict(self.read(f"accounts/{account_id}")["balance"])

    def upload(self, dataset_id: str, body: Any, format: str = "npz", *, scope: str = "admin") -> httpx.Response:
        return self.client(scope).put(f"/v1/datasets/{dataset_id}/content", params={"format": format}, content=body)

    def named(self, name: str, *scopes: str) -> httpx.Client:
        """A client with a new key; a key with the scope admin is a person's of its own."""
        if name not in self.tokens:
            self.tokens[name] = self.do(make_key, name=name, scopes=scopes, now=utc_now())[1]
        return self.client(name)

    def make_key(self, name: str, *scopes: str, by: str = "admin", **more: Any) -> dict[str, Any]:
        """Create a key over HTTP; from then on its holder is a caller of this name."""
        made = dict(self.send("keys", {"name": name, "scopes": scopes, **more}, scope=by, status=201))
        self.tokens[name] = made["token"]
        return made

    def admit(self, name: str, *, by: str = "admin", status: int = 201, **more: str) -> Any:
        """Ask for an admin, or an owner of a project, who is a caller of this name once admitted."""
        self.tokens[name], introduction = introduce()
        body = {"name": name, "introduction": introduction, "reason": "needed", **more}
        return self.send("admins", body, scope=by, status=status)

    def approve(self, request_id: str, *, by: str, status: int = 200) -> Any:
        return self.send(f"decisions/{request_id}/approve", scope=by, status=status)

    def key_id(self, name: str) -> str:
        return f"key_{self.tokens[name].split('_')[1]}"

    def enters(self, *names: str) -> list[bool]:
        return [self.client(name).get("/v1/datasets").status_code != 401 for name in names]

    def member(self, project_id: str, role: str) -> "Served":
        made = self.send("keys", {"name": role, "role": role, "project_id": project_id}, status=201)
        return replace(self, tokens=dict.fromkeys(("admin", "read"), made["token"]), http={})

    def project(self, name: str = "heart") -> str:
        return str(self.send("projects", {"name": name}, status=201)["id"])

    def browser(self, token: str) -> httpx.Client:
        client = self.bearer()
        client.headers["Origin"] = self.url
        client.post("/login", data={"key": token})
        return client

    def obscura(self, *words: str, scope: str = "admin") -> Result:
        """Run a command against the service, in this process. What the service logs meanwhile goes to stderr."""
        logging = structlog.get_config()
        structlog.configure(**logging | {"logger_factory": structlog.PrintLoggerFactory(sys.stderr)})
        try:
            return CliRunner().invoke(command_line, ["--url", self.url, "--token", self.tokens[scope], *words])
        finally:
            structlog.configure(**logging)

    def bearer(self, token: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_SECONDS, verify=trusted())
        self.opened.append(client)
        return client

    def ready_dataset(self, account_id: str) -> dict[str, Any]:
        """A private dataset whose content is said to have arrived."""
        made = self.dataset(visibility="private", account_id=account_id)
        self._arrived(made["id"])
        return made

    def public_like_a_training(self, scope: str = "admin") -> str:
        """A public dataset that releases of `ready_dataset` can be measured on, by its id."""
        made = self.dataset(scope=scope)
        self._arrived(made["id"])
        return str(made["id"])

    def _arrived(self, dataset_id: str) -> None:
        content = {"content_sha256": "0" * 64, "content_bytes": 1, "ready_at": utc_now()}
        self.change(Dataset, dataset_id, state=DatasetState.READY, **content)

    def train(self, dataset_id: str, *, key: str | None = None, scope: str = "admin", **changes: Any) -> httpx.Response:
        body = {"dataset_id": dataset_id, "recipe": "datalens", "epsilon": 1.0, "options": SMALL} | changes
        return self.client(scope).post("/v1/jobs", json=body, headers={"Idempotency-Key": key or new_id("key")})

    def claim(self, job_id: str) -> int:
        """Take a job as a worker does; returns the attempt."""
        attempt = self.do(jobs.claim, worker="test", now=utc_now(), lease_seconds=600, job_id=job_id)
        assert attempt is not None
        return int(attempt)

    def progress(self, job_id: str, attempt: int, **facts: Any) -> None:
        self.do(jobs.report_progress, job_id=job_id, attempt=attempt, progress=facts)

    def publish(self, job_id: str, attempt: int) -> str:
        """Arm, charge, write artifact files and publish, as a worker does; returns the release's id."""
        release_id = new_id("rel")
        folder = self.data_dir / "releases" / release_id
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps(REPORT), "utf-8")
        (folder / "grid.png").write_bytes(b"\x89PNG not really")
        (folder / "images.zip").write_bytes(archive(("0/0000000.png", picture())))
        files = {"artifact_sha256": "ab" * 32, "artifact_dir": f"releases/{release_id}"}
        shown = {
            "card": CARD,
            "summary": {"accuracy": {"cnn": 0.7}},
        }
        shown |= {"key": open_signing_key(self.data_dir / "keys" / "ledger.pem"), "name": "release"}
        with transaction(self.factory) as session:
            paying = {"hold_id": jobs.get_job(session, job_id).hold_id, "attempt": attempt, "now": utc_now()}
            ledger.arm(session, **paying)
            charge_planned(session, **paying)
            this = {"job_id": job_id, "attempt": attempt, "release_id": release_id, "now": utc_now()}
            jobs.publish(session, **this, **files, **shown)
        return release_id

    def finish_evaluation(self, evaluation: dict[str, Any], **accuracy: float) -> None:
        facts = {"dataset": "held out", "dataset_id": evaluation["dataset_id"], "train_images": 50, "test_images": 7}
        results = {"accuracy": accuracy, "accuracy_warm_start_only": None}
        results["evaluation"] = {**facts, "seeds": [evaluation["seed"]]}
        self.finish(kinds.evaluate.KIND.finish, evaluation["job_id"], results=results, confusion=[[3, 1], [0, 3]])

    def finish(self, how: Callable[..., Any], job_id: str, **what: Any) -> None:
        self.do(how, job_id=job_id, attempt=self.claim(job_id), now=utc_now(), **what)

    def finish_sample(self, sample: dict[str, Any], content: bytes, name: str) -> None:
        path = self.data_dir / "samples" / sample["id"] / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        facts = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        self.finish(kinds.sample.KIND.finish, sample["job_id"], path=f"samples/{sample['id']}/{name}", **facts)


def new_settings(folder: Path, template: Path) -> Settings:
    """Settings of a service with a migrated database in an empty folder, which counts requests in its memory."""
    shutil.copyfile(template, folder / "obscura.db")
    return Settings(data_dir=folder, mode="celery", redis_url="amqp://nowhere", page_size_max=5)


@pytest.fixture(scope="module")
def limits() -> dict[str, Any]:
    return {"stream_limits": StreamLimits(poll_seconds=0.05)}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Settings:
    return new_settings(tmp_path_factory.mktemp("service"), sqlite_template)


@pytest.fixture
def own_settings(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> OwnSettings:
    """Make settings for a service of the test's own."""

    def make(**changes: Any) -> Settings:
        return new_settings(tmp_path_factory.mktemp("own"), sqlite_template).model_copy(update=changes)

    return make


def _broker_that_is_away(name: str, args: Sequence[Any]) -> None:
    raise ConnectionRefusedError


@contextmanager
def serving(settings: Settings, *scopes: str, **limits: Any) -> Iterator[Served]:
    """A running service with a key for each of these scopes."""
    app = create_app(settings, send=_broker_that_is_away, **limits)
    with running(app) as url:
        served = Served(app, url, settings.data_dir, app.state.service.factory, {})
        served.make_keys(*scopes)
        yield served
        served.close()


class Started:
    """A running service, and its database as it was with the first admin only, and with a key for each scope."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._database = sqlite3.connect(served.data_dir / "obscura.db")
        self._files = {*served.data_dir.rglob("*")}
        self.fresh = self._copy()
        served.make_keys(*SCOPES)
        self.usual = self._copy()

    def _copy(self) -> sqlite3.Connection:
        copied = sqlite3.connect(":memory:")
        self._database.backup(copied)
        return copied

    @contextmanager
    def restored(self, copy: sqlite3.Connection, tokens: dict[str, str] | None = None) -> Iterator[Served]:
        """The service with the rows of a copy, and without the files of other tests."""
        copy.backup(self._database)
        for path in sorted({*self._served.data_dir.rglob("*")} - self._files, reverse=True):  # folders last
            if not path.name.startswith("obscura.db"):
                path.rmdir() if path.is_dir() else path.unlink()
        self._served.app.state.service.wrong_keys.limiter._memory.reset()
        served = replace(self._served, tokens=dict(tokens or self._served.tokens), http={})
        yield served
        served.close()


@pytest.fixture(scope="module")
def started(settings: Settings, limits: dict[str, Any]) -> Iterator[Started]:
    with serving(settings, **limits) as served:
        yield Started(served)


@pytest.fixture
def served(started: Started) -> Iterator[Served]:
    with started.restored(started.usual) as served:
        yield served


@pytest.fixture
def fresh(started: Started, settings: Settings) -> Iterator[Served]:
    """The running service of a new installation, with nobody but the first admin."""
    token = (settings.data_dir / "admin.key").read_text("ascii").strip()
    with started.restored(started.fresh, {"admin": token}) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.url, served.tokens["admin"]) as client:
        yield client


@contextmanager
def running(app: FastAPI, *, connections_max: int = 100, head_seconds: float = 15.0) -> Iterator[str]:
    """Run an application on a free loopback port for the time of a block."""
    listener = listen("127.0.0.1", 0)
    config = server_config(app, connections_max=connections_max, head_seconds=head_seconds, grace_seconds=3)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the server did not start", seconds=2 * PATIENCE_SECONDS)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        app.state.service.stopping.set()
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def dataset(served: Served) -> dict[str, Any]:
    return served.ready_dataset(served.account(name="patients")["id"])


@pytest.fixture
def job(served: Served, dataset: dict[str, Any]) -> dict[str, Any]:
    return dict(served.train(dataset["id"]).json())


@pytest.fixture
def released(served: Served) -> Callable[[], tuple[dict[str, Any], str]]:
    """Make a job that has published; returns the account and the release's id."""

    def make() -> tuple[dict[str, Any], str]:
        account = served.account()
        dataset = served.ready_dataset(account["id"])
        job = served.train(dataset["id"]).json()
        return account, served.publish(job["id"], served.claim(job["id"]))

    return make


def npz(count: int, *, side: int = 4, classes: int = 2, seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, side, side), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, images=images, labels=np.arange(count, dtype=np.int64) % classes)
    return buffer.getvalue()


def connected(url: str, sent: bytes = b"") -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    made = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
    made.sendall(sent)
    return made


def received(connection: socket.socket, until: bytes | None = None) -> bytes:
    content = b""
    with suppress(ConnectionResetError):
        while (until is None or until not in content) and (more := connection.recv(65536)):
            content += more
    return content


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert document["code"] == code
    assert document["type"] == (f"/docs/reference/errors/#{code}" if code in STATUSES else "about:blank")
    assert document["title"]
    assert document["detail"]
    assert document["instance"].startswith("/")
    return document
