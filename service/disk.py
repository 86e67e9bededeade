"""Whether the disks that the service writes to can be written to, and have room.

A disk that is full lets everything be read and nothing begin, so what begins is refused while a little is left: what
runs already can then still write its checkpoint, its release and its last row of the ledger.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from sqlalchemy import make_url

from obscura.private_files import new_private_file, write_through
from service.errors import ObscuraError
from service.settings import Settings

PROBED_SECONDS = 5.0  # between two probes of the same disks
_PROBE = bytes(4096)  # a block: a full disk may still have an inode


class OutOfDisk(ObscuraError):
    """There is too little room on a disk of the service for anything to begin."""

    code: ClassVar[str] = "out_of_disk"


def folders_written_to(settings: Settings) -> dict[str, Path]:
    """Return the folders that may each lie on a disk of their own, by what they are for."""
    folders = {"data": settings.local_path, "keys": settings.keys_path, "work": settings.work_path}
    database = make_url(settings.database_url)
    if database.get_backend_name() == "sqlite" and database.database:
        folders["database"] = Path(database.database).parent
    return {name: _standing(folder) for name, folder in folders.items()}


def short_of_room(settings: Settings) -> str | None:
    """Return what the folder is for whose disk has less room than is left free; None where all have enough."""
    for name, folder in folders_written_to(settings).items():
        disk = os.statvfs(folder)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < settings.disk_free_bytes_min:
            return name
    return None


def require_room(settings: Settings) -> None:
    """Let pass where something may begin that will be written to disk.

    Raises:
        OutOfDisk: there is less room than is left free.
    """
    name = short_of_room(settings)
    if name is not None:
        raise OutOfDisk(
            f"The disk of the {name} folder has less than {settings.disk_free_bytes_min / 2**20:,.0f} MiB left, so "
            "nothing new begins and nothing was changed. Whoever runs the service can make room.",
            folder=name,
        )


def unwritable(settings: Settings) -> Iterator[str]:
    """Yield what the folders are for that take no small file, written through to the disk and removed."""
    for name, folder in folders_written_to(settings).items():
        try:
            _probe(folder)
        except OSError:
            yield name


def explain_failed_write(settings: Settings, error: Exception) -> str | None:
    """Say which folder cannot be written to and how many bytes it needs; None where no disk explains an error.

    A full disk shows itself in many ways: a write names no file, and SQLite reports an I/O error.
    """
    if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, None):
        place = os.fspath(error.filename) if error.filename else "a file of the service"
        return f"Cannot use {place}: {error.strerror}. Correct that, or choose another folder (--data-dir)."
    for folder in folders_written_to(settings).values():
        why: int | None = None
        try:
            _probe(folder)
        except OSError as failed:
            why = failed.errno
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        if why not in (None, errno.ENOSPC, errno.EDQUOT):
            return f"Cannot write to {folder}: {os.strerror(why)}. Correct that, or choose another folder (--data-dir)."
        if why is not None or (disk.f_blocks and free < settings.disk_free_bytes_min):
            return (
                f"The disk of {folder} is full: {free:,} bytes are free, and the service needs "
                f"{settings.disk_free_bytes_min:,}. Make room, or choose a folder on another disk (--data-dir)."
            )
    return None


def _probe(folder: Path) -> None:
    path = folder / f".probe.{secrets.token_hex(8)}"
    with new_private_file(path) as file:
        path.unlink()  # at once: nothing is left, however this process ends
        write_through(file, _PROBE)


class DiskProbe:
    """Asks the disks, but not more often than every few seconds.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._lock = threading.Lock()
        self._probed, self._found = float("-inf"), ""

    def trouble(self) -> str:
        """Say in a sentence what is wrong with a disk, by what its folder is for; empty where nothing is."""
        with self._lock:
            if self._clock() - self._probed >= PROBED_SECONDS:
                self._found = self._look()
                self._probed = self._clock()
            return self._found

    def _look(self) -> str:
        for name in unwritable(self._settings):
            return f"The disk of the {name} folder cannot be written to: it is full, or read-only."
        try:
            require_room(self._settings)
        except OutOfDisk as error:
            return error.message
        except OSError:
            return "A disk of the service does not answer."
        return ""


def _standing(folder: Path) -> Path:
    """Return the folder, or the one above it in which it will be made."""
    return next((path for path in (folder, *folder.parents) if path.is_dir()), folder)
