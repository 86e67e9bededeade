"""A PostgreSQL cluster and a Redis server of the chaos benchmark's own, which it may stop and start again."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scripts.with_services import (
    as_postgres_user,
    free_port,
    postgresql_answers,
    postgresql_binaries,
    redis_answers,
)

ANSWER_SECONDS_MAX = 60.0


class Server(Protocol):
    """A server that can go away and come back with an address that stays the same."""

    url: str

    def start(self) -> None:
        """Start it and wait for its answer.

        Raises:
            TimeoutError: it does not answer.
        """

    def stop(self) -> None:
        """End it as a power cut would: nobody is told, nothing is finished."""


@dataclass
class PostgresServer:
    """A new cluster in a folder; what was committed survives `stop`."""

    folder: Path
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        found = postgresql_binaries()
        if found is None:
            raise FileNotFoundError("PostgreSQL's initdb and pg_ctl are not installed")
        self._binaries, self._as_user = found, as_postgres_user()
        if self._as_user:
            shutil.chown(self.folder, user="postgres")
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"
        self._run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        """See `Server`."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"
        self._run(
            "pg_ctl", "-w", "-t", str(int(ANSWER_SECONDS_MAX)), "-l", f"{self.folder}/log", "-o", options, "start"
        )
        _wait(postgresql_answers, self.url)

    def stop(self) -> None:
        """See `Server`."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, str(self._binaries / program), "-D", f"{self.folder}/data", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")


@dataclass
class RedisServer:
    """A Redis server that keeps nothing on disk: `stop` loses every message."""

    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        found = shutil.which("redis-server")
        if found is None:
            raise FileNotFoundError("redis-server is not installed")
        self._binary, self.url = found, f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """See `Server`."""
        options = ("--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no")
        self._process = subprocess.Popen(
            [self._binary, *options, "--dir", str(self.folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _wait(redis_answers, self.url)

    def stop(self) -> None:
        """See `Server`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def own_servers() -> Iterator[tuple[PostgresServer, RedisServer]]:
    """Yield both, running; they and what they stored are gone at the end.

    Raises:
        FileNotFoundError: one of them is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="obscura-chaos-postgresql-") as data, tempfile.TemporaryDirectory() as rest:
        postgres, broker = PostgresServer(Path(data)), RedisServer(Path(rest))
        try:
            postgres.start()
            broker.start()
            yield postgres, broker
        finally:
            broker.stop()
            postgres.stop()


def _wait(answers: Callable[[str], bool], url: str) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while not answers(url):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer from {url}")
        time.sleep(0.1)
