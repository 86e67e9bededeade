"""Uploads that are slow, too many, refused, or sent to one of several processes: others are served all the same."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from service.api.limits import NoSlot, Slots
from service.api.uploading import DRAINED_BYTES_MAX, UploadLimits
from service.identity import auth
from service.main import utc_now
from service.settings import Settings
from tests.service.api.conftest import Served, connected, npz, received
from tests.together import PATIENCE_SECONDS, at_once, ready, wait_until

UPLOAD_BYTES_MAX = 2**24  # more than the slow uploads announce


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"upload_bytes_max": UPLOAD_BYTES_MAX})


@pytest.fixture(scope="module")
def limits() -> dict[str, Any]:
    rate = {"window_seconds": 1, "bytes_per_second_min": 50, "seconds_max": 2}
    return {"upload_limits": UploadLimits(process_max=3, per_key_max=2, **rate)}


def sending(served: Any, dataset_id: str, head: str, *, token: str | None = None) -> socket.socket:
    head = f"PUT /v1/datasets/{dataset_id}/content?format=npz HTTP/1.1\r\nHost: x\r\n{head}\r\n"
    return connected(served.url, f"{head}Authorization: Bearer {token or served.tokens['data']}\r\n\r\n".encode())


def dripped(connection: socket.socket, drop: bytes, seconds: float) -> bytes:
    """Send a drop, and wait for an answer for so long; again and again, until one comes."""
    connection.settimeout(seconds)
    said, deadline = b"", time.monotonic() + PATIENCE_SECONDS
    while not said and time.monotonic() < deadline:
        with suppress(TimeoutError):
            said = received(connection, b"}")
        with suppress(OSError):
            connection.sendall(drop)
    return said


def wait_for_state(served: Any, dataset_id: str, state: str) -> None:
    wait_until(lambda: served.read(f"datasets/{dataset_id}")["state"] == state)


@pytest.mark.parametrize(
    ("under_way", "late", "status", "code"),
    [(("one", "one"), "one", 429, "too_many_uploads_for_key"), (("one", "one", "two"), "admin", 503, "busy")],
)
def test_slow_uploads_are_bounded_and_leave_room_for_others(served, under_way, late, status, code):
    """Bounds of projects: the next test."""
    for name in ("one", "two"):
        served.named(name, "data")
    with ExitStack() as stack:
        for name in under_way:
            dataset_id = served.dataset()["id"]
            stack.enter_context(sending(served, dataset_id, "Content-Length: 100000", token=served.tokens[name]))
            wait_for_state(served, dataset_id, "receiving")
        waiting = served.dataset()["id"]
        refused = served.upload(waiting, b"x", scope=late)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        assert int(refused.headers["retry-after"]) > 0
        if code != "busy":
            assert served.upload(waiting, npz(4)).status_code == 200, "an admin of the installation"


def test_the_keys_of_one_project_leave_slots_to_others():
    slots = Slots(UploadLimits(process_max=8, per_project_max=6, per_key_max=4))
    taken = 0
    for number in range(16):
        with suppress(NoSlot):
            slots.take(f"key_{number % 3}", "prj_a")
            taken += 1
    assert taken == 6
    with pytest.raises(NoSlot, match="This project has 6 uploads under way") as refused:
        slots.take("key_new", "prj_a")
    assert refused.value.code == "too_many_uploads_for_project"
    for _ in range(2):
        slots.take("key_b", "prj_b")
    with pytest.raises(NoSlot) as refused:
        slots.take("key_c", "prj_c")
    assert refused.value.code == "busy"
    slots.give_back("key_0", "prj_a")
    slots.take("key_new", "prj_a")


@pytest.mark.parametrize("pause", [None, 0.2])
def test_a_client_that_sends_too_slowly_is_sent_away(served, pause):
    """A byte now and then used to keep a slot for ever."""
    dataset_id = served.dataset()["id"]
    with sending(served, dataset_id, "Content-Length: 100000") as connection:
        said = dripped(connection, b"x", pause or PATIENCE_SECONDS)
    assert said.startswith(b"HTTP/1.1 408"), said
    assert b"upload_stalled" in said
    wait_for_state(served, dataset_id, "declared")
    assert served.upload(dataset_id, npz(4)).status_code == 200


def test_a_body_that_keeps_up_the_rate_may_still_take_too_long(served):
    with sending(served, served.dataset()["id"], "Content-Length: 10000000") as connection:
        said = dripped(connection, b"x" * 100, 0.1)
    assert said.startswith(b"HTTP/1.1 408"), said
    assert b"longer than 2 seconds" in said


def test_a_slow_body_that_keeps_up_the_rate_is_taken(served):
    body = npz(10)

    def slowly() -> Iterator[bytes]:
        for start in range(0, len(body), 200):
            yield body[start : start + 200]
            time.sleep(0.05)

    answer = served.upload(served.dataset()["id"], slowly(), scope="data")
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("status", "change"), [(401, {"token": "none"}), (404, {"dataset_id": "ds_" + "a" * 20}), (413, {})]
)
@pytest.mark.parametrize("head", ["Content-Length: 100000000000", "Transfer-Encoding: chunked"])
def test_what_is_refused_is_not_read_to_its_announced_end(served, status, change, head):
    """100 GB were read to their end only to find the next request behind them."""
    dataset_id = change.get("dataset_id") or served.dataset()["id"]
    block = b"10000\r\n" + bytes(0x10000) + b"\r\n" if "chunked" in head else bytes(0x10000)
    sent = 0
    with sending(served, dataset_id, head, token=change.get("token")) as connection, suppress(OSError):
        connection.settimeout(5)
        while sent < 4 * DRAINED_BYTES_MAX + 16 * 2**20:  # the buffers of both sides hold some, too
            connection.sendall(block)
            sent += len(block)
    assert sent < 4 * DRAINED_BYTES_MAX + 16 * 2**20, "the service read on and on"
    with sending(served, dataset_id, head, token=change.get("token")) as connection:
        if status == 413 and "chunked" in head:
            connection.sendall(block * (UPLOAD_BYTES_MAX // 0x10000 + 1))
        said = received(connection, b"\r\n\r\n")
    assert said.startswith(f"HTTP/1.1 {status} ".encode()), said
    assert b"connection: close" in said.lower()


def test_a_json_body_that_is_refused_closes_its_connection_too(served):
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with connected(served.url, head + b"Content-Length: 100000000000\r\n\r\n{") as connection:
        said = received(connection, b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 4"), said
    assert b"connection: close" in said.lower()
    assert served.client("read").get("/v1/datasets").headers.get("connection") != "close"


def test_an_upload_whose_key_is_revoked_on_its_way_is_not_taken(served):
    """Whoever is removed has begun an upload that lasts, and everything that the key opened is over."""
    body, dataset_id = npz(10), served.dataset()["id"]
    key, token = served.do(auth.create_key, name="leaver", scopes=["data"], now=utc_now())
    with sending(served, dataset_id, f"Connection: close\r\nContent-Length: {len(body)}", token=token) as connection:
        connection.sendall(body[:-1])
        wait_for_state(served, dataset_id, "receiving")
        served.do(auth.revoke_key, key_id=key.id, admin_id=None, now=utc_now())
        connection.sendall(body[-1:])
        said = received(connection)
    assert said.startswith(b"HTTP/1.1 401"), said
    assert served.read(f"datasets/{dataset_id}")["state"] == "declared"
    assert served.upload(dataset_id, body).status_code == 200


# --- several web processes --------------------------------------------------------------------------------------------


LEASE_SECONDS = 3


class ApiProcess:
    def __init__(self, python: str, data_dir: Path, database_url: str) -> None:
        settings = {"DATA_DIR": str(data_dir), "DATABASE_URL": database_url, "MODE": "celery"}
        settings |= {"LEASE_SECONDS": str(LEASE_SECONDS), "HEARTBEAT_SECONDS": "0.5"}
        environment = os.environ | {f"OBSCURA_{name}": value for name, value in settings.items()}
        command = [python, "-m", "tests.service.api.api_process"]
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
