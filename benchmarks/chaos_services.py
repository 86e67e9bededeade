"""What the chaos benchmark kills: a service of its own with its databases, kept alive by restarts, and its processes.

`installation` makes databases and folders and removes them again. `Services` plays the init system of a real
deployment: it starts the parts, and starts each again that has died. `/proc` says which processes are theirs.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import redis
from sqlalchemy import create_engine, text

from obscura.client import Client
from obscura.client.transport import Transport
from scripts.swift_server import SwiftServer
from scripts.with_services import PostgresServer, RedisServer, free_port
from service.settings import Settings
from workers.supervise.supervisor import runner_environment

Mode = Literal["embedded", "celery", "cluster", "storage"]
LOCAL_POSTGRES = "postgresql+psycopg://root@127.0.0.1:5432/postgres"
LOCAL_REDIS = "redis://127.0.0.1:6379"
MARK = "OBSCURA_CHAOS_RUN"  # in the environment of every process of one run, and of no other
START_SECONDS_MAX = 300.0
LOOK_SECONDS, LOOK_SECONDS_MAX = 0.2, 2.0
STOP_SECONDS_MAX = 90.0
# Short leases, so that a lost attempt is tried again within seconds; many attempts, so that most jobs succeed.
LEASE_SECONDS, HEARTBEAT_SECONDS, ATTEMPTS_MAX = 6, 1.5, 6
_API = (sys.executable, "-m", "obscura.cli", "up")
_WORKER = (
    *(sys.executable, "-m", "celery", "--app", "workers.supervise.app", "worker"),
    *("--concurrency", "2", "--loglevel", "info", "--without-gossip", "--without-mingle"),
)


@dataclass(frozen=True)
class Installation:
    """An empty service, not yet started.

    Attributes:
        settings: of its first API process and of all workers.
        apis: how many API processes share its data folder; each has a port of its own.
        workers: how many Celery workers.
        servers: PostgreSQL, Redis and S3 where they are its own, to be stopped and started; else empty.
        s3: of the servers, the one that keeps the files where the processes share no folder.
    """

    settings: Settings
    apis: int = 1
    workers: int = 0
    servers: tuple[PostgresServer | RedisServer | SwiftServer, ...] = ()
    s3: SwiftServer | None = None

    def of(self, name: str) -> Settings:
        """Return the settings of one process, `api-1` or `worker-2`: with a folder of its own where none is shared."""
        if self.s3 is None or name == "api-1":
            return self.settings
        own = self.settings.data_dir.parent / name
        keys = own / "keys" if name.startswith("worker") else self.settings.keys_dir
        return self.settings.model_copy(update={"data_dir": own, "keys_dir": keys})


@contextmanager
def installation(mode: Mode, folder: Path) -> Iterator[Installation]:
    """Yield an empty service; its databases are dropped at the end, its files stay in `folder`."""
    given = {
        "data_dir": folder,
        "port": free_port(),
        "lease_seconds": LEASE_SECONDS,
        "heartbeat_seconds": HEARTBEAT_SECONDS,
        "attempts_max": ATTEMPTS_MAX,
    }
    if mode == "embedded":
        yield Installation(Settings(**given, mode="embedded"))  # type: ignore[arg-type]
        return
    if mode == "storage":
        from benchmarks.chaos_storage import URL, WORKERS, Courier, own_bucket  # which needs a package of an extra

        with _own_servers() as servers, own_bucket() as s3:
            given |= {"database_url": servers[0].url, "redis_url": servers[1].url, "mode": "celery"}
            given |= {"data_dir": folder / "api-1", "keys_dir": folder / "keys", "storage": URL}
            installed = Installation(Settings(**given), apis=2, workers=WORKERS, servers=(*servers, s3), s3=s3)  # type: ignore[arg-type]
            courier = Courier(folder / "keys", [folder / f"worker-{n + 1}" / "keys" for n in range(WORKERS)])
            courier.start()
            try:
                yield installed
            finally:
                courier.stop()
        return
    if mode == "cluster":
        with _own_servers() as servers:
            urls = {"database_url": servers[0].url, "redis_url": servers[1].url}
            yield Installation(Settings(**given, **urls, mode="celery"), apis=2, workers=2, servers=servers)  # type: ignore[arg-type]
        return
    with _postgres_database() as database_url, _redis_database() as redis_url:
        urls = {"database_url": database_url, "redis_url": redis_url}
        yield Installation(Settings(**given, **urls, mode="celery"), workers=1)  # type: ignore[arg-type]


@dataclass
class _Part:
    """One process that is kept alive. `client` asks an API whether it serves; other parts have none."""

    role: str
    command: tuple[str, ...]
    settings: Settings
    client: Client | None = None
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    spawned_at: float = 0.0
    looked_at: float = 0.0


class Services:
    """The processes of one installation."""

    def __init__(self, installed: Installation, logs: Path) -> None:
        settings, self._logs, self._s3 = installed.settings, logs, installed.s3
        self._mark = secrets.token_hex(8)
        self._parts: dict[str, _Part] = {}
        self.urls: list[str] = []
        for number in range(installed.apis):
            own = settings
            if number:
                own = installed.of(f"api-{number + 1}").model_copy(update={"port": free_port()})
            url = f"http://{own.host}:{own.port}"
            client = Client(url, None, transport=Transport(url, None, timeout_seconds=LOOK_SECONDS_MAX))
            self._parts[f"api-{number + 1}"] = _Part("api", _API, own, client)
            self.urls.append(url)
        for number in range(installed.workers):
            command = (*_WORKER, "--hostname", f"worker-{number + 1}@%h")
            if installed.s3 is not None:  # they share no machine with an API, so here they leave it the processor
                command = ("nice", *command)
            self._parts[f"worker-{number + 1}"] = _Part("worker", command, installed.of(f"worker-{number + 1}"))
        self.starts = dict.fromkeys((part.role for part in self._parts.values()), 0)
        self.start_seconds = 0.0  # that an API needed last, from its start to its first answer

    @property
    def ready(self) -> bool:
        """Whether every API serves, as far as was seen."""
        return all(part.ready for part in self._parts.values() if part.client is not None)

    def start(self) -> None:
        """Start the first API, which prepares the database, then the others, and then everything else."""
        for name, part in self._parts.items():
            deadline = time.monotonic() + START_SECONDS_MAX
            self._keep(name)
            while part.client is not None and not part.ready:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the service did not start; see {self._logs}")
                self._keep(name)
                self._look(part)
                time.sleep(LOOK_SECONDS)

    def keep(self) -> None:
        """Start every part that does not run, and notice when an API serves again."""
        if self._s3 is not None:
            self._s3.keep()
        for name, part in self._parts.items():
            self._keep(name)
            if part.client is not None and not part.ready and time.monotonic() - part.looked_at > LOOK_SECONDS:
                self._look(part)

    def victims(self) -> dict[str, list[int]]:
        """Return the process ids that live now, by role.

        `api` (in embedded mode it holds the dispatcher), `worker` (Celery's main process), `dispatcher` (Celery's
        children, which supervise), `runner`, `s3` (one of the server's).
        """
        roles: dict[str, list[int]] = {}
        own = {part.process.pid: part.role for part in self._parts.values() if part.process is not None}
        for pid, command in self._marked():
            if "workers.train.runner" in command:
                role = "runner"
            elif pid in own:
                role = own[pid]
            elif "celery" in command:
                role = "dispatcher"
            else:
                continue
            roles.setdefault(role, []).append(pid)
        if self._s3 is not None and self._s3.pids:
            roles["s3"] = self._s3.pids
        return roles

    def left(self) -> list[int]:
        """Return the ids of all processes of this installation that live."""
        return [pid for pid, _ in self._marked()]

    def stop(self) -> bool:
        """Shut down in order; returns whether everything went by itself, orphans of earlier kills included."""
        running = [part.process for part in self._parts.values() if part.process is not None]
        for process in running:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while self.left() and time.monotonic() < deadline:
            for process in running:
                process.poll()  # reaps it
            time.sleep(0.2)
        stubborn = self.left()
        for pid in stubborn:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in running:
            process.wait()
        for part in self._parts.values():
            part.process, part.ready = None, False
        return not stubborn

    def close(self) -> None:
        """Close the connections by which was looked whether it serves; nothing can be started after that."""
        for part in self._parts.values():
            if part.client is not None:
                part.client.close()

    def _keep(self, name: str) -> None:
        part = self._parts[name]
        if part.process is None or part.process.poll() is not None:
            part.process, part.ready, part.spawned_at = self._spawn(name), False, time.monotonic()

    def _look(self, part: _Part) -> None:
        assert part.client is not None
        part.ready = part.client.ready()
        part.looked_at = time.monotonic()
        if part.ready:
            self.start_seconds = part.looked_at - part.spawned_at

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        part = self._parts[name]
        self.starts[part.role] += 1
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OBSCURA_")}
        environment = runner_environment(part.settings, environment) | {MARK: self._mark}
        environment.setdefault("OMP_NUM_THREADS", "1")
        with (self._logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                part.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _marked(self) -> Iterator[tuple[int, str]]:
        """Yield process id and command line of every living process with our mark."""
        wanted = f"{MARK}={self._mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if wanted not in (folder / "environ").read_bytes().split(b"\0"):
                    continue
                if (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] == "Z":
                    continue
                yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (OSError, IndexError):  # another user's, or it has just ended
                continue


@contextmanager
def _own_servers() -> Iterator[tuple[PostgresServer, RedisServer]]:
    """Yield servers of this benchmark's own, running; they and what they stored are gone at the end."""
    with tempfile.TemporaryDirectory(prefix="obscura-chaos-postgresql-") as data, tempfile.TemporaryDirectory() as rest:
        postgres, broker = PostgresServer(Path(data)), RedisServer(Path(rest))
        try:
            postgres.start()
            broker.start()
            yield postgres, broker
        finally:
            broker.stop()
            postgres.stop()


@contextmanager
def _postgres_database() -> Iterator[str]:
    server = create_engine(
        os.environ.get("OBSCURA_TEST_POSTGRES", LOCAL_POSTGRES),
        isolation_level="AUTOCOMMIT",
        connect_args={"connect_timeout": 5},
    )
    name = f"obscura_chaos_{secrets.token_hex(6)}"
    try:
        with server.connect() as connection:
            connection.execute(text(f'CREATE DATABASE "{name}"'))
        try:
            yield server.url.set(database=name).render_as_string(hide_password=False)
        finally:
            with server.connect() as connection:
                connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))
    finally:
        server.dispose()


@contextmanager
def _redis_database() -> Iterator[str]:
    """Take the highest of the server's numbered databases that is empty, and leave it empty."""
    server = os.environ.get("OBSCURA_TEST_REDIS", LOCAL_REDIS)
    base = server.rsplit("/", 1)[0] if server.count("/") > 2 else server
    for number in range(15, 0, -1):
        url = f"{base}/{number}"
        with redis.Redis.from_url(url, socket_connect_timeout=5) as connection:
            if connection.dbsize() == 0:
                try:
                    yield url
                finally:
                    connection.flushdb()
                return
    raise redis.RedisError("none of the databases 1 to 15 is empty")
