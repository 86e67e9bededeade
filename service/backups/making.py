"""A backup of a running service: what witnesses spending first, then the database, then what the database names.

Charges are committed before their line in a journal, captures before their receipt. So a database that is copied after
journals and receipts knows all that they show, and a restored backup never knows less spending than what lies beside
it. Uploads, releases and samples are published before their row says so, once and for all, and are copied after the
database, and of them only those that it names: so none of these is missing, and none is unknown. The other order would
refuse itself: receipts that are newer than their database look like a refund, which they would be.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from obscura.private_files import make_private_folder, make_tree_private, new_private_file
from service import installation
from service.audit.signing import RECEIPTS, trusted_keys
from service.backups.databases import copy_database
from service.backups.manifest import DATABASES, FILES, KEYS, BackupRefused, Manifest, copy_file
from service.db.session import SessionFactory, transaction
from service.errors import NotFound
from service.ledger.chain import utc_text
from service.settings import Settings
from service.storage import storage_of
from service.storage.files import digest_file, regular_files
from service.storage.interface import UNFINISHED, Storage

_WITNESSES = ("journals", RECEIPTS)


@dataclass(frozen=True)
class Made:
    """A backup that is whole.

    Attributes:
        manifest: what it holds.
        size_bytes: of all its files.
        seconds_since: from the moment that its database shows to its end. A failure just before the end of the next
            backup loses what was written in so many seconds and in the time between two backups.
    """

    manifest: Manifest
    size_bytes: int
    seconds_since: float


def back_up(settings: Settings, factory: SessionFactory, out: Path, *, with_keys: bool, now: datetime) -> Made:
    """Back up database and storage while the service runs.

    Args:
        out: a folder that is missing or empty, and not in the data folder.
        with_keys: copy the keys of datasets, fingerprints and ledger too. Whoever has such a backup can open every
            image, and a deletion does not reach it.
        now: aware.

    Raises:
        BackupRefused: the folder holds something, or database and data folder do not belong together.
        ProgramMissing: the database is PostgreSQL and pg_dump is not installed.
        OSError, StorageUnavailable: a disk or the storage fails. What was made of the backup stays, without a manifest.
    """
    _require_place(settings, out)
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
    files = dict(_copy_witnesses(storage, out))
    began = time.monotonic()
    missing: list[str] = []
    snapshot = copy_database(settings.database_url, out / DATABASES[database])
    for shelf, names in snapshot.named.items():
        for name in names:
            try:
                files |= dict(_copy_folder(storage.open(f"{shelf}/{name}"), out, f"{FILES}/{shelf}/{name}"))
            except NotFound:
                missing.append(f"{shelf}/{name}")
    if with_keys:
        files |= dict(_copy_keys(settings, out))
    files[DATABASES[database]] = digest_file(out / DATABASES[database])
    manifest = Manifest(
        made_at=utc_text(now),
        database=database,
        schema=snapshot.schema,
        installation=installed,
        files=files,
        missing=tuple(missing),
        signed_by=signed_by,
        with_keys=with_keys,
    )
    make_tree_private(out)
    manifest.write(out)
    return Made(manifest, sum((out / name).stat().st_size for name in files), time.monotonic() - began)


def _require_place(settings: Settings, out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BackupRefused(f"{out} holds something already. Give a backup a folder of its own.")
    if out.resolve().is_relative_to(settings.local_path.resolve()):
        raise BackupRefused("A backup inside the data folder is lost with it. Choose a folder on another disk.")


def _copy_witnesses(storage: Storage, out: Path) -> Iterator[tuple[str, str]]:
    """Copy the installation's id, journals and receipts; yields paths and digests."""
    if storage.holds(installation.FILE):
        yield from _copy_content(storage.read("", installation.FILE), out, f"{FILES}/{installation.FILE}")
    for shelf in _WITNESSES:
        for name in storage.list(shelf):
            if not name.endswith(UNFINISHED):
                yield from _copy_content(storage.read(shelf, name), out, f"{FILES}/{shelf}/{name}")


def _copy_content(content: bytes, out: Path, name: str) -> Iterator[tuple[str, str]]:
    path = out / name
    make_private_folder(path.parent)
    with new_private_file(path) as file:
        file.write(content)
    yield name, hashlib.sha256(content).hexdigest()


def _copy_folder(folder: Path, out: Path, name: str) -> Iterator[tuple[str, str]]:
    for path in regular_files(folder):
        inside = f"{name}/{path.relative_to(folder).as_posix()}"
        yield inside, copy_file(path, out / inside)


def _copy_keys(settings: Settings, out: Path) -> Iterator[tuple[str, str]]:
    """Copy the folder of the keys, and the ledger's, where that lies elsewhere."""
    folder = settings.keys_path
    paths = {path.relative_to(folder).as_posix(): path for path in regular_files(folder)} if folder.is_dir() else {}
    paths |= {path.name: path for path in settings.ledger_key_path.parent.glob("*.pem")}
    for inside, path in sorted(paths.items()):
        yield f"{KEYS}/{inside}", copy_file(path, out / KEYS / inside)
