"""The trash: unneeded folders wait there before they are removed for good.

A name holds the time and the former key: `trash/20300102T030405Z.releases.rel_...`. To restore a folder, move it back.
Each move, and each removal, is logged.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime

from service.errors import NotFound
from service.logs import get_logger
from service.storage.interface import Storage

_SHELF = "trash"
_MOVED_AT = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"(\d{8}T\d{6}Z)\.[a-z]+\.[A-Za-z0-9_.]+")


def put_away(storage: Storage, key: str, *, now: datetime) -> bool:
    """Move a key of two steps, such as `releases/rel_...`, into the trash; the grace period begins now.

    Return False if it could not be moved or does not exist: another process may just have moved it.
    """
    target = f"{_SHELF}/{now.astimezone(UTC).strftime(_MOVED_AT)}.{key.replace('/', '.')}"
    try:
        storage.move(key, target)
    except NotFound:
        return False
    except OSError as error:
        get_logger(__name__).error("not_put_away", folder=key, error=type(error).__name__)
        return False
    get_logger(__name__).info("put_away", folder=key, into=target)
    return True


def waiting_since(storage: Storage, before: datetime) -> list[str]:
    """Return the keys of what was put away before a moment; foreign names are ignored."""
    keys = []
    for form in map(_NAME.fullmatch, storage.list(_SHELF)):
        with suppress(ValueError):  # a foreign name
            if form is not None and datetime.strptime(form[1], _MOVED_AT).replace(tzinfo=UTC) < before:
                keys.append(f"{_SHELF}/{form[0]}")
    return keys


def remove_for_good(storage: Storage, key: str) -> None:
    """Remove a key of the trash. Several processes may do so at the same time."""
    get_logger(__name__).info("removed_for_good", folder=key)
    storage.remove(key)
