"""A backup of a running service: journals and receipts first, then the database, then the files that it names.

A charge is committed before its line in a journal, and a capture before its receipt. So a database that is copied after
journals and receipts knows all that they prove. Uploads, releases and samples are published before their row, never
change, and are copied after the database, only those that it names. In the other order a backup would hold receipts
that are newer than its database, which is how a refund looks. The manifest is written last, so a folder with a manifest
is a complete backup.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from obscura.private_files import make_private_folder, make_tree_private, new_private_file, replace_file
from service import installation
from service.audit.signing import RECEIPTS, trusted_keys
from service.backups.databases import DATABASES, BackupRefused, copy_database
from service.db.session import SessionFactory, transaction
from service.errors import NotFound
from service.ledger.chain import utc_text
from service.settings import Settings
from service.storage import storage_of
from service.storage.files import digest_file, open_regular, regular_files
from service.storage.interface import UNFINISHED, Storage

FORMAT, VERSION, MANIFEST = "obscura backup", 1, "manifest.json"
FILES, KEYS = "files", "keys"
_BLOCK_BYTES = 2**20


@dataclass(frozen=True)
class Manifest:
    """The contents of a backup.

    Attributes:
        made_at: the time of the database's copy, in UTC.
        database: the kind of database, of DATABASES.
        schema: the migration of the database.
        installation: its id.
        files: SHA-256 by path below the backup, including the database.
        missing: releases, samples and datasets that the database names and the storage lacks.
        signed_by: fingerprints of the trusted public keys.
        with_keys: whether the keys of datasets, fingerprints and ledger are included.
    """

    made_at: str
    database: str
    schema: str
    installation: str | None
    files: Mapping[str, str]
    missing: tuple[str, ...]
    signed_by: tuple[str, ...]
    with_keys: bool

    def write(self, folder: Path) -> None:
        """Write the manifest, which completes the backup."""
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        replace_file(folder / MANIFEST, json.dumps(document, indent=1, sort_keys=True).encode())


def read_manifest(folder: Path) -> Manifest:
    """Read a backup's manifest, and compare every file with it.

    Raises:
        BackupRefused: the backup is incomplete or was changed.
    """
    try:
        document = json.loads((folder / MANIFEST).read_bytes())
        if (document.pop("format"), document.pop("version")) != (FORMAT, VERSION):
            raise BackupRefused(f"The backup in {folder} is of a version that this one does not know.")
        for name in ("missing", "signed_by"):
            document[name] = tuple(document[name])
        manifest = Manifest(**document)
    except FileNotFoundError:
        raise BackupRefused(
            f"There is no {MANIFEST} in {folder}: it is no backup, or one that was interrupted. Take another one."
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BackupRefused(f"The manifest of the backup in {folder} cannot be read: {type(error).__name__}.") from None
    present = {path.relative_to(folder).as_posix() for path in regular_files(folder)} - {MANIFEST}
    if present != set(manifest.files):
        raise BackupRefused(
            f"The backup in {folder} does not hold the files that its manifest names: "
            f"{len(set(manifest.files) - present)} are missing, and {len(present - set(manifest.files))} are unknown."
        )
    changed = [name for name, digest in manifest.files.items() if digest_file(folder / name) != digest]
    if changed:
        raise BackupRefused(
            f"{len(changed)} files of the backup in {folder} are not what was written; the first is {changed[0]}. "
            "Take another backup."
        )
    return manifest


@dataclass(frozen=True)
class Made:
    """A complete backup.

    Attributes:
        size_bytes: of all its files.
        seconds_since: from the moment that its database shows to its end. A failure just before the end of the next
            backup loses what was written in this time and in the time between two backups.
    """

    manifest: Manifest
    size_bytes: int
    seconds_since: float


def back_up(settings: Settings, factory: SessionFactory, out: Path, *, with_keys: bool, now: datetime) -> Made:
    """Back up database and storage while the service runs.

    Args:
        out: missing or empty, and outside the data folder.
        with_keys: copy the keys of datasets, fingerprints and ledger too. Such a backup opens every image, and a
            deletion does not reach it.
        now: aware.

    Raises:
        BackupRefused: the folder is not empty, or database and data folder do not belong together.
        ProgramMissing: the database is PostgreSQL and pg_dump is not installed.
        OSError, StorageUnavailable: a disk or the storage fails. The incomplete backup stays, without a manifest.
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
    files = dict(_copy_proofs(storage, out))
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


def _copy_proofs(storage: Storage, out: Path) -> Iterator[tuple[str, str]]:
    """Copy the installation's id, journals and receipts; yield paths and digests."""
    if storage.holds(installation.FILE):
        yield from _copy_content(storage.read("", installation.FILE), out, f"{FILES}/{installation.FILE}")
    for shelf in ("journals", RECEIPTS):
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
    """Copy the folder of keys, and the ledger's keys, which may be elsewhere."""
    folder = settings.keys_path
    paths = {path.relative_to(folder).as_posix(): path for path in regular_files(folder)} if folder.is_dir() else {}
    paths |= {path.name: path for path in settings.ledger_key_path.parent.glob("*.pem")}
    for inside, path in sorted(paths.items()):
        yield f"{KEYS}/{inside}", copy_file(path, out / KEYS / inside)


def copy_file(source: Path, target: Path) -> str:
    """Copy a regular file durably and privately; return its SHA-256.

    Raises:
        NotFound: there is no such file, or it is a link.
        OSError: the target exists, or the disk is full or failing.
    """
    make_private_folder(target.parent)
    digest = hashlib.sha256()
    with open_regular(source) as read, new_private_file(target) as written:
        while block := read.read(_BLOCK_BYTES):
            digest.update(block)
            written.write(block)
        written.flush()
    return digest.hexdigest()
