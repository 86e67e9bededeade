"""Free space and writability of the service's disks.

If too little space is left, the service rejects uploads and queued jobs wait. This leaves space for the checkpoints,
releases and last ledger rows of running jobs.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from sqlalchemy import make_url

from obscura.private_files import new_private_file, write_through
from service.errors import ObscuraError
from service.settings import Settings

PROBED_SECONDS = 5.0  # minimum time between probes
_PROBE = bytes(4096)  # one block: a full disk may still have an inode


class OutOfDisk(ObscuraError):
    """A disk has too little space to store images.

    Free space depends on the true numbers of records in all projects. So the message names no disk, and other
    errors have the same code.
    """

    code: ClassVar[str] = "uploads_stopped"


def sqlite_file(database_url: str) -> Path | None:
    """Return the path of an SQLite database; None for PostgreSQL."""
    database = make_url(database_url)
    return Path(database.database or "") if database.get_backend_name() == "sqlite" else None


def folders_written_to(settings: Settings) -> dict[str, Path]:
    """Return the folders that may be on separate disks, by purpose."""
    folders = {"data": settings.data_dir, "keys": settings.keys_path, "work": settings.work_path}
    database = sqlite_file(settings.database_url)
    if database is not None:
        folders["database"] = database.parent
    for name, folder in folders.items():  # or an existing parent, if the folder is missing
        folders[name] = next((path for path in (folder, *folder.parents) if path.is_dir()), folder)
    return folders


def short_of_room(settings: Settings) -> str | None:
    """Return the purpose of a folder whose disk has too little free space, or None."""
    for name, folder in folders_written_to(settings).items():
        disk = os.statvfs(folder)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < settings.disk_free_bytes_min:
            return name
    return None


def require_room(settings: Settings) -> None:
    """Raise OutOfDisk unless every disk has the required free space. The supervisor logs the folder."""
    if short_of_room(settings) is not None:
        raise OutOfDisk(
            "The service cannot store images now. Nothing was changed. Try again later, or ask an admin of the "
            "installation."
        )


def unwritable(settings: Settings) -> dict[str, OSError]:
    """Try to write and remove a small file in each folder; return the errors by purpose."""
    errors = {}
    for name, folder in folders_written_to(settings).items():
        path = folder / f".probe.{secrets.token_hex(8)}"
        try:
            with new_private_file(path) as file:
                path.unlink()  # at once, so that a crash leaves no file
                write_through(file, _PROBE)
        except OSError as error:
            errors[name] = error
    return errors


def explain_failed_write(settings: Settings, error: Exception) -> str | None:
    """Return a message that names the unwritable folder and the reason; None if no disk explains the error.

    A full disk causes various errors: a failed write names no file, and SQLite reports an I/O error.
    """
    if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, None):
        place = os.fspath(error.filename) if error.filename else "a file of the service"
        return f"Cannot use {place}: {error.strerror}. Correct that, or choose another folder (--data-dir)."
    failures = unwritable(settings)
    for name, folder in folders_written_to(settings).items():
        why = failures[name].errno if name in failures else None
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


class DiskProbe:
    """Probes the disks at most once every few seconds.

    Only admins of the installation may see the result: see `OutOfDisk`.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._lock = threading.Lock()
        self._probed, self._short = float("-inf"), False

    def is_short(self) -> bool:
        """Return whether a disk is full or read-only, or has less than the required free space."""
        with self._lock:
            if self._clock() - self._probed >= PROBED_SECONDS:
                try:
                    self._short = bool(unwritable(self._settings)) or short_of_room(self._settings) is not None
                except OSError:
                    self._short = True
                self._probed = self._clock()
            return self._short
