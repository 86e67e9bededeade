"""The trash: unneeded folders are moved there before they are removed permanently.

A name contains the time and the former key: `trash/20300102T030405Z.releases.rel_...`. To restore it, move it back.
Each move and each removal is logged.
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
    """Move a key with two segments, such as `releases/rel_...`, into the trash. The grace period starts now.

    Return False if it cannot be moved or does not exist: another process may just have moved it.
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
    """Return the keys in the trash that were moved there before a time; ignore foreign names."""
    keys = []
    for form in map(_NAME.fullmatch, storage.list(_SHELF)):
        with suppress(ValueError):  # a foreign name
            if form is not None and datetime.strptime(form[1], _MOVED_AT).replace(tzinfo=UTC) < before:
                keys.append(f"{_SHELF}/{form[0]}")
    return keys


def remove_for_good(storage: Storage, key: str) -> None:
    """Remove a key from the trash permanently. Several processes may do so at the same time."""
    get_logger(__name__).info("removed_for_good", folder=key)
    storage.remove(key)
