"""The methods of a storage, its keys, the trash, and safe reading of the local files that it returns.

A key such as `releases/rel_...` names a file, or a folder with files and further keys. Keys consist of our own
identifiers, never of names that users choose. Every storage must pass `tests/service/storage/contract.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Any

from service.dependencies import calling
from service.errors import InvalidInput, NotFound, ObscuraError
from service.logs import get_logger

# The name of a dataset's content: the dataset's id, followed by the number of rewrites if there were any.
CONTENT = re.compile(r"(ds_[a-z2-7]{20})(?:\.[1-9]\d{0,5})?")
_IDENTIFIER = re.compile(rf"(?:rel|smp)_[a-z2-7]{{20}}|{CONTENT.pattern}")
_SHELVES = {"ds": "datasets", "rel": "releases", "smp": "samples"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
UNFINISHED = ".tmp"  # suffix of staging folders, including those left by a crash
_TRASH = "trash"
_TRASHED_AT = "%Y%m%dT%H%M%SZ"
_TRASHED = re.compile(r"(\d{8}T\d{6}Z)\.[a-z]+\.[A-Za-z0-9_.]+")


class StorageUnavailable(ObscuraError, OSError):
    """A remote storage does not answer, or rejects requests. No data is known to be lost; callers retry later.

    `numbers["why"]` is one word for the cause, such as `away`, `credentials` or `clock`.
    """

    @property
    def dependency_failed(self) -> bool:
        """Return whether the storage did not answer; otherwise it rejected the request."""
        return self.numbers.get("why") == "away"


class Storage(ABC):
    """Files that outlive processes and machines. Publishing is atomic and durable.

    Several processes can use one storage at the same time. Methods raise OSError if a disk is full or fails. They raise
    StorageUnavailable if a remote storage rejects a request, or does not answer within a minute or two. In a web
    request, every method takes a slot of the dependency `storage` (`service.dependencies`). The exception is `stage`,
    which only uses this machine's disk.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _guard(cls)

    @abstractmethod
    def stage(self, key: str, mark: str = "") -> AbstractContextManager[Path]:
        """Create an empty private folder on this machine, to prepare content for a key.

        The folder is removed when the block ends. After a crash it may be listed as `NAME.MARK.tmp` beside the key. The
        mark, random by default, distinguishes this attempt from others.
        """

    def send(self, staged: Path, key: str) -> None:  # noqa: B027 - most have nothing to send
        """Transfer a staged folder, still invisible. Call it before you take the locks under which you publish."""

    @abstractmethod
    def publish(self, staged: Path, key: str) -> None:
        """Make a staged folder, or one file in it, durable and visible. Only the service's user can read it.

        A folder is published once; publishing the same content again is idempotent. A file replaces an earlier file.
        Timestamps of a folder's files are rounded to the hour.

        Raises:
            Conflict: a folder with other content exists under the key.
            InvalidInput: the folder contains links or special files.
        """

    @abstractmethod
    def append(self, key: str, content: bytes) -> None:
        """Append to a file; create it if missing. Durable on return. After an OSError, part of it may be durable."""

    @abstractmethod
    def open(self, key: str, file: str = "") -> Path:
        """Return a local path to a folder, or to a file in it. Never write to this path.

        Raise NotFound if there is no such folder, or no such regular file in it. Links are not followed.
        """

    @abstractmethod
    def list(self, key: str) -> list[str]:
        """Return the sorted names directly below a key, including names that this service did not create."""

    def holds(self, key: str) -> bool:
        """Return whether anything exists under a key. The answer is exact even if the storage's lists may be stale."""
        parent, _, name = key.rpartition("/")
        return name in self.list(parent)

    @abstractmethod
    def idle_seconds(self, key: str) -> float:
        """Return the time since the last write at or below a key; 0 if unknown."""

    @abstractmethod
    def move(self, key: str, target: str) -> None:
        """Durably rename a file or folder and everything below it; raise NotFound if nothing is there any more.

        After an interruption, everything is under one of the two keys, or under both.
        """

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove a file or folder, if it exists, and everything below it. The key can be reused at once."""

    def read(self, key: str, file: str, *, bytes_max: int = -1) -> bytes:
        """Return the content of a small file, cut after `bytes_max` + 1 bytes; raise NotFound if there is none."""
        with open_regular(self.open(key, file)) as opened:
            return opened.read(bytes_max + 1 if bytes_max >= 0 else -1)

    def read_all(self, key: str, begins: str = "", *, bytes_max: int = -1) -> dict[str, bytes | None]:
        """Return the small files directly below a key whose names start with `begins`, by name; None if unreadable."""
        names = (name for name in self.list(key) if name.startswith(begins))
        return {name: self._read_if_possible(key, name, bytes_max) for name in names}

    def _read_if_possible(self, key: str, file: str, bytes_max: int) -> bytes | None:
        try:
            return self.read(key, file, bytes_max=bytes_max)
        except StorageUnavailable:
            raise
        except (NotFound, OSError):
            return None

    def write(self, key: str, content: bytes) -> None:
        """Publish a small file."""
        with self.stage(key) as staging:
            path = staging / "content"
            path.write_bytes(content)
            self.publish(path, key)


def _guard(backend: type) -> None:
    """Limit concurrent calls of every public method of a class, except `stage`, which stays open for a long time."""
    for name, verb in list(vars(backend).items()):
        if callable(verb) and not name.startswith("_") and name != "stage":
            setattr(backend, name, calling("storage")(verb))


_guard(Storage)


def key_of(identifier: str) -> str:
    """Return the key of a dataset's content, a release or a sample; raise InvalidInput for a malformed identifier."""
    if not _IDENTIFIER.fullmatch(identifier):
        raise InvalidInput("This is not an identifier of a dataset, release or sample.")
    return f"{_SHELVES[identifier.split('_', 1)[0]]}/{identifier}"


def work_key(job_id: str) -> str:
    """Return the key of the private files that a job's attempts share. These files are never served."""
    return f"work/{job_id}"


def is_plain(name: str) -> bool:
    """Return whether a string is a valid segment of a key, or a valid file name."""
    return _NAME.fullmatch(name) is not None


def require_key(key: str) -> None:
    """Raise InvalidInput unless every segment of a key is valid. The empty key is valid."""
    if key and not all(is_plain(step) for step in key.split("/")):
        raise InvalidInput("This is not a valid storage key.")


def put_away(storage: Storage, key: str, *, now: datetime) -> bool:
    """Move a key with two segments, such as `releases/rel_...`, into the trash. The grace period starts now.

    The new key contains the time and the former key: `trash/20300102T030405Z.releases.rel_...`. To restore it, move it
    back. Return False if it cannot be moved or does not exist, for example because another process has just moved it.
    """
    target = f"{_TRASH}/{now.astimezone(UTC).strftime(_TRASHED_AT)}.{key.replace('/', '.')}"
    try:
        storage.move(key, target)
    except NotFound:
        return False
    except OSError as error:
        get_logger(__name__).error("not_put_away", folder=key, error=type(error).__name__)
        return False
    get_logger(__name__).info("put_away", folder=key, into=target)
    return True


def trashed_before(storage: Storage, before: datetime) -> list[str]:
    """Return the keys in the trash that were moved there before a time; ignore foreign names."""
    keys = []
    for form in map(_TRASHED.fullmatch, storage.list(_TRASH)):
        with suppress(ValueError):  # a foreign name
            if form is not None and datetime.strptime(form[1], _TRASHED_AT).replace(tzinfo=UTC) < before:
                keys.append(f"{_TRASH}/{form[0]}")
    return keys


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; raise NotFound for anything else, including a link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise NotFound("This file does not exist.") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotFound("This file does not exist.")
    return open(descriptor, "rb")


def digest_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a regular file; raise NotFound as `open_regular` does."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_directory(directory: Path) -> str:
    """Return the SHA-256 (hex) of a folder's manifest; see `manifest_of`."""
    return hashlib.sha256(manifest_of(directory)).hexdigest()


def manifest_of(directory: Path) -> bytes:
    """Return the canonical JSON that maps each file's relative path to its SHA-256.

    Raise InvalidInput for links and special files, and NotFound if there is no such folder.
    """
    if directory.is_symlink() or not directory.is_dir():
        raise NotFound("There are no files under this identifier.")
    manifest = {path.relative_to(directory).as_posix(): digest_file(path) for path in regular_files(directory)}
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def regular_files(directory: Path) -> list[Path]:
    """Return the files in and below a folder, sorted; raise InvalidInput for links and special files."""
    files: list[Path] = []
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            files += regular_files(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            files.append(Path(entry.path))
        else:
            raise InvalidInput("A published folder may hold folders and regular files only, no links.")
    return files
