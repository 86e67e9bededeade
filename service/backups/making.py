"""Back up a running service: first journals and receipts, then the database, then the files that the database names.

A charge is committed before its line in a journal, and a capture before its receipt. So if the database is copied after
journals and receipts, it contains everything that they prove. Uploads, releases and samples never change and are
published before their rows. So they are copied after the database, if the database names them. If the database were
copied first, the receipts could be newer, and verification would report lost spending. The manifest is written last, so
a folder with a manifest is a complete backup.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Engine, create_engine, inspect, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from obscura.private_files import make_private_folder, make_tree_private, new_private_file, replace_file
from service import installation
from service.audit.signing import RECEIPTS, trusted_keys
from service.db.session import SessionFactory, transaction
from service.disk import sqlite_file
from service.errors import NotFound, ObscuraError
from service.ledger.chain import utc_text
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import UNFINISHED, Storage, digest_file, open_regular, regular_files

MANIFEST, FILES, KEYS = "manifest.json", "files", "keys"
DATABASES = {"sqlite": "database.sqlite", "postgresql": "database.dump"}

# Tables whose rows have files in the storage: the name of the files, and the condition that they exist.
_WITH_FILES = {
    "datasets": ("coalesce(content_name, id)", "state IN ('ready', 'withdrawing')"),
    "releases": ("id", "1 = 1"),
    "samples": ("id", "sha256 IS NOT NULL AND removed_at IS NULL"),
}


class BackupRefused(ObscuraError):
    """The backup cannot be made or used. Nothing was changed."""


@dataclass(frozen=True)
class Manifest:
    """The contents of a backup."""

    made_at: str  # the time of the database's copy, in UTC
    database: str  # one of DATABASES
    schema: str  # its migration
    installation: str | None
    files: dict[str, str]  # SHA-256 by path below the backup, including the database
    missing: tuple[str, ...]  # releases, samples and datasets that the database names but the storage lacks
    signed_by: tuple[str, ...]  # fingerprints of the trusted public keys
    with_keys: bool
    format: Literal["obscura backup"] = "obscura backup"
    version: Literal[1] = 1


_DOCUMENT = TypeAdapter(Manifest)


def read_manifest(folder: Path) -> Manifest:
    """Read a backup's manifest; raise BackupRefused if a file is missing, unknown or changed."""
    try:
        manifest = _DOCUMENT.validate_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise BackupRefused(
            f"There is no {MANIFEST} in {folder}: this is no backup, or an interrupted one. Use another backup."
        ) from None
    except (OSError, ValidationError) as error:
        raise BackupRefused(
            f"The manifest of the backup in {folder} cannot be read ({type(error).__name__}): it is damaged, or of a "
            "newer version."
        ) from None
    present = {path.relative_to(folder).as_posix() for path in regular_files(folder)} - {MANIFEST}
    if present != set(manifest.files):
        raise BackupRefused(
            f"The backup in {folder} does not contain exactly the files that its manifest names: "
            f"{len(set(manifest.files) - present)} are missing, and {len(present - set(manifest.files))} are unknown."
        )
    changed = [name for name, digest in manifest.files.items() if digest_file(folder / name) != digest]
    if changed:
        raise BackupRefused(
            f"{len(changed)} files of the backup in {folder} were changed later; the first is {changed[0]}. "
            "Use another backup."
        )
    return manifest


@dataclass(frozen=True)
class Backup:
    """A complete backup."""

    manifest: Manifest
    size_bytes: int
    seconds_since: float  # the snapshot of the database; until the next backup ends, later writes can be lost


def back_up(settings: Settings, factory: SessionFactory, out: Path, *, with_keys: bool, now: datetime) -> Backup:
    """Back up database and storage while the service runs. After an error the incomplete backup has no manifest.

    Args:
        out: a missing or empty folder outside the data folder.
        with_keys: also copy the keys of datasets, fingerprints and ledger. Such a backup can open every image, even
            images that are deleted later.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BackupRefused(f"{out} is not empty. Choose an empty or new folder.")
    if out.resolve().is_relative_to(settings.data_dir.resolve()):
        raise BackupRefused("A backup inside the data folder is lost with it. Choose a folder on another disk.")
    storage, database = storage_of(settings), str(factory.kw["bind"].dialect.name)
    with transaction(factory, read_only=True) as session:
        if not installation.belongs(session, settings):
            raise BackupRefused(
                "Database and data folder do not belong to the same installation, so nothing was copied. "
                "`obscura ledger verify` says what is wrong."
            )
        installed = installation.recorded(session)
    make_private_folder(out)
    signed_by = tuple(sorted(trusted_keys(settings.ledger_key_path)))
    files = _copied(out, FILES, _proofs(storage))
    began = time.monotonic()
    schema, named = copy_database(settings.database_url, out / DATABASES[database])
    files[DATABASES[database]] = digest_file(out / DATABASES[database])
    missing: list[str] = []
    for key in (f"{shelf}/{name}" for shelf, names in named.items() for name in names):
        try:
            files |= _copied(out, f"{FILES}/{key}", _inside(storage.open(key)))
        except (NotFound, FileNotFoundError):  # already lost, or deleted meanwhile
            shutil.rmtree(out / FILES / key, ignore_errors=True)
            missing.append(key)
    if with_keys:
        keys = dict(_inside(settings.keys_path)) if settings.keys_path.is_dir() else {}
        keys |= {path.name: path for path in settings.ledger_key_path.parent.glob("*.pem")}
        files |= _copied(out, KEYS, keys.items())
    manifest = Manifest(
        made_at=utc_text(now),
        database=database,
        schema=schema,
        installation=installed,
        files=files,
        missing=tuple(missing),
        signed_by=signed_by,
        with_keys=with_keys,
    )
    make_tree_private(out)
    replace_file(out / MANIFEST, _DOCUMENT.dump_json(manifest, indent=1))
    return Backup(manifest, sum((out / name).stat().st_size for name in files), time.monotonic() - began)


def _proofs(storage: Storage) -> Iterator[tuple[str, Path]]:
    if storage.holds(installation.FILE):
        yield installation.FILE, storage.open("", installation.FILE)
    for shelf in ("journals", RECEIPTS):
        for name in storage.list(shelf):
            if not name.endswith(UNFINISHED):
                yield f"{shelf}/{name}", storage.open(shelf, name)


def _inside(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in regular_files(folder):
        yield path.relative_to(folder).as_posix(), path


def _copied(out: Path, place: str, paths: Iterable[tuple[str, Path]]) -> dict[str, str]:
    return {f"{place}/{name}": copy_file(path, out / place / name) for name, path in paths}


def copy_file(source: Path, target: Path) -> str:
    """Copy a regular file to a new private file; return its SHA-256. Raise NotFound if it is a link."""
    make_private_folder(target.parent)
    with open_regular(source) as read, new_private_file(target) as written:
        shutil.copyfileobj(read, written)
    return digest_file(target)


def copy_database(url: str, target: Path) -> tuple[str, dict[str, list[str]]]:
    """Copy a snapshot of a database into a new file; return its migration, and the names to copy by storage folder."""
    file = sqlite_file(url)
    new_private_file(target).close()
    if file is not None:
        _copy_sqlite(file, target)
        with create_engine(f"sqlite:///{target}", poolclass=NullPool).connect() as connection:
            return _named(connection)
    with _postgresql(url).connect() as connection, connection.begin():
        moment = connection.execute(text("SELECT pg_export_snapshot()")).scalar_one()
        _run("pg_dump", url, "--format=custom", f"--snapshot={moment}", f"--file={target}")
        return _named(connection)


def restore_database(copy: Path, url: str) -> None:
    """Restore a copy into an empty database of the same kind."""
    require_empty(url)
    target = sqlite_file(url)
    if target is not None:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new_private_file(target).close()
        _copy_sqlite(copy, target)
        return
    _run("pg_restore", url, "--single-transaction", "--exit-on-error", str(copy))


def require_empty(url: str) -> None:
    """Raise BackupRefused unless a database is empty or missing."""
    path = sqlite_file(url)
    if path is not None:
        if any(path.with_name(path.name + suffix).exists() for suffix in ("", "-wal", "-shm")):
            raise BackupRefused(
                f"There is a database at {path} already. Move it away with its -wal and -shm files, and keep it: it "
                "may record spending since the backup."
            )
        return
    if inspect(_postgresql(url)).get_table_names():
        raise BackupRefused(
            f"The database {make_url(url).database} already contains tables. Rename it (ALTER DATABASE ... RENAME TO "
            "...), because it may record spending since the backup, and create an empty one."
        )


def _copy_sqlite(database: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file instead of three


def _postgresql(url: str) -> Engine:
    address = make_url(url).set(drivername="postgresql+psycopg")
    return create_engine(address, poolclass=NullPool, hide_parameters=True, isolation_level="REPEATABLE READ")


def _named(connection: Connection) -> tuple[str, dict[str, list[str]]]:
    try:
        schema = str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one())
        named = {
            shelf: list(connection.execute(text(f"SELECT {name} FROM {shelf} WHERE {rule} ORDER BY id")).scalars())
            for shelf, (name, rule) in _WITH_FILES.items()
        }
    except OperationalError as error:
        raise BackupRefused(f"The database does not belong to a service: {type(error.orig).__name__}.") from error
    return schema, named


def _run(program: str, url: str, *arguments: str) -> None:
    """Run a program of PostgreSQL. The password is passed in the environment, which other users cannot read."""
    parsed = make_url(url).set(drivername="postgresql")
    address = parsed._replace(password=None).render_as_string()
    command = [program, "--no-password", "--no-owner", "--no-privileges", f"--dbname={address}", *arguments]
    environment = os.environ | ({"PGPASSWORD": str(parsed.password)} if parsed.password else {})
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BackupRefused(
            f"{program} is not installed on this machine. Install PostgreSQL's client programs, of the server's major "
            "version or a newer one (Debian: apt-get install postgresql-client), and run this command again."
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise BackupRefused(f"{program} ended with exit code {done.returncode}: {reason}")
