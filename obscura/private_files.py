"""Files and folders of one owner, and the lock and address of the service that runs on a data folder.

The database contains the secrets that seed the noise. The data folder contains images, checkpoints and keys.

The operating system releases the lock when the service's process ends, even by a crash. Readers ignore an address
without a lock, because a crashed service left it behind. Only the holder of the lock writes or removes the address.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from obscura.errors import ObscuraClientError

OTHERS = 0o077  # permissions of all other users
_LOCK, _ADDRESS, _ADMIN_KEY = "service.lock", "service.url", "admin.key"
_CHARACTERS_MAX = 4096
_LOOK_SECONDS = 0.05


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
    """Write bytes to a file and sync them to disk."""
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


# --- the service that runs on a folder --------------------------------------------------------------------------------


class NotOwned(ObscuraClientError):
    """A data folder or a file in it belongs to another user, who could redirect requests."""


def is_own(path: Path) -> bool:
    """Return whether a path, and its target if it is a link, belongs to the caller or to root."""
    return all(status.st_uid in (os.geteuid(), 0) for status in (path.lstat(), path.stat()))


@contextmanager
def occupied(folder: Path, *, seconds_max: float = 2.0) -> Iterator[bool]:
    """Lock the data folder for the block; yield whether the lock was acquired.

    Wait at most `seconds_max`, because another process may hold the lock briefly while it checks the folder.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "rb") as lock:
        deadline = time.monotonic() + seconds_max
        while not (held := _try(lock, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        yield held


@contextmanager
def announced(folder: Path, url: str) -> Iterator[None]:
    """Write the service's address to the locked data folder, and remove it after the block."""
    content = f"{url}\n".encode("ascii")
    address = folder / _ADDRESS
    replace_file(address, content)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            if address.read_bytes() == content:
                address.unlink()


def is_occupied(folder: Path) -> bool:
    """Return whether a service holds a data folder; raise NotOwned if the folder belongs to another user."""
    with suppress(OSError), _open_own(folder / _LOCK) as lock:
        return not _try(lock, fcntl.LOCK_SH)
    return False


def address_of(folder: Path) -> str | None:
    """Return the address of the service on a data folder; None if no service runs there, or it is still starting."""
    if not is_occupied(folder):
        return None
    with suppress(OSError):
        return _read_own(folder / _ADDRESS) or None
    return None


def admin_key_path(folder: Path) -> Path:
    """Return the path of the file with the first admin key."""
    return folder / _ADMIN_KEY


def read_admin_key(folder: Path) -> str:
    """Read the first admin key; raise OSError if it is missing, or NotOwned if another user owns the file."""
    return _read_own(folder / _ADMIN_KEY)


def _open_own(path: Path) -> IO[bytes]:
    """Open a file of a data folder; raise OSError for a link, and NotOwned if another user may have written it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file, owner = os.fdopen(descriptor, "rb"), path.parent.stat().st_uid
    try:
        status = os.fstat(descriptor)
        trusted = {os.geteuid(), 0} | ({owner} if os.geteuid() == 0 else set())  # root may administer a user's service
        if owner not in trusted or path.parent.lstat().st_uid not in trusted:
            raise NotOwned(
                f"{path.parent} belongs to another user (uid {owner}), so its service is not used. Choose another "
                "--data-dir."
            )
        if status.st_uid not in trusted or status.st_mode & stat.S_IWOTH or not stat.S_ISREG(status.st_mode):
            raise NotOwned(
                f"{path} is not a regular file that only you can write (uid {status.st_uid}, mode {status.st_mode:o}), "
                "so it is not used. Remove it, or choose another --data-dir."
            )
    except BaseException:
        file.close()
        raise
    return file


def _read_own(path: Path) -> str:
    with _open_own(path) as file:
        return file.read(_CHARACTERS_MAX).decode("ascii", "replace").strip()


def _try(lock: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
