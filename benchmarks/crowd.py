"""Measure how long other callers wait while attackers crowd one door of the service.

Run `python -m benchmarks.crowd --json FILE`. Each door gets a service process of its own (`obscura up`, as in
production, with SQLite). Attackers hold the door for `--seconds` while another caller keeps reading; `worst_seconds` is
the slowest of these reads. All traffic stays on the loopback interface, and every request has a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.api import Service, service
from benchmarks.api_stock import Stock, lay_in
from benchmarks.ledger_databases import database
from benchmarks.results import machine, parser_of, write_json
from scripts.swift_server import BUCKET, SwiftServer, environment_of
from scripts.with_services import free_port
from service.db.session import make_engine, make_session_factory

WORST_SECONDS_MAX = 1.0
TIMEOUT_SECONDS = 60.0  # of one request; a slower one counts as this
ATTACKERS = 45  # more than the server has threads
STOCK = {"accounts": 2, "jobs": 100, "entries": 400}


class Silent(threading.Thread):
    """A server that accepts every connection and never answers; while `upstream` is set, it relays there instead."""

    def __init__(self) -> None:
        super().__init__(name="silent", daemon=True)
        self.upstream: tuple[str, int] | None = None
        self.port = free_port()
        self._listens = threading.Event()
        self.start()
        self._listens.wait(TIMEOUT_SECONDS)

    def run(self) -> None:
        """Serve until the process ends."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._accept, "127.0.0.1", self.port, backlog=1000):
            self._listens.set()
            await asyncio.Event().wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self.upstream is None:
                while await reader.read(2**16):
                    pass
                writer.close()
                return
            other_reader, other_writer = await asyncio.open_connection(*self.upstream)
            await asyncio.gather(self._relay(reader, other_writer), self._relay(other_reader, writer))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(2**16):
            if self.upstream is not None:
                writer.write(block)
                await writer.drain()
        writer.close()


@dataclass
class Site:
    """A running service, the ids of its rows, and the silent server that some of its settings name."""

    running: Service
    stock: Stock
    silent: Silent
    over: threading.Event = field(default_factory=threading.Event)
    statuses: set[int] = field(default_factory=set)
    _threads: list[threading.Thread] = field(default_factory=list)
    _sockets: list[socket.socket] = field(default_factory=list)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send one request on a new connection; return the status, 0 if no answer came in time, and the body."""
        with contextlib.closing(self.running.connect(TIMEOUT_SECONDS)) as opened:
            try:
                opened.request(method, path, body, self.running.headers if headers is None else headers)
                answer = opened.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                return 0, b""

    @property
    def port(self) -> int:
        """Return the service's port."""
        return self.running.address.port or 0

    def repeat(self, attackers: int, act: Callable[[], tuple[int, bytes]], pause_seconds: float = 1.0) -> None:
        """Have attackers repeat a request, each in a thread, until the measurement is over."""

        def attack() -> None:
            while not self.over.is_set():
                self.statuses.add(act()[0])
                self.over.wait(pause_seconds)

        for _ in range(attackers):
            self._threads.append(threading.Thread(target=attack, daemon=True))
            self._threads[-1].start()

    def hold(self, attackers: int, content: bytes) -> None:
        """Open connections, send the same bytes on each, and keep them open until the measurement is over."""
        for _ in range(attackers):
            opened = socket.create_connection(("127.0.0.1", self.port), TIMEOUT_SECONDS)
            opened.sendall(content)
            self._sockets.append(opened)

    def worst(self, seconds: float) -> tuple[int, float]:
        """Keep reading /v1/jobs; return how often, and the seconds of the slowest read."""
        slowest, count, until = 0.0, 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            started = time.perf_counter()
            status, _ = self.ask("GET", "/v1/jobs")
            if status not in (0, 200):
                raise RuntimeError(f"GET /v1/jobs gave {status}")
            slowest, count = max(slowest, time.perf_counter() - started), count + 1
            time.sleep(0.05)
        return count, slowest

    def end(self) -> None:
        """Let the attackers go."""
        self.over.set()
        for opened in self._sockets:
            opened.close()


@dataclass(frozen=True)
class Door:
    """A way to crowd the service.

    Attributes:
        attack: starts the attackers and returns how many there are.
        environment: of the service; {silent} stands for a port, {storage} for a bucket behind {silent}.
    """

    attack: Callable[[Site], int]
    environment: dict[str, str] = field(default_factory=dict)


def storage_hangs(site: Site) -> int:
    """Read reports while the storage does not answer."""
    site.silent.upstream = None
    site.repeat(ATTACKERS, lambda: site.ask("GET", f"/v1/releases/{site.stock.release_id}/report.html"))
    return ATTACKERS


def webhook_tests(site: Site) -> int:
    """Test a webhook whose host does not answer."""
    webhook_id = site.running.create("/v1/webhooks", {"url": f"http://127.0.0.1:{site.silent.port}/"})
    site.repeat(ATTACKERS, lambda: site.ask("POST", f"/v1/webhooks/{webhook_id}/test", b""))
    return ATTACKERS


def provider_hangs(site: Site) -> int:
    """Begin to sign in, without a key, while the provider does not answer."""
    site.repeat(ATTACKERS, lambda: site.ask("GET", "/login/provider", headers={}))
    return ATTACKERS


HALF_A_FORM = (
    b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 1000\r\n\r\nk"
)


def incomplete_bodies(site: Site) -> int:
    """Send one byte of a form on each of many connections, without a key, and begin again when they are closed."""

    def attack() -> tuple[int, bytes]:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", site.port), TIMEOUT_SECONDS) as opened,
        ):
            opened.sendall(HALF_A_FORM)
            opened.settimeout(1.0)
            opened.recv(1)
        return 0, b""

    site.hold(500, HALF_A_FORM)
    site.repeat(ATTACKERS, attack, pause_seconds=0.0)
    return 500 + ATTACKERS


def incomplete_heads(site: Site) -> int:
    """Send half a head on each of more connections than the service keeps."""
    site.hold(1100, b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n")
    return 1100


def unread_answers(site: Site) -> int:
    """Ask for the largest static file on each of many connections, and read nothing."""
    site.hold(500, b"GET /static/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n")
    return 500


def wide_json(site: Site) -> int:
    """Plan with 0.9 MB of unknown fields, of options, and of nested lists."""
    start = '{"dataset_id": "ds_x", "recipe": "datalens", "epsilon": 1, '
    fields = ", ".join(f'"x{number}": 1' for number in range(70_000))
    few = ", ".join(f'"x{number}": 1' for number in range(11_000))
    bodies = [f"{start}{fields}}}", f'{start}"options": {{{fields}}}}}', f"{start}{few}}}"]
    bodies += [f'{start}"options": {{{few}}}}}', f'{start}"options": {{"a": {"[" * 400_000}{"]" * 400_000}}}}}']
    bodies += [f'{start}"options": {{"a": [{", ".join(["9" * 4000] * 200)}]}}}}']
    headers = site.running.headers | {"Content-Type": "application/json"}
    for body in bodies:
        site.repeat(1, lambda body=body: site.ask("POST", "/v1/plans", body.encode(), headers), 0.2)  # type: ignore[misc]
    return len(bodies)


def slow_uploads(site: Site) -> int:
    """Begin more uploads than the server has threads, and send one byte of each."""
    facts = {"name": "d", "visibility": "public", "classes": ["a"], "height": 4, "width": 4, "channels": 1}
    own = "".join(f"{name}: {value}\r\n" for name, value in site.running.headers.items())
    for _ in range(ATTACKERS):
        dataset_id = site.running.create("/v1/datasets", facts | {"records_declared": 9})
        head = f"PUT /v1/datasets/{dataset_id}/content?format=npz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n"
        site.hold(1, f"{head}{own}\r\nx".encode())
    return ATTACKERS


def refused_requests(site: Site) -> int:
    """Send requests beyond the limit, from elsewhere, while the audit log must have an event of each."""
    headers = {"X-Forwarded-For": "203.0.113.1"}
    site.repeat(ATTACKERS, lambda: site.ask("GET", "/v1/jobs", headers=headers), pause_seconds=0.0)
    return ATTACKERS


_PROVIDER = {
    "OBSCURA_OIDC_ISSUER": "http://127.0.0.1:{silent}",
    "OBSCURA_OIDC_CLIENT_ID": "crowd",
    "OBSCURA_OIDC_CLIENT_SECRET": "the benchmark's",
    "OBSCURA_OIDC_ADMIN_GROUP": "admins",
    "OBSCURA_PUBLIC_URL": "http://127.0.0.1:8420",
}
DOORS = {
    "reports, storage hangs": Door(storage_hangs, {"OBSCURA_STORAGE": "{storage}"}),
    "webhook tests, silent host": Door(webhook_tests, {"OBSCURA_WEBHOOKS_PRIVATE": "true"}),
    "sign-ins, provider hangs": Door(provider_hangs, _PROVIDER),
    "bodies of one byte": Door(incomplete_bodies),
    "half a head": Door(incomplete_heads),
    "answers nobody reads": Door(unread_answers),
    "wide and deep JSON": Door(wide_json),
    "slow uploads": Door(slow_uploads),
    "requests beyond a limit": Door(
        refused_requests, {"OBSCURA_AUDIT_LOG": "required", "OBSCURA_REQUESTS_PER_MINUTE": "60"}
    ),
}


@contextlib.contextmanager
def opened(door: Door, folder: Path) -> Iterator[Site]:
    """Run a service with a small stock for one door."""
    silent = Silent()
    with database("sqlite", folder) as url, contextlib.ExitStack() as stack:
        engine = make_engine(url)
        stock = lay_in(make_session_factory(engine), folder, **STOCK)
        engine.dispose()
        facts = {"silent": silent.port, "storage": f"s3://{BUCKET}/crowd"}
        environment = {name: value.format(**facts) for name, value in door.environment.items()}
        if "{storage}" in door.environment.values():
            server = SwiftServer(folder / "swift")
            stack.callback(server.stop)
            server.start()
            at = urlsplit(server.url)
            silent.upstream = str(at.hostname), at.port or 0
            environment |= environment_of(f"http://127.0.0.1:{silent.port}")
        site = Site(stack.enter_context(service(url, folder, stock.token, environment)), stock, silent)
        stack.callback(site.running.process.kill)  # an orderly end would wait for the requests that hang
        stack.callback(site.end)
        yield site


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Crowd one door and return its row."""
    door = DOORS[name]
    with tempfile.TemporaryDirectory(prefix="obscura-crowd-") as folder, opened(door, Path(folder)) as site:
        site.worst(1.0)  # nothing is measured before the service is warm
        attackers = door.attack(site)
        time.sleep(0.5)
        reads, slowest = site.worst(seconds)
        site.end()
        figures = {"reads": reads, "worst_seconds": round(slowest, 3)}
        return {"door": name, "attackers": attackers, **figures, "statuses": sorted(site.statuses)}


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--doors", nargs="+", default=list(DOORS), choices=list(DOORS))
    parser.add_argument("--seconds", type=float, default=12.0, help="for which each door is crowded")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.doors:
        rows.append(measure(name, options.seconds))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    missed = [row["door"] for row in rows if row["worst_seconds"] >= WORST_SECONDS_MAX]
    write_json(options.json, machine() | {"rows": rows, "missed": missed})
    for door in missed:
        print(f"missed: {door}: another caller waited for {WORST_SECONDS_MAX:g} s or longer")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
