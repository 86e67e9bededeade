"""Files of datasets, jobs, releases and samples: where they are, how they appear, and what they hash to.

Every path below `data_dir` is built from an identifier of ours, never from a name that somebody chose. A folder is
written under another name, flushed to the disk and renamed, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from obscura.private_files import flush_directory
from service.errors import Conflict, InvalidInput, NotFound
from service.times import to_the_hour

_IDENTIFIER = re.compile(r"(?:ds|job|rel|smp)_[a-z2-7]{20}")
_FOLDERS = {"ds": "datasets", "job": "jobs", "rel": "releases", "smp": "samples"}
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CHUNK_BYTES = 2**20


def directory_of(data_dir: Path, identifier: str) -> Path:
    """Return the folder of a dataset, job, release or sample.

    Raises:
        InvalidInput: The identifier does not have the form of one of ours.
    """
    if not _IDENTIFIER.fullmatch(identifier):
        raise InvalidInput("This is not an identifier of a dataset, job, release or sample.")
    return data_dir / _FOLDERS[identifier.split("_", 1)[0]] / identifier


@contextmanager
def staged_directory(data_dir: Path, identifier: str) -> Iterator[Path]:
    """Yield an empty private folder beside the final one; it is removed when the block ends, unless it was published.

    Both lie on one file system, so `publish_directory` can rename.
    """
    target = directory_of(data_dir, identifier)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f"{identifier}.{secrets.token_hex(8)}.tmp")
    staging.mkdir(mode=0o700)
    try:
        yield staging
    finally:
        if staging.exists():
            shutil.rmtree(staging)


def publish_directory(staging: Path, target: Path) -> str:
    """Make a finished folder durable and visible under its final name. Its files are dated by the hour.

    Publishing the same content again changes nothing, so a worker may repeat itself after a crash.

    Returns:
        The SHA-256 of the folder's manifest, as `digest_directory` computes it.

    Raises:
        Conflict: There is a folder of that name with other content.
        InvalidInput: The folder holds links or special files.
    """
    digest = digest_directory(staging)
    hour = to_the_hour(datetime.now(UTC)).timestamp()
    for path in _regular_files(staging):
        os.utime(path, (hour, hour), follow_symlinks=False)
    _flush_tree(staging)
    try:
        staging.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        if digest_directory(target) != digest:
            raise Conflict("Another content has already been published under this identifier.") from None
        return digest
    flush_directory(target.parent)
    return digest


def digest_directory(directory: Path) -> str:
    """Return the SHA-256 (hex) of the canonical JSON that maps each file's relative path to its SHA-256.

    Raises:
        InvalidInput: Something in the folder is neither a folder nor a regular file.
        NotFound: There is no such folder.
    """
    if directory.is_symlink() or not directory.is_dir():
        raise NotFound("There are no files under this identifier.")
    manifest = {path.relative_to(directory).as_posix(): digest_file(path) for path in _regular_files(directory)}
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a regular file, not following links."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, not following a link at its last step.

    Raises:
        NotFound: There is no such file, or it is a link or a special file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise NotFound("This file does not exist.") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotFound("This file does not exist.")
    return open(descriptor, "rb")


def find_file(data_dir: Path, identifier: str, name: str) -> Path:
    """Return the path of one published file for serving.

    Raises:
        NotFound: There is no such regular file.
    """
    if not _FILE_NAME.fullmatch(name):
        raise NotFound("This file does not exist.")
    directory = directory_of(data_dir, identifier)
    path = directory / name
    if directory.is_symlink() or path.is_symlink() or not path.is_file():
        raise NotFound("This file does not exist.")
    return path


def remove_directory(data_dir: Path, identifier: str) -> None:
    """Remove the files of an identifier, if there are any. They vanish under their name at once."""
    target = directory_of(data_dir, identifier)
    doomed = target.with_name(f"{identifier}.{secrets.token_hex(8)}.tmp")
    try:
        target.rename(doomed)
    except FileNotFoundError:
        return
    flush_directory(target.parent)
    shutil.rmtree(doomed, ignore_errors=True)  # a sweep may be at it, too, and will finish what is left


def _regular_files(directory: Path) -> list[Path]:
    files: list[Path] = []
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            files += _regular_files(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            files.append(Path(entry.path))
        else:
            raise InvalidInput("A published folder may hold folders and regular files only, no links.")
    return files


def _flush_tree(directory: Path) -> None:
    for path in _regular_files(directory):
        with open_regular(path) as file:
            os.fsync(file.fileno())
    for folder, _, _ in os.walk(directory):
        flush_directory(Path(folder))
