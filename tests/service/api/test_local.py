"""Who is on this machine, asked over real sockets: the connection counts, not what the request says."""

import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from tests.service.api.conftest import START_SECONDS, Served
from tests.together import wait_until


@pytest.fixture(params=["127.0.0.1", "*"])
def port(served: Served, request: pytest.FixtureRequest) -> Iterator[int]:
    """The same application on every address of this machine; it believes some proxies, or all.

    That is what the server makes of `FORWARDED_ALLOW_IPS`: it writes the address that a proxy names over the client's.
    """
    listener = socket.create_server(("0.0.0.0", 0))
    config = uvicorn.Config(
        served.app, log_config=None, lifespan="off", ws="none", forwarded_allow_ips=request.param, proxy_headers=True
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_until(lambda: server.started, seconds=START_SECONDS)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()
    listener.close()


def status(address: str, port: int, *lines: str, version: str = "1.1") -> int:
    """Ask for the overview over a socket of our own; returns the status."""
    named = [line for line in lines if line.lower().startswith("host:")] or [f"Host: 127.0.0.1:{port}"]
    others = [line for line in lines if line not in named]
    request = "\r\n".join([f"GET / HTTP/{version}", *named, *others, "Connection: close", "", ""])
    with socket.create_connection((address, port), timeout=30) as connection:
        connection.sendall(request.encode("latin-1"))
        with connection.makefile("rb") as answer:
            return int(answer.readline().split()[1])


def own_address() -> str:
    """An address of this machine that is not loopback; packets to it never leave the machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address besides loopback")
        return str(probe.getsockname()[0])


def test_this_machine_may_read_and_nobody_else(port):
    assert status("127.0.0.1", port) == 200
    assert status("127.0.0.1", port, f"Host: localhost:{port}") == 200
    assert status("127.0.0.1", port, "Host: evil.example") == 303  # a name that points here
    assert status(own_address(), port) == 303  # the client says 127.0.0.1, and comes from elsewhere
    assert status(own_address(), port, "Host: localhost") == 303


FORWARDED = [
    "X-Forwarded-For: 127.0.0.1",
    "x-forwarded-for: 203.0.113.9, 127.0.0.1",
    "X-Forwarded-For:",
    "Via: 1.1 gate",
]
FORWARDED += ["Forwarded: for=127.0.0.1", "X-Real-IP: 127.0.0.1", "X-Forwarded-Proto: https"]


@pytest.mark.parametrize("line", FORWARDED)
def test_nothing_that_was_forwarded_is_local(port, line):
    for address in ("127.0.0.1", own_address()):
        assert status(address, port, line) == 303


def test_a_proxy_that_says_nothing_and_speaks_an_old_language_is_not_local(port):
    """As nginx does by default: HTTP/1.0, and the upstream's name for a host."""
    assert status("127.0.0.1", port, version="1.0") == 303
