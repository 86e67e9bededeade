"""Consistent copies of a database while others write: SQLite's own backup, and pg_dump."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sqlalchemy import Connection, Engine, create_engine, inspect, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import IsolationLevel
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from obscura.private_files import new_private_file
from service.errors import ObscuraError

DATABASES = {"sqlite": "database.sqlite", "postgresql": "database.dump"}

# Tables whose rows have files in the storage: the name of the files, and the condition under which they exist.
_WITH_FILES = {
    "datasets": ("coalesce(content_name, id)", "state IN ('ready', 'withdrawing')"),
    "releases": ("id", "1 = 1"),
    "samples": ("id", "sha256 IS NOT NULL AND removed_at IS NULL"),
}


class BackupRefused(ObscuraError):
    """A backup cannot be made or used like this. Nothing was changed."""

    code: ClassVar[str] = "backup_refused"


class ProgramMissing(ObscuraError):
    """A program of PostgreSQL is not installed on this machine."""

    code: ClassVar[str] = "program_missing"


@dataclass(frozen=True)
class Snapshot:
    """The contents of a copied database.

    Attributes:
        schema: its migration.
        named: the files of datasets, releases and samples that belong to it, by folder of the storage.
    """

    schema: str
    named: dict[str, list[str]]


def copy_database(url: str, target: Path) -> Snapshot:
    """Copy a snapshot of a database into a new file.

    Raises:
        ProgramMissing: pg_dump is not installed.
        BackupRefused: pg_dump fails.
    """
    parsed = make_url(url)
    new_private_file(target).close()
    if parsed.get_backend_name() == "sqlite":
        _copy_sqlite(str(parsed.database), target)
        with create_engine(f"sqlite:///{target}", poolclass=NullPool).connect() as connection:
            return _snapshot(connection)
    with _postgresql(parsed, "REPEATABLE READ").connect() as connection, connection.begin():
        moment = connection.execute(text("SELECT pg_export_snapshot()")).scalar_one()
        _run("pg_dump", parsed, "--format=custom", f"--snapshot={moment}", f"--file={target}")
        return _snapshot(connection)


def put_back(copy: Path, url: str) -> None:
    """Restore a copy into an empty database of the same kind.

    Raises:
        ProgramMissing: pg_restore is not installed.
        BackupRefused: the database is not empty, or pg_restore fails.
    """
    require_empty(url)
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        target = Path(str(parsed.database))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new_private_file(target).close()
        _copy_sqlite(str(copy), target)
        return
    _run("pg_restore", parsed, "--single-transaction", "--exit-on-error", "--dbname", str(parsed.database), str(copy))


def require_empty(url: str) -> None:
    """Raise BackupRefused unless a database is empty or missing."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        path = Path(str(parsed.database))
        if any(path.with_name(path.name + suffix).exists() for suffix in ("", "-wal", "-shm")):
            raise BackupRefused(
                f"There is a database at {path} already. Move it away as it is, with its -wal and -shm: it may know "
                "what was spent since the backup."
            )
        return
    if inspect(_postgresql(parsed, "READ COMMITTED")).get_table_names():
        raise BackupRefused(
            f"The database {parsed.database} holds tables already. Rename it (ALTER DATABASE ... RENAME TO ...), for "
            "it may know what was spent since the backup, and make an empty one."
        )


def _copy_sqlite(database: str, target: Path) -> None:
    with (
        closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, not three


def _postgresql(url: URL, isolation_level: IsolationLevel) -> Engine:
    address = url.set(drivername="postgresql+psycopg")
    return create_engine(address, poolclass=NullPool, hide_parameters=True, isolation_level=isolation_level)


def _snapshot(connection: Connection) -> Snapshot:
    try:
        schema = str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one())
        named = {
            shelf: list(connection.execute(text(f"SELECT {name} FROM {shelf} WHERE {rule} ORDER BY id")).scalars())
            for shelf, (name, rule) in _WITH_FILES.items()
        }
    except OperationalError as error:
        raise BackupRefused(f"The database is not that of a service: {type(error.orig).__name__}.") from error
    return Snapshot(schema, named)


def _run(program: str, url: URL, *arguments: str) -> None:
    """Run a program of PostgreSQL. The password is passed in the environment, which other users cannot read."""
    address = {"PGHOST": url.host, "PGPORT": url.port, "PGUSER": url.username, "PGPASSWORD": url.password}
    query = {f"PG{name.upper()}": value for name, value in url.query.items() if name.startswith("ssl")}
    variables = {name: str(value) for name, value in (address | query | {"PGDATABASE": url.database}).items() if value}
    command = [program, "--no-password", "--no-owner", "--no-privileges", *arguments]
    try:
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ProgramMissing(
            f"{program} is not installed on this machine. Install PostgreSQL's client programs, of the server's major "
            "version or a newer one (Debian: apt-get install postgresql-client), and do this again."
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["nothing"])[0]
        raise BackupRefused(f"{program} ended with exit code {done.returncode} and says: {reason}")
