"""Run a command with PostgreSQL, Redis and an S3 server; exit with its status.

    python scripts/with_services.py COMMAND [ARGUMENT ...]

For each server, the first available option is used: the address in the environment (OBSCURA_TEST_POSTGRES,
OBSCURA_TEST_REDIS, OBSCURA_TEST_S3); a server on the usual local port (not for S3); a private server from the installed
binaries (for S3, OpenStack Swift), which is stopped at the end. If no option is available, the address stays unset, and
tests that need the server are skipped.

Temporary files (TMPDIR) are in memory if there is room, because the tests mostly wait for the disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis

POSTGRESQL_VARIABLE = "OBSCURA_TEST_POSTGRES"
POSTGRESQL_USUAL = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
REDIS_VARIABLE = "OBSCURA_TEST_REDIS"
REDIS_USUAL = "redis://127.0.0.1:6379/9"
S3_VARIABLE = "OBSCURA_TEST_S3"
PATIENCE_SECONDS = 60
MEMORY, MEMORY_BYTES_MIN = Path("/dev/shm"), 4 * 2**30  # the whole suite uses 200 MB


def say(line: str) -> None:
    sys.stdout.write(f"services: {line}\n")
    sys.stdout.flush()


def postgresql_answers(url: str) -> bool:
    try:
        with psycopg.connect(url.replace("postgresql+psycopg:", "postgresql:"), connect_timeout=3) as connection:
            row = connection.execute("SELECT rolcreatedb FROM pg_roles WHERE rolname = current_user").fetchone()
    except psycopg.Error:
        return False
    return bool(row and row[0])


def redis_answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=3, socket_timeout=3) as connection:
            return bool(connection.ping())
    except redis.RedisError:
        return False


def s3_answers(url: str) -> bool:
    try:
        with socket.create_connection((urlsplit(url).hostname or "", urlsplit(url).port or 80), timeout=3):
            return True
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class PostgresServer:
    """A new cluster in a folder, initially stopped. Committed data survives `stop`.

    Raise FileNotFoundError if PostgreSQL's programs are missing, or if the caller is root and `runuser` is missing.
    Raise CalledProcessError if initdb fails.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        debian = sorted(
            Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True
        )
        found = shutil.which("initdb", path=os.pathsep.join([os.environ["PATH"], *map(str, debian)]))
        # PostgreSQL refuses to run as root; Debian's package has a user for it.
        self._as_user = [] if os.geteuid() else ["runuser", "-u", "postgres", "--"]
        if found is None or (self._as_user and shutil.which("runuser") is None):
            raise FileNotFoundError("PostgreSQL's initdb and pg_ctl are not installed")
        if self._as_user:
            shutil.chown(folder, user="postgres")
        self._binaries, self._folder, port = Path(found).resolve().parent, folder, free_port()
        self._options = " ".join((f"-p {port} -k {folder} -c listen_addresses=127.0.0.1", *options))
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        self._run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        patience = ("-w", "-t", str(PATIENCE_SECONDS))
        self._run("pg_ctl", *patience, "-l", f"{self._folder}/log", "-o", self._options, "start")
        wait_for(postgresql_answers, self.url)

    def stop(self, how: str = "immediate") -> None:
        """Stop the server; "immediate" acts like a power failure."""
        self._run("pg_ctl", "-w", "-m", how, "stop", check=False)  # the start may have failed

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        command = [*self._as_user, str(self._binaries / program), "-D", f"{self._folder}/data", *arguments]
        # Log to a file instead of a pipe: the server would inherit the pipe and keep it open.
        with (self._folder / "said").open("ab") as output:
            subprocess.run(command, check=check, stdout=output, stderr=output, cwd="/")


class RedisServer:
    """A Redis server without persistence, initially stopped. `stop` loses every message.

    Raise FileNotFoundError if redis-server is not installed.
    """

    def __init__(self, folder: Path) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise FileNotFoundError("redis-server is not installed")
        port = free_port()
        options = ("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no")
        self._command = (binary, *options, "--dir", str(folder))
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{port}/0"

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdin=quiet, stdout=quiet, stderr=quiet)
        wait_for(redis_answers, self.url)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def wait_for(answers: Callable[[str], bool], url: str) -> None:
    """Wait until a server answers; raise TimeoutError if it does not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not answers(url):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer from {url}")
        time.sleep(0.1)


@contextlib.contextmanager
def private(make: Callable[[Path], Any], start: Callable[[Any], None]) -> Iterator[str | None]:
    """Start a server in a temporary folder; yield its address, or None if it cannot be started."""
    with tempfile.TemporaryDirectory(prefix="obscura-") as folder, contextlib.ExitStack() as stack:
        url: str | None = None
        try:
            server = make(Path(folder))
            stack.callback(server.stop)
            start(server)
            url = server.url
        except FileNotFoundError:
            pass  # not installed
        except (subprocess.CalledProcessError, TimeoutError) as error:
            paths = filter(Path.exists, (Path(folder, "said"), Path(folder, "log")))
            logs = "".join(path.read_text(errors="replace") for path in paths)
            say(f"a server did not start: {error} {logs.strip()[-200:]}")
        yield url


def private_redis() -> contextlib.AbstractContextManager[str | None]:
    return private(RedisServer, RedisServer.start)


def main(command: list[str]) -> int:
    if not command:
        sys.stderr.write(__doc__ or "")
        return 2
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from scripts.swift_server import SwiftServer  # imported here, because it imports this file

    postgresql = partial(private, lambda folder: PostgresServer(folder, "-c fsync=off"), PostgresServer.start)
    s3 = partial(private, SwiftServer, SwiftServer.spawn)  # it accepts requests a few seconds later
    environment = dict(os.environ)
    with contextlib.ExitStack() as stack:
        for name, variable, usual, answers, start in (
            ("PostgreSQL", POSTGRESQL_VARIABLE, POSTGRESQL_USUAL, postgresql_answers, postgresql),
            ("Redis", REDIS_VARIABLE, REDIS_USUAL, redis_answers, private_redis),
            ("S3", S3_VARIABLE, "", s3_answers, s3),
        ):
            given = environment.get(variable)
            where = f"at the address in {variable}" if given else "on its usual port"
            known = given or usual
            if known and answers(known):
                environment[variable] = known
                say(f"{name} answers {where}")
                continue
            if given:
                say(f"{name} does not answer {where}")
                return 1
            url = stack.enter_context(start())
            if url is None:
                say(f"no {name}: tests that need it are skipped")
            else:
                environment[variable] = url
                say(f"{name} started for this run")
        if "TMPDIR" not in environment and MEMORY.is_mount() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="obscura-", dir=MEMORY))
            os.chmod(folder, 0o711)  # PostgreSQL's user must reach its own folder below
            environment["TMPDIR"] = folder
            say("temporary files are kept in memory")
        if shutil.which("chromium") is None and shutil.which("chromium-browser") is None:
            say("no Chromium: tests that need a browser are skipped")
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
