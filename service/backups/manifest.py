"""What a backup holds. A folder with a manifest is a whole backup, for that is written last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from obscura.private_files import make_private_folder, new_private_file, replace_file
from service.errors import ObscuraError
from service.storage.files import digest_file, open_regular, regular_files

FORMAT = "obscura backup"
VERSION = 1
MANIFEST = "manifest.json"
DATABASES = {"sqlite": "database.sqlite", "postgresql": "database.dump"}
FILES, KEYS = "files", "keys"
_BLOCK_BYTES = 2**20


class BackupRefused(ObscuraError):
    """A backup cannot be made or used like this. What was there before is unchanged."""

    code: ClassVar[str] = "backup_refused"


@dataclass(frozen=True)
class Manifest:
    """What a backup holds.

    Attributes:
        made_at: when the database was copied, in UTC: what the service did later is not in the backup.
        database: the kind of the database, of DATABASES.
        schema: the migration that the database was at.
        installation: the id that database and data folder hold.
        files: SHA-256 by path below the backup, the database's among them.
        missing: releases, samples and datasets that the database names and whose files the storage does not have.
        signed_by: fingerprints of the keys that receipts and checkpoints in it may be signed with.
        with_keys: whether the keys of datasets, fingerprints and ledger are in it.
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
        """Make the folder a whole backup."""
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        replace_file(folder / MANIFEST, json.dumps(document, indent=1, sort_keys=True).encode())


def read_manifest(folder: Path) -> Manifest:
    """Read what a backup holds, and compare every file with it.

    Raises:
        BackupRefused: it is not a whole backup, or is not what was written.
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
    there = {path.relative_to(folder).as_posix() for path in regular_files(folder)} - {MANIFEST}
    if there != set(manifest.files):
        raise BackupRefused(
            f"The backup in {folder} does not hold the files that its manifest names: "
            f"{len(set(manifest.files) - there)} are missing, and {len(there - set(manifest.files))} are strange to it."
        )
    changed = [name for name, digest in manifest.files.items() if digest_file(folder / name) != digest]
    if changed:
        raise BackupRefused(
            f"{len(changed)} files of the backup in {folder} are not what was written; the first is {changed[0]}. "
            "Take another backup."
        )
    return manifest


def copy_file(source: Path, target: Path) -> str:
    """Copy a plain file durably, for its owner alone; returns its SHA-256.

    Raises:
        NotFound: there is no such file, or it is a link.
        OSError: there is a file already, or the disk is full or failing.
    """
    make_private_folder(target.parent)
    digest = hashlib.sha256()
    with open_regular(source) as read, new_private_file(target) as written:
        while block := read.read(_BLOCK_BYTES):
            digest.update(block)
            written.write(block)
        written.flush()
    return digest.hexdigest()
