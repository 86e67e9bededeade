"""The service that runs on a data folder: it holds a lock there, and its address is beside it.

The lock dies with the process that holds it, however that ends. So an address whose lock nobody holds is what a crash
has left: readers pay it no heed, and the next service writes its own. Only whoever holds the lock writes the address or
removes it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from obscura.private_files import replace_file

_LOCK, _ADDRESS, _ADMIN_KEY = "service.lock", "service.url", "admin.key"
_TRY_SECONDS = 2.0  # somebody may just look whether it is held
_LOOK_SECONDS = 0.05


@contextmanager
def occupied(folder: Path) -> Iterator[bool]:
    """Hold the data folder for the time of a block; yields whether it is held, or another service has it."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "rb") as lock:
        deadline = time.monotonic() + _TRY_SECONDS
        while not (held := _try(lock, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        yield held


@contextmanager
def announced(folder: Path, url: str) -> Iterator[None]:
    """Have the address stand in the data folder, which the caller holds, for the time of a block."""
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
    """Whether a service holds the data folder."""
    with suppress(OSError), open(folder / _LOCK, "rb") as lock:
        return not _try(lock, fcntl.LOCK_SH)
    return False


def address_of(folder: Path) -> str | None:
    """Return the address of the service that runs on a data folder; None where none does, or it has just begun."""
    if not is_occupied(folder):
        return None
    with suppress(OSError):
        return (folder / _ADDRESS).read_text("ascii").strip() or None
    return None


def admin_key_path(folder: Path) -> Path:
    """Where the first admin key is written, readable by its owner alone."""
    return folder / _ADMIN_KEY


def _try(lock: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
