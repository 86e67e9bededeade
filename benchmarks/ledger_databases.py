"""Empty databases for benchmarks, and the durability of their commits."""

from __future__ import annotations

import os
import secrets
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from service.db.schema import upgrade_schema
from service.db.session import make_engine, make_session_factory, transaction

LOCAL_POSTGRES = "postgresql+psycopg://root@127.0.0.1:5432/postgres"
_SQLITE = ("journal_mode", "synchronous")
_POSTGRES = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method")
_SQLITE_SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}
_WRITES, _PAGE_BYTES = 200, 8192


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """Create and migrate an empty database, and drop it at the end."""
    if kind == "sqlite":
        path = folder / secrets.token_hex(4)
        path.mkdir()
        url = f"sqlite:///{path}/obscura.db"
        upgrade_schema(url)
        yield url
        shutil.rmtree(path)
        return
    server = create_engine(os.environ.get("OBSCURA_TEST_POSTGRES", LOCAL_POSTGRES), isolation_level="AUTOCOMMIT")
    name = f"obscura_benchmark_{secrets.token_hex(6)}"
    with server.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    try:
        url = server.url.set(database=name).render_as_string(hide_password=False)
        upgrade_schema(url)
        yield url
    finally:
        with server.connect() as connection:
            connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))
        server.dispose()


def durability(url: str) -> dict[str, Any]:
    """Return the settings that decide whether a commit survives a power cut, as the service's own engine has them."""
    engine = make_engine(url)
    with transaction(make_session_factory(engine), read_only=True) as session:
        if engine.dialect.name == "sqlite":
            settings = {name: session.execute(text(f"PRAGMA {name}")).scalar_one() for name in _SQLITE}
            settings["synchronous"] = _SQLITE_SYNCHRONOUS[settings["synchronous"]]
            durable = settings["synchronous"] in ("full", "extra")
        else:
            settings = {name: session.execute(text(f"SHOW {name}")).scalar_one() for name in _POSTGRES}
            durable = settings["fsync"] == "on" and settings["synchronous_commit"] != "off"
    engine.dispose()
    if not durable:
        raise RuntimeError(f"commits are not durable here: {settings}")
    return settings


def fdatasync_ms(folder: Path) -> float:
    """Return the median milliseconds that the disk needs to make one appended page durable, as for a commit."""
    spent = []
    with (folder / "fdatasync").open("wb", buffering=0) as file:
        for _ in range(_WRITES):
            file.write(bytes(_PAGE_BYTES))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            spent.append(time.perf_counter() - started)
    return 1e3 * statistics.median(spent)
