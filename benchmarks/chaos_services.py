"""The service that the chaos benchmark kills.

`installation` starts the servers of a mode and removes them again. `Services` plays the init system of a deployment: it
starts the service's processes, and restarts each one that died. It finds them by a mark in their environment.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from obscura.client import Client
from obscura.client.transport import Transport
from scripts.swift_server import SwiftServer
from scripts.with_services import PostgresServer, RedisServer, free_port
from service.settings import Settings
from workers.supervise.supervisor import runner_environment

Mode = Literal["embedded", "celery", "cluster", "storage"]
MARK = "OBSCURA_CHAOS_RUN"  # in the environment of every process of one run, and of no other
START_SECONDS_MAX = 300.0
LOOK_SECONDS, LOOK_SECONDS_MAX = 0.2, 2.0
STOP_SECONDS_MAX = 90.0
# Short leases, so that a lost attempt is tried again within seconds; many attempts, so that most jobs succeed.
LEASE_SECONDS, HEARTBEAT_SECONDS, ATTEMPTS_MAX = 6, 1.5, 6
_API = ("-m", "obscura.cli", "up")
_WORKER = (
    *("-m", "celery", "--app", "workers.supervise.app", "worker"),
    *("--concurrency", "2", "--loglevel", "info", "--without-gossip", "--without-mingle"),
)


@dataclass(frozen=True)
class Installation:
    """An empty service, not yet started.

    Attributes:
        settings: of its first API process and of all workers.
        apis: how many API processes share its data folder; each has a port of its own.
        workers: how many Celery workers.
        servers: those that are stopped and started while the service runs.
        s3: the one of them that keeps the files, if the processes share no folder.
    """

    settings: Settings
    apis: int = 1
    workers: int = 0
    servers: tuple[PostgresServer | RedisServer | SwiftServer, ...] = ()
    s3: SwiftServer | None = None

    def of(self, name: str) -> Settings:
        """Return the settings of a process such as `worker-2`: with a folder of its own if none is shared."""
        if self.s3 is None or name == "api-1":
            return self.settings
        own = self.settings.data_dir.parent / name
        keys = own / "keys" if name.startswith("worker") else self.settings.keys_dir
        return self.settings.model_copy(update={"data_dir": own, "keys_dir": keys})


@contextmanager
def installation(mode: Mode, folder: Path) -> Iterator[Installation]:
    """Yield an empty service; its servers are gone at the end, its files stay in `folder`."""
    settings = Settings(
        data_dir=folder,
        port=free_port(),
        lease_seconds=LEASE_SECONDS,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        attempts_max=ATTEMPTS_MAX,
        mode="embedded" if mode == "embedded" else "celery",
    )
    with ExitStack() as stack:
        if mode == "embedded":
            yield Installation(settings)
            return
        postgres = PostgresServer(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="obscura-chaos-"))))
        broker = RedisServer(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        for server in (postgres, broker):
            stack.callback(server.stop)
            server.start()
        settings = settings.model_copy(update={"database_url": postgres.url, "redis_url": broker.url})
        if mode == "celery":
            yield Installation(settings, workers=1)
            return
        if mode == "cluster":
            yield Installation(settings, apis=2, workers=2, servers=(postgres, broker))
            return
        from benchmarks.chaos_storage import URL, WORKERS, Courier, own_bucket  # which needs a package of an extra

        s3, keys = stack.enter_context(own_bucket()), folder / "keys"
        settings = settings.model_copy(update={"data_dir": folder / "api-1", "keys_dir": keys, "storage": URL})
        courier = Courier(keys, [folder / f"worker-{number + 1}" / "keys" for number in range(WORKERS)])
        courier.start()
        stack.callback(courier.stop)
        yield Installation(settings, apis=2, workers=WORKERS, servers=(postgres, broker, s3), s3=s3)


@dataclass
class _Part:
    """A process that is kept alive. `client` asks an API whether it serves; other parts have none."""

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
            self._parts[f"api-{number + 1}"] = _Part("api", (sys.executable, *_API), own, client)
            self.urls.append(url)
        for number in range(installed.workers):
            command = (sys.executable, *_WORKER, "--hostname", f"worker-{number + 1}@%h")
            if installed.s3 is not None:  # they share no machine with an API, so here they leave it the processor
                command = ("nice", *command)
            self._parts[f"worker-{number + 1}"] = _Part("worker", command, installed.of(f"worker-{number + 1}"))
        self.starts = dict.fromkeys((part.role for part in self._parts.values()), 0)
        self.start_seconds = 0.0  # from the last start of an API to its first answer

    @property
    def ready(self) -> bool:
        return all(part.ready for part in self._parts.values() if part.client is not None)

    def start(self) -> None:
        """Start the first API, which prepares the database, then the others, and then everything else."""
        for name, part in self._parts.items():
            deadline = time.monotonic() + START_SECONDS_MAX
            self._keep(name, part)
            while part.client is not None and not part.ready:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the service did not start; see {self._logs}")
                time.sleep(LOOK_SECONDS)
                self._keep(name, part)

    def keep(self) -> None:
        """Start every part that does not run, and notice when an API serves again."""
        if self._s3 is not None:
            self._s3.keep()
        for name, part in self._parts.items():
            self._keep(name, part)

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
        """Return the ids of all living processes of this installation."""
        return [pid for pid, _ in self._marked()]

    def stop(self) -> bool:
        """Shut down in order; return whether every process, orphans of kills included, ended by itself."""
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
        """Close the connections; nothing can be started after that."""
        for part in self._parts.values():
            if part.client is not None:
                part.client.close()

    def _keep(self, name: str, part: _Part) -> None:
        now = time.monotonic()
        if part.process is None or part.process.poll() is not None:
            part.process, part.ready, part.spawned_at = self._spawn(name, part), False, now
        elif part.client is not None and not part.ready and now - part.looked_at > LOOK_SECONDS:
            part.ready, part.looked_at = part.client.ready(), time.monotonic()
            if part.ready:
                self.start_seconds = part.looked_at - part.spawned_at

    def _spawn(self, name: str, part: _Part) -> subprocess.Popen[bytes]:
        self.starts[part.role] += 1
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OBSCURA_")}
        environment = runner_environment(part.settings, environment) | {MARK: self._mark}
        environment.setdefault("OMP_NUM_THREADS", "1")
        with (self._logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                part.command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _marked(self) -> Iterator[tuple[int, str]]:
        """Yield id and command line of every living process with our mark."""
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
