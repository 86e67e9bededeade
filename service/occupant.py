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
from typing import IO

from service.private_files import replace_file
from service.settings import Settings

_TRY_SECONDS = 2.0  # somebody may just look whether it is held
_LOOK_SECONDS = 0.05


@contextmanager
def occupied(settings: Settings) -> Iterator[bool]:
    """Hold the data folder for the time of a block; yields whether it is held, or another service has it."""
    descriptor = os.open(settings.lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "rb") as lock:
        deadline = time.monotonic() + _TRY_SECONDS
        while not (held := _try(lock, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        yield held


@contextmanager
def announced(settings: Settings, url: str) -> Iterator[None]:
    """Have the address stand in the data folder, which the caller holds, for the time of a block."""
    content = f"{url}\n".encode("ascii")
    replace_file(settings.url_path, content)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            if settings.url_path.read_bytes() == content:
                settings.url_path.unlink()


def is_occupied(settings: Settings) -> bool:
    """Whether a service holds the data folder."""
    with suppress(OSError), open(settings.lock_path, "rb") as lock:
        return not _try(lock, fcntl.LOCK_SH)
    return False


def address_of(settings: Settings) -> str | None:
    """Return the address of the service that runs on a data folder; None where none does, or it has just begun."""
    if not is_occupied(settings):
        return None
    with suppress(OSError):
        return settings.url_path.read_text("ascii").strip() or None
    return None


def _try(lock: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
