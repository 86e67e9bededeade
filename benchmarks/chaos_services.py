"""What the chaos benchmark kills: a service of its own with its databases, kept alive by restarts, and its processes.

`installation` makes databases and folders and removes them again. `Services` plays the init system of a real
deployment: it starts the parts, and starts each again that has died. `/proc` says which processes are theirs.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import redis
from sqlalchemy import create_engine, text

from service.client import Client
from service.client.transport import Transport
from service.settings import Settings
from workers.supervisor import runner_environment

Mode = Literal["embedded", "celery"]
LOCAL_POSTGRES = "postgresql+psycopg://root@127.0.0.1:5432/postgres"
LOCAL_REDIS = "redis://127.0.0.1:6379"
MARK = "OBSCURA_CHAOS_RUN"  # in the environment of every process of one run, and of no other
START_SECONDS_MAX = 300.0
LOOK_SECONDS, LOOK_SECONDS_MAX = 0.2, 2.0
STOP_SECONDS_MAX = 90.0
# Short leases, so that a lost attempt is tried again within seconds; many attempts, so that most jobs succeed.
LEASE_SECONDS, HEARTBEAT_SECONDS, ATTEMPTS_MAX = 6, 1.5, 6
_API = (sys.executable, "-m", "service.cli", "up")
_WORKER = (
    *(sys.executable, "-m", "celery", "--app", "workers.app", "worker"),
    *("--concurrency", "2", "--loglevel", "info", "--without-gossip", "--without-mingle"),
)


@contextmanager
def installation(mode: Mode, folder: Path) -> Iterator[Settings]:
    """Yield the settings of an empty service; its databases are dropped at the end, its files stay in `folder`.

    Raises:
        sqlalchemy.exc.OperationalError: PostgreSQL lets nobody in (mode celery).
        redis.RedisError: Redis does not answer, or has no empty database (mode celery).
    """
    given = {
        "data_dir": folder,
        "port": _free_port(),
        "lease_seconds": LEASE_SECONDS,
        "heartbeat_seconds": HEARTBEAT_SECONDS,
        "attempts_max": ATTEMPTS_MAX,
    }
    if mode == "embedded":
        yield Settings(**given, mode="embedded")  # type: ignore[arg-type]
        return
    with _postgres_database() as database_url, _redis_database() as redis_url:
        yield Settings(**given, mode="celery", database_url=database_url, redis_url=redis_url)  # type: ignore[arg-type]


class Services:
    """The processes of one installation.

    Args:
        settings: of the service.
        logs: folder for what the processes say.
    """

    def __init__(self, settings: Settings, logs: Path) -> None:
        self.url = f"http://{settings.host}:{settings.port}"
        self._settings, self._logs = settings, logs
        self._mark = secrets.token_hex(8)
        self._commands: dict[str, tuple[str, ...]] = {"api": _API}
        if settings.mode == "celery":
            self._commands["worker"] = _WORKER
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._spawned_at, self._looked_at = 0.0, 0.0
        self._client = Client(self.url, None, transport=Transport(self.url, None, timeout_seconds=LOOK_SECONDS_MAX))
        self.starts = dict.fromkeys(self._commands, 0)
        self.ready = False
        self.start_seconds = 0.0  # that the API needed last, from its start to its first answer

    def start(self) -> None:
        """Start the API, and everything else once it serves.

        Raises:
            TimeoutError: it does not serve.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.ready:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the service did not start; see {self._logs}")
            self._keep("api")
            self._look()
            time.sleep(LOOK_SECONDS)
        self.keep()

    def keep(self) -> None:
        """Start every part that does not run, and notice when the API serves again."""
        for name in self._commands:
            self._keep(name)
        if not self.ready and time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._look()

    def victims(self) -> dict[str, list[int]]:
        """Return the process ids that live now, by role.

        `api` (in embedded mode it holds the dispatcher), `worker` (Celery's main process), `dispatcher` (Celery's
        children, which supervise), `runner`.
        """
        roles: dict[str, list[int]] = {}
        for pid, command in self._marked():
            if "workers.runner" in command:
                role = "runner"
            elif any(process.pid == pid for process in self._running.values()):
                role = next(name for name, process in self._running.items() if process.pid == pid)
            elif "celery" in command:
                role = "dispatcher"
            else:
                continue
            roles.setdefault(role, []).append(pid)
        return roles

    def left(self) -> list[int]:
        """Return the ids of all processes of this installation that live."""
        return [pid for pid, _ in self._marked()]

    def stop(self) -> bool:
        """Shut down in order; returns whether everything went by itself, orphans of earlier kills included."""
        for process in self._running.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while self.left() and time.monotonic() < deadline:
            for process in self._running.values():
                process.poll()  # reaps it
            time.sleep(0.2)
        stubborn = self.left()
        for pid in stubborn:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._running.values():
            process.wait()
        self._running.clear()
        self.ready = False
        return not stubborn

    def _keep(self, name: str) -> None:
        process = self._running.get(name)
        if process is None or process.poll() is not None:
            self._running[name] = self._spawn(name)
            if name == "api":
                self.ready, self._spawned_at = False, time.monotonic()

    def _look(self) -> None:
        self.ready = self._client.ready()
        self._looked_at = time.monotonic()
        if self.ready:
            self.start_seconds = self._looked_at - self._spawned_at

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        self.starts[name] += 1
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OBSCURA_")}
        environment = runner_environment(self._settings, environment) | {MARK: self._mark}
        environment.setdefault("OMP_NUM_THREADS", "1")
        with (self._logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                self._commands[name],
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


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
