"""Regular files of this machine, opened without following links, and their digests."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from io import BufferedReader
from pathlib import Path

from service.errors import InvalidInput, NotFound


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
    """Return the SHA-256 (hex) of the canonical JSON that maps each file's relative path to its SHA-256.

    Raise InvalidInput for links and special files, and NotFound if there is no such folder.
    """
    if directory.is_symlink() or not directory.is_dir():
        raise NotFound("There are no files under this identifier.")
    manifest = {path.relative_to(directory).as_posix(): digest_file(path) for path in regular_files(directory)}
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


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
