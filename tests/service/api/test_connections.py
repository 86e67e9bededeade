"""A crowd of connections, slow heads, slow bodies and stuck databases: the service stays reachable. Real sockets."""

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from sqlalchemy import text

from obscura.client.transport import trusted
from service.api.middleware import Gate, GateLimits
from service.cli.serving import CONNECTIONS_MAX, raise_open_files
from service.main import POOL_SIZE, create_app
from tests.service.api.conftest import OwnSettings, Served, _broker_that_is_away, connected, received, running, serving
from tests.together import at_once, wait_until

PATIENCE_SECONDS = 60
HALF_A_FORM = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
HALF_A_FORM += b"Content-Length: 9\r\n\r\nk"
HALF_A_HEAD = b"GET /v1/health/live HTTP/1.1\r\nHost: localhost\r\n"


def alive(url: str) -> bool:
    return httpx.get(f"{url}/v1/health/live", timeout=10, verify=trusted()).status_code == 200


def ready(url: str) -> httpx.Response:
    return httpx.get(f"{url}/v1/health/ready", timeout=30, verify=trusted())


def dripped_until_closed(connection: socket.socket, drop: bytes) -> bool:
    """Send drop after drop; whether the other side closes in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while time.monotonic() < deadline:
            connection.sendall(drop)
            time.sleep(0.05)
    except OSError:
        return True
    return False


@pytest.fixture
def gate_limits() -> GateLimits:
    return GateLimits()


@pytest.fixture
def application(own_settings: OwnSettings, gate_limits: GateLimits) -> Any:
    return create_app(own_settings(), send=_broker_that_is_away, gate_limits=gate_limits)


@pytest.fixture
def crowded(own_settings: OwnSettings, gate_limits: GateLimits) -> Iterator[Served]:
    """A service of the test's own, which takes few requests at a time."""
    with serving(own_settings(), "admin", "read", gate_limits=gate_limits) as served:
        yield served


def limited(**limits: Any) -> pytest.MarkDecorator:
    """Run a test against an application or a service with these bounds of its requests."""
    return pytest.mark.parametrize("gate_limits", [GateLimits(**limits)], ids=[""])


def test_more_half_open_requests_than_the_process_has_room_for_leave_it_reachable(tmp_path):
    """The whole program, as `obscura up` runs it, with the usual soft limit of 1,024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    command = ["-m", "obscura.cli", "--data-dir", str(tmp_path), "up", "--port", "0"]
    limited = ["bash", "-c", 'ulimit -S -n 1024 && exec "$0" "$@"', sys.executable, *command]
    process = subprocess.Popen(limited, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def started() -> bool:
        assert process.poll() is None
        return (tmp_path / "admin.key").exists() and (tmp_path / "service.url").exists()

    with ExitStack() as crowd:
        crowd.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        crowd.callback(process.wait, PATIENCE_SECONDS)
        crowd.callback(process.terminate)
        wait_until(started, seconds=3 * PATIENCE_SECONDS)
        url = (tmp_path / "service.url").read_text("ascii").strip()
        wait_until(lambda: _answers(url), seconds=3 * PATIENCE_SECONDS)
        for _ in range(1100):
            crowd.enter_context(connected(url, HALF_A_HEAD))
        assert alive(url)
        assert ready(url).status_code == 200


def _answers(url: str) -> bool:
    try:
        return alive(url)
    except httpx.HTTPError:
        return False


def test_the_connection_that_waits_longest_makes_room(application):
    with running(application, connections_max=10) as url, ExitStack() as crowd:
        first = crowd.enter_context(connected(url, HALF_A_HEAD))
        others = [crowd.enter_context(connected(url, HALF_A_HEAD)) for _ in range(9)]
        assert alive(url)
        assert received(first) == b""
        for other in others:  # there is room for these
            other.sendall(b"\r\n")
            assert other.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_connection_that_is_being_answered_makes_no_room(served, job):
    head = f"GET /v1/jobs/{job['id']}/events HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Authorization: Bearer {served.tokens['read']}\r\n\r\n"
    with ExitStack() as crowd:
        follower = crowd.enter_context(connected(served.url, head.encode()))
        assert b"event: progress" in received(follower, b"event: progress")
        for _ in range(150):  # the service of the tests keeps 100
            crowd.enter_context(connected(served.url))
        assert served.client("train").post(f"/v1/jobs/{job['id']}/cancel").status_code == 200
        assert b"event: finished" in received(follower, b"event: finished")


def test_a_head_has_to_come_in_time(application):
    with running(application, head_seconds=0.5) as url:
        for sent in (b"", b"GET /v1/health/live HT", HALF_A_HEAD):
            with connected(url, sent) as slow:
                answered = received(slow)
            assert answered.startswith(b"HTTP/1.1 408 ") if sent else answered == b"", sent
        with connected(url, HALF_A_HEAD) as slow:
            assert dripped_until_closed(slow, b"X-Drop: 1\r\n")


def test_a_body_that_nobody_waits_for_is_not_read_for_ever(application):
    """The answer is there before the body, of which drops go on coming."""
    head = b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000000\r\n\r\n"
    with running(application, head_seconds=0.5) as url, connected(url, head) as slow:
        assert slow.recv(65536).startswith(b"HTTP/1.1 404")
        assert dripped_until_closed(slow, b"x")


@limited(body_seconds_max=0.5)
def test_a_body_has_to_come_in_time(application):
    with running(application) as url, connected(url, HALF_A_FORM) as slow:
        assert received(slow, b"\r\n\r\n").startswith(b"HTTP/1.1 408")


def test_connections_are_used_again_and_answers_are_sent_at_once(served):
    """Without TCP_NODELAY the kernel keeps the end of an answer back until its beginning was acknowledged."""
    with connected(served.url) as kept:
        for _ in range(5):
            kept.sendall(HALF_A_HEAD + b"\r\n")
            assert received(kept, b'"ok"').startswith(b"HTTP/1.1 200")
            time.sleep(0.05)
        assert _sends_at_once(kept.getsockname())


def _sends_at_once(peer: tuple[str, int]) -> bool:
    """Ask the server's end of a connection. It is in this process, so it is among our descriptors."""
    sockets = [link for link in Path("/proc/self/fd").iterdir() if "socket:" in os.path.realpath(link)]
    for link in sockets:
        with suppress(OSError), socket.socket(fileno=os.dup(int(link.name))) as found:
            if found.getpeername() == peer:
                return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    raise AssertionError("no such connection")


def test_the_soft_limit_of_open_files_is_raised():
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, usual[1]))
        room = raise_open_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert soft == (65536 if hard == resource.RLIM_INFINITY else min(hard, 65536))
    assert room == min(CONNECTIONS_MAX, soft - 256)


# --- liveness and readiness ------------------------------------------------------------------------------------------


@contextmanager
def _every_thread_busy(served: Any) -> Iterator[None]:
    """Hold the database's write lock, and keep more requests waiting for it than the server has threads."""
    path = f"/v1/accounts/{served.account()['id']}/freeze"

    def write(number: int) -> None:
        with served.bearer(served.tokens["admin"]) as client:
            headers = {"X-Forwarded-For": f"198.51.100.{number}"}
            client.post(path, json={"reason": "test"}, headers=headers)

    threads = [threading.Thread(target=write, args=[number]) for number in range(50)]
    with served.factory.kw["bind"].connect() as connection:
        connection.execute(text("SELECT 1"))  # a transaction of ours begins as a writer
        try:
            for thread in threads:
                thread.start()
            wait_until(lambda: gate_of(served).open.total() == len(threads))
            yield
        finally:
            connection.rollback()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)


def test_liveness_waits_for_no_writer_and_for_no_thread(served):
    with _every_thread_busy(served):
        assert alive(served.url)
        answer = ready(served.url)  # reads wait for no writer
        assert answer.status_code == 200, answer.text


def test_readiness_answers_in_time_when_the_database_does_not(served):
    with ExitStack() as held:
        for _ in range(2 * POOL_SIZE):  # every connection that the service may open
            held.enter_context(served.factory.kw["bind"].connect())
        for answer in at_once(*[partial(ready, served.url)] * 12):  # more than may hang at a time
            assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        assert alive(served.url)
    wait_until(lambda: ready(served.url).status_code == 200)


@pytest.mark.parametrize("gate_limits", [GateLimits(requests_max=0), GateLimits(per_address_max=0)])
def test_a_crowd_of_requests_leaves_room_for_liveness(crowded):
    answer = crowded.client("read").get("/v1/accounts")
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert int(answer.headers["retry-after"]) > 0
    assert alive(crowded.url)


def gate_of(served: Any) -> Gate:
    found = served.app.middleware_stack
    while not isinstance(found, Gate):
        found = found.app
    return found


def half_a_form(url: str, client: str) -> socket.socket:
    return connected(url, HALF_A_FORM.replace(b"\r\n", f"\r\nX-Forwarded-For: {client}\r\n".encode(), 1))


@limited(requests_max=10, waiting_max=20, waiting_per_address_max=5)
def test_incomplete_bodies_of_one_address_keep_nobody_out(crowded):
    """Each used to count as a request for 30 seconds."""
    with ExitStack() as crowd:
        patient = crowd.enter_context(half_a_form(crowded.url, "203.0.113.7"))
        slow = [crowd.enter_context(half_a_form(crowded.url, "203.0.113.66")) for _ in range(40)]
        for first in slow[:35]:
            assert received(first, b"\r\n\r\n").startswith(b"HTTP/1.1 503")
        assert crowded.client("read").get("/v1/jobs").status_code == 200
        assert crowded.client(None).post("/login", data={"key": crowded.tokens["read"]}).status_code == 303
        for waiting in (patient, slow[-1]):
            waiting.sendall(b"=wrong&x=")
            assert received(waiting, b"\r\n\r\n").startswith(b"HTTP/1.1 401")


@limited(requests_max=10, waiting_max=20, waiting_per_address_max=5)
def test_incomplete_bodies_of_many_addresses_make_room_for_each_other(crowded):
    with ExitStack() as crowd:
        slow = [crowd.enter_context(half_a_form(crowded.url, f"203.0.113.{n // 4}")) for n in range(40)]
        assert received(slow[0], b"\r\n\r\n").startswith(b"HTTP/1.1 503")
        wait_until(lambda: len(gate_of(crowded).room.waiting) == 20)
        assert crowded.client(None).post("/login", data={"key": crowded.tokens["read"]}).status_code == 303
    wait_until(lambda: not gate_of(crowded).open and not gate_of(crowded).room.waiting, "a request is still counted")


@limited(per_address_max=2)
def test_one_address_does_not_take_all_requests(crowded):
    with _every_thread_busy(crowded), ExitStack() as crowd:
        head = f"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {crowded.tokens['read']}\r\n"
        for _ in range(4):
            crowd.enter_context(connected(crowded.url, f"{head}X-Forwarded-For: 203.0.113.66\r\n\r\n".encode()))
        wait_until(lambda: gate_of(crowded).open["203.0.113.66"] == 2)
        assert gate_of(crowded).open["203.0.113.66"] == 2


def test_a_client_that_hangs_up_is_one_line_of_the_log(served, caplog, capfd):
    """It used to be an unexpected error with its stack."""
    structlog.reset_defaults()  # commands that other tests run in this process raise the level of the log
    for head in (HALF_A_FORM, HALF_A_FORM.replace(b"/login", b"/logout")):
        with connected(served.url, head):
            wait_until(lambda: len(gate_of(served).room.waiting) == 1)
        wait_until(lambda: gate_of(served).open.total() + len(gate_of(served).room.waiting) == 0)
    logged = capfd.readouterr()
    assert not [record for record in caplog.records if record.exc_info]
    assert "Traceback" not in logged.out + logged.err
    assert "unexpected_error" not in logged.out + logged.err
    assert (logged.out + logged.err).count("client_disconnected") == 2


def test_connections_whose_clients_do_not_read_make_room(application):
    asks = b"GET /static/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
    with running(application, connections_max=10) as url, ExitStack() as crowd:
        for _ in range(20):
            unread = crowd.enter_context(socket.socket())
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, _, port = url.removeprefix("http://").partition(":")
            unread.connect((host, int(port)))
            unread.sendall(asks)
        wait_until(lambda: _answers(url))
        whole = httpx.get(f"{url}/static/swagger-ui-bundle.js", timeout=PATIENCE_SECONDS)
        assert len(whole.content) == int(whole.headers["content-length"]) > 2**20
