"""Uploads that arrive in parts, so that they can resume after a lost connection.

A folder in the quarantine holds the parts of one upload. Only the uploader has the secret from which the folder's name
and the key of its files are derived: the service cannot open the parts between two requests. A lock on the folder
admits one request at a time, and ends with the process that holds it. A folder without requests for an hour is removed.

An upload that also declares its dataset notes the dataset's id before the declaration is committed. So after a crash,
the next request, or else the removal of the folder, deletes that declaration.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from obscura.private_files import make_private_folder, new_private_file, replace_file
from service.errors import Conflict, ObscuraError, TooLarge
from service.sealing import SealedReader, SealedWriter
from service.settings import Settings

PART_BYTES_MAX = 8 * 2**20
IDLE_SECONDS_MAX = 3600
PER_PROJECT_MAX = 6  # unfinished uploads; another one replaces the one that has been idle longest
_BLOCK_BYTES = 2**20
_DATASET, _FRESH = "dataset", "fresh"


class UploadLost(ObscuraError):
    """The parts of the upload are missing, so it must start again."""


@dataclass(frozen=True)
class Parts:
    """The parts of one upload, while its folder is locked. A part's file is named by the offset of its end."""

    folder: Path
    key: bytes

    def _ends(self) -> list[int]:
        return sorted(int(name) for name in os.listdir(self.folder) if name.isdecimal())

    def append(self, offset: int, blocks: Iterator[bytes], *, bytes_max: int) -> int:
        """Store the part at `offset`, which must follow the last one, and return the number of bytes received."""
        size, fresh = 0, self.folder / _FRESH
        fresh.unlink(missing_ok=True)  # left by a crash
        with new_private_file(fresh) as file:
            sealed = SealedWriter(file, self.key, f"upload part {offset}")
            for block in blocks:
                size += len(block)
                if size > PART_BYTES_MAX:
                    raise TooLarge("A part of the upload", PART_BYTES_MAX)
                if offset + size > bytes_max:
                    raise TooLarge("This file", bytes_max)
                sealed.write(block)
            sealed.finish()
            file.flush()
            os.fsync(file.fileno())
        received = max(self._ends(), default=0)
        if size == 0:
            return received
        if offset != received:
            raise Conflict(f"The next part must start at {received:,}, not at {offset:,}.", received=received)
        fresh.rename(self.folder / f"{offset + size}")
        return offset + size

    def blocks(self) -> Iterator[bytes]:
        """Yield the content of all parts in order."""
        for first, last in pairwise([0, *self._ends()]):
            with SealedReader((self.folder / f"{last}").open("rb"), self.key, f"upload part {first}") as part:
                while block := part.read(_BLOCK_BYTES):
                    yield block

    @property
    def dataset_id(self) -> str | None:
        """The dataset that this upload has declared or filled."""
        with suppress(FileNotFoundError):
            return (self.folder / _DATASET).read_text("ascii")
        return None

    def note(self, dataset_id: str) -> None:
        """Record the dataset of this upload, durably."""
        replace_file(self.folder / _DATASET, dataset_id.encode("ascii"))

    def remove(self, *, keep_note: bool) -> None:
        """Remove the parts. The note of the dataset, if kept, gives a repeated request the same answer."""
        for path in self.folder.iterdir():
            if path.name != _DATASET or not keep_note:
                path.unlink()
        if not keep_note:
            self.folder.rmdir()


def begin(settings: Settings, key_id: str, project_id: str | None) -> str:
    """Create the folder of an upload by a key, and return the secret that opens it."""
    secret = secrets.token_hex(32)
    folder, _ = _locate(settings, secret, key_id, project_id)
    others = folder.parent.glob(f"{folder.name.partition('.')[0]}.*.parts")
    unfinished = [path for path in others if not (path / _DATASET).exists()]
    unfinished.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for idle in unfinished[PER_PROJECT_MAX - 1 :]:
        with suppress(UploadLost, Conflict), _locked(idle):
            shutil.rmtree(idle)
    make_private_folder(folder)
    return secret


@contextmanager
def opened(settings: Settings, secret: str, key_id: str, project_id: str | None) -> Iterator[Parts]:
    """Lock the parts of an upload; raise UploadLost if they are missing, and Conflict if another request has them."""
    folder, key = _locate(settings, secret, key_id, project_id)
    with _locked(folder):
        yield Parts(folder, key)


def expired(settings: Settings, *, now: datetime) -> Iterator[Parts]:
    """Yield each upload without a request for an hour, then remove it. Skip those in use."""
    for folder in settings.quarantine_path.glob("*.parts"):
        with suppress(UploadLost, Conflict), _locked(folder):
            if now.timestamp() - folder.stat().st_mtime >= IDLE_SECONDS_MAX:
                yield Parts(folder, b"")
                shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder.stat()  # raises if the last holder of the lock has removed the folder
        except FileNotFoundError:
            raise UploadLost(
                "The parts of this upload are missing: they were removed, or another server has them. Check under "
                "Datasets whether the upload is complete. If not, upload again."
            ) from None
        except BlockingIOError:
            raise Conflict("Another request of this upload is in progress. Wait until it ends.") from None
        yield


def _locate(settings: Settings, secret: str, key_id: str, project_id: str | None) -> tuple[Path, bytes]:
    digests = (hashlib.blake2b(f"parts {of} {key_id} {secret}".encode(), digest_size=32) for of in ("folder", "key"))
    name, key = (digest.digest() for digest in digests)
    return settings.quarantine_path / f"{project_id or 'installation'}.{name.hex()}.parts", key
