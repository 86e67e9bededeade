"""Make new and existing files and folders accessible to their owner alone.

The database contains the secrets that seed the noise. The data folder contains images, checkpoints and keys.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

OTHERS = 0o077  # permissions of all other users


def keep_new_files_private() -> None:
    """Set the umask so that only the owner can use new files and folders."""
    os.umask(OTHERS)


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents for the owner alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def new_private_file(path: Path) -> BinaryIO:
    """Create a file for the owner alone, whatever the umask is; raise OSError if the path exists, even as a link."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")


def write_through(file: BinaryIO, content: bytes) -> None:
    """Write to a file and sync it to disk."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Write or replace a private file, atomically and durably."""
    fresh = _write_beside(path, content)
    fresh.replace(path)
    flush_directory(path.parent)


def make_file_once(path: Path, content: bytes) -> None:
    """Write a private file atomically and durably; leave a file that already exists unchanged."""
    fresh = _write_beside(path, content)
    try:
        os.link(fresh, path)
    except FileExistsError:
        return
    finally:
        fresh.unlink()
    flush_directory(path.parent)


def _write_beside(path: Path, content: bytes) -> Path:
    make_private_folder(path.parent)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    with new_private_file(fresh) as file:
        write_through(file, content)
    return fresh


def flush_directory(directory: Path) -> None:
    """Sync a folder's list of files to disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private(path: Path) -> bool:
    """Remove the permissions of other users from a path; return False if that fails. Links are not changed."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & OTHERS:
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except FileNotFoundError:
        pass
    except OSError:  # another user owns it, or the file system has no permissions
        return False
    return True


def make_tree_private(folder: Path) -> int:
    """Remove the permissions of other users from a folder and its content; return the number of failures."""
    folder = folder.resolve()
    failures = int(not make_private(folder))  # the folder first, because that blocks access to its content
    for parent, names, files in os.walk(folder):
        failures += sum(not make_private(Path(parent, name)) for name in (*names, *files))
    return failures
