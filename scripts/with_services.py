"""Run a command with a PostgreSQL and a Redis server at hand.

    python scripts/with_services.py COMMAND [ARGUMENT ...]

For each of the two, in this order: the address in the environment (OBSCURA_TEST_POSTGRES,
OBSCURA_TEST_REDIS), a server that answers on this machine's usual port, a private throw-away server started from
the installed binaries and stopped when the command ends. Where none can be had, the address stays unset and the tests
that need it are left out, which is said here and in pytest's summary. The command's exit status is passed on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import redis

POSTGRESQL_VARIABLE = "OBSCURA_TEST_POSTGRES"
POSTGRESQL_USUAL = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
REDIS_VARIABLE = "OBSCURA_TEST_REDIS"
REDIS_USUAL = "redis://127.0.0.1:6379/9"
PATIENCE_SECONDS = 30


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


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def postgresql_binaries() -> Path | None:
    """The newest folder that holds initdb and pg_ctl, on the path or where Debian puts them."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    found = shutil.which("initdb")
    for folder in [*([Path(found).resolve().parent] if found else []), *debian]:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    return None


def as_postgres_user() -> list[str]:
    """The start of a command line that must not run as root: PostgreSQL refuses to, Debian's package has a user."""
    return [] if os.geteuid() else ["runuser", "-u", "postgres", "--"]


@contextlib.contextmanager
def private_postgresql() -> Iterator[str | None]:
    """Start a PostgreSQL cluster in a temporary folder; yield its address, or None when that is not possible."""
    binaries = postgresql_binaries()
    as_user = as_postgres_user()
    if binaries is None or (as_user and shutil.which("runuser") is None):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="obscura-postgresql-") as folder:
        if as_user:
            shutil.chown(folder, user="postgres")
        cluster = str(Path(folder) / "data")
        port = free_port()
        initialise = [*as_user, str(binaries / "initdb"), "-D", cluster, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        control = [*as_user, str(binaries / "pg_ctl"), "-D", cluster, "-w", "-t", str(PATIENCE_SECONDS)]
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        try:
            subprocess.run([*initialise, "--no-sync"], check=True, capture_output=True, cwd="/")
            subprocess.run(
                [*control, "-l", f"{folder}/log", "-o", options, "start"], check=True, capture_output=True, cwd="/"
            )
        except subprocess.CalledProcessError as error:
            say(f"PostgreSQL did not start: {(error.stderr or b'').decode(errors='replace').strip()[-200:]}")
            yield None
            return
        try:
            yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "-m", "fast", "stop"], check=False, capture_output=True, cwd="/")


@contextlib.contextmanager
def private_redis() -> Iterator[str | None]:
    """Start a Redis server that keeps nothing on disk; yield its address, or None when that is not possible."""
    binary = shutil.which("redis-server")
    if binary is None:
        yield None
        return
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="obscura-redis-") as folder:
        server = subprocess.Popen(
            [binary, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            url = f"redis://127.0.0.1:{port}/0"
            with contextlib.suppress(subprocess.TimeoutExpired):
                for _ in range(PATIENCE_SECONDS * 10):
                    if redis_answers(url):
                        break
                    server.wait(timeout=0.1)
            yield url if redis_answers(url) else None
        finally:
            server.terminate()
            server.wait()


def main(command: list[str]) -> int:
    if not command:
        sys.stderr.write(__doc__ or "")
        return 2
    environment = dict(os.environ)
    with contextlib.ExitStack() as stack:
        for name, variable, usual, answers, private in (
            ("PostgreSQL", POSTGRESQL_VARIABLE, POSTGRESQL_USUAL, postgresql_answers, private_postgresql),
            ("Redis", REDIS_VARIABLE, REDIS_USUAL, redis_answers, private_redis),
        ):
            given = environment.get(variable)
            if given and answers(given):
                say(f"{name} answers at the address in {variable}")
                continue
            if given:
                say(f"{name} does not answer at the address in {variable}")
                return 1
            if answers(usual):
                environment[variable] = usual
                say(f"{name} answers on its usual port")
                continue
            url = stack.enter_context(private())
            if url is None:
                say(f"no {name}: the tests that need it are left out")
            else:
                environment[variable] = url
                say(f"{name} started for this run")
        if shutil.which("chromium") is None and shutil.which("chromium-browser") is None:
            say("no Chromium: the tests that look at pages in a browser are left out")
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
