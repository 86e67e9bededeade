"""Several web processes on one data folder and one database: none touches what another one is receiving."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.service.api.conftest import Served, npz
from tests.service.api.test_uploading import sending, wait_for_state
from tests.together import at_once, ready, wait_until

LEASE_SECONDS = 3


class ApiProcess:
    """One web process, and a client of it once it answers."""

    def __init__(self, python: str, data_dir: Path, database_url: str) -> None:
        settings = {"DATA_DIR": str(data_dir), "DATABASE_URL": database_url, "MODE": "celery"}
        settings |= {"LEASE_SECONDS": str(LEASE_SECONDS), "HEARTBEAT_SECONDS": "0.5"}
        environment = os.environ | {f"OBSCURA_{name}": value for name, value in settings.items()}
        command = [python, "-m", "scripts.api_process"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        assert self.process.stdout is not None
        self.data_dir, self.url = data_dir, f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        elsewhere = cast("Any", None)  # application and database are in that process
        self.served = Served(elsewhere, self.url, data_dir, elsewhere, {})

    def ready(self) -> Served:
        ready(self.served.client(None))
        key = (self.data_dir / "admin.key").read_text().strip()
        self.served.tokens |= dict.fromkeys(("admin", "read"), key)
        return self.served

    def kill(self) -> None:
        self.served.close()
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def half_an_upload(served: Served, dataset_id: str, body: bytes) -> Iterator[Callable[[], bytes]]:
    """Send the first half of a body. Yields what sends the rest and returns the answer's beginning."""
    half = len(body) // 2
    with sending(served, dataset_id, f"Content-Length: {len(body)}", token=served.tokens["admin"]) as connection:
        connection.sendall(body[:half])

        def finish() -> bytes:
            connection.sendall(body[half:])
            return connection.recv(65536)

        yield finish


@pytest.fixture
def start(tmp_path: Path, database_url: str, warm: str) -> Iterator[Callable[[], ApiProcess]]:
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


def state(served: Served, dataset_id: str) -> str:
    return str(served.read(f"datasets/{dataset_id}")["state"])


def test_a_process_that_starts_leaves_uploads_of_others_alone_and_takes_over_those_of_the_dead(start, tmp_path):
    process = start()
    first = process.ready()
    going_on, stranded = first.dataset()["id"], first.dataset()["id"]
    with half_an_upload(first, going_on, images(0)) as finish, half_an_upload(first, stranded, images(1)):
        for dataset_id in (going_on, stranded):
            wait_for_state(first, dataset_id, "receiving")
        wait_until(lambda: len(left(tmp_path / "data")) == 2, "nothing is in quarantine")
        second = start().ready()
        assert state(second, going_on) == "receiving", "the start of a process ended the upload of another"
        assert len(left(tmp_path / "data")) == 2
        assert finish().startswith(b"HTTP/1.1 200 ")
        assert state(second, going_on) == "ready"
        taken = second.upload(stranded, images(2))
        assert (taken.status_code, taken.json()["state"]) == (409, "receiving")
        process.kill()
    wait_until(lambda: second.upload(stranded, images(2)).status_code == 200, "nobody took over from the dead process")
    wait_until(lambda: not left(tmp_path / "data"), "what the dead process wrote is still there")
    third = start().ready()
    assert [state(third, dataset_id) for dataset_id in (going_on, stranded)] == ["ready", "ready"]


def test_processes_that_start_together_serve_together(start, tmp_path):
    several = [process.ready() for process in [start() for _ in range(3)]]
    assert [path.name for path in (tmp_path / "data" / "keys").glob("fingerprints*")] == ["fingerprints.key"]
    declared = [several[0].dataset()["id"] for _ in range(6)]
    uploads = [
        lambda number=number, dataset_id=dataset_id: several[number % 3].upload(dataset_id, images(number)).status_code
        for number, dataset_id in enumerate(declared)
    ]
    assert at_once(*uploads) == [200] * 6
    same = several[0].dataset()["id"]
    racing = [lambda served=served: served.upload(same, images(9)).status_code for served in several]
    assert sorted(at_once(*racing)) == [200, 409, 409]
