"""Several web processes on one data folder and one database: none touches what another one is receiving."""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from tests.service.api.conftest import DATASET, npz
from tests.together import at_once, wait_until

PATIENCE_SECONDS = 120
LEASE_SECONDS = 3


class ApiProcess:
    """One web process, and a client of it."""

    def __init__(self, python: str, data_dir: Path, database_url: str) -> None:
        settings = {"DATA_DIR": str(data_dir), "DATABASE_URL": database_url, "MODE": "celery"}
        settings |= {"LEASE_SECONDS": str(LEASE_SECONDS), "HEARTBEAT_SECONDS": "0.5"}
        environment = os.environ | {f"OBSCURA_{name}": value for name, value in settings.items()}
        command = [python, "-m", "scripts.api_process"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self._key = data_dir / "admin.key"
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE_SECONDS)

    def ready(self) -> Self:
        """Wait until it answers."""
        wait_until(lambda: self._key.exists() and self._answers(), "no service", seconds=PATIENCE_SECONDS)
        self.http.headers["Authorization"] = f"Bearer {self.token}"
        return self

    def _answers(self) -> bool:
        try:
            return self.http.get("/v1/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def token(self) -> str:
        return self._key.read_text().strip()

    def state(self, dataset_id: str) -> str:
        return str(self.http.get(f"/v1/datasets/{dataset_id}").json()["state"])

    def declare(self) -> str:
        answer = self.http.post("/v1/datasets", json=DATASET)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def upload(self, dataset_id: str, body: bytes) -> httpx.Response:
        return self.http.put(f"/v1/datasets/{dataset_id}/content", params={"format": "npz"}, content=body)

    @contextmanager
    def half_an_upload(self, dataset_id: str, body: bytes) -> Iterator[Callable[[], bytes]]:
        """Send the first half of a body. Yields what sends the rest and returns the answer's beginning."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(
                f"PUT /v1/datasets/{dataset_id}/content?format=npz HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: Bearer {self.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body[: len(body) // 2]
            )

            def finish() -> bytes:
                connection.sendall(body[len(body) // 2 :])
                return connection.recv(65536)

            yield finish

    def kill(self) -> None:
        self.http.close()
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def start(tmp_path: Path, database_url: str, warm: str) -> Iterator[Callable[[], ApiProcess]]:
    """Start a web process on the folder and the database of the test."""
    with ExitStack() as stack:

        def started() -> ApiProcess:
            made = ApiProcess(warm, tmp_path / "data", database_url)
            stack.callback(made.kill)
            return made

        yield started


def images(seed: int) -> bytes:
    return npz(60, seed=seed)


def left(data_dir: Path) -> list[Path]:
    return [*data_dir.glob("quarantine/*"), *data_dir.glob("datasets/*.tmp")]


def test_a_process_that_starts_leaves_uploads_of_others_alone_and_takes_over_those_of_the_dead(start, tmp_path):
    first = start().ready()
    going_on, stranded = first.declare(), first.declare()
    with first.half_an_upload(going_on, images(0)) as finish, first.half_an_upload(stranded, images(1)):
        for dataset_id in (going_on, stranded):
            wait_until(lambda name=dataset_id: first.state(name) == "receiving", "no upload began")
        wait_until(lambda: len(left(tmp_path / "data")) == 2, "nothing is in quarantine")
        second = start().ready()
        assert second.state(going_on) == "receiving", "the start of a process ended the upload of another"
        assert len(left(tmp_path / "data")) == 2
        assert finish().startswith(b"HTTP/1.1 200 ")
        assert second.state(going_on) == "ready"
        taken = second.upload(stranded, images(2))
        assert (taken.status_code, taken.json()["state"]) == (409, "receiving")
        first.kill()
    wait_until(lambda: second.upload(stranded, images(2)).status_code == 200, "nobody took over from the dead process")
    wait_until(lambda: not left(tmp_path / "data"), "what the dead process wrote is still there")
    third = start().ready()
    assert [third.state(dataset_id) for dataset_id in (going_on, stranded)] == ["ready", "ready"]


def test_processes_that_start_together_serve_together(start, tmp_path):
    several = [start() for _ in range(3)]
    for process in several:
        process.ready()
    assert [path.name for path in (tmp_path / "data" / "keys").glob("fingerprints*")] == ["fingerprints.key"]
    declared = [several[0].declare() for _ in range(6)]
    uploads = [
        lambda number=number, dataset_id=dataset_id: several[number % 3].upload(dataset_id, images(number)).status_code
        for number, dataset_id in enumerate(declared)
    ]
    assert at_once(*uploads) == [200] * 6
    same = several[0].declare()
    racing = [lambda process=process: process.upload(same, images(9)).status_code for process in several]
    assert sorted(at_once(*racing)) == [200, 409, 409]
