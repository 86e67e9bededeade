"""The trash: what nobody needs any more, as far as the database knows, waits there before it is removed.

It is moved at once, under a name that says when, and where it lay: `trash/20300102T030405Z.releases.rel_...`. Whoever
misses it moves it back. Each move, and each removal for good, is a line in the log.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from service.errors import NotFound
from service.logs import get_logger
from service.storage.interface import Storage

_SHELF = "trash"
_MOVED_AT = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"(\d{8}T\d{6}Z)\.[a-z]+\.[A-Za-z0-9_.]+")


def put_away(storage: Storage, key: str, *, now: datetime) -> bool:
    """Move what lies under a key of two steps, such as `releases/rel_...`, into the trash.

    Args:
        key: to be moved.
        now: aware; the grace period begins.

    Returns:
        False where it could not be moved, or is not there: another process may just have moved it.
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
    """Return the keys of what was put away before a moment. What has another name than ours is left alone."""
    named = [(name, _NAME.fullmatch(name)) for name in storage.list(_SHELF)]
    return [f"{_SHELF}/{name}" for name, form in named if form is not None and _moment(form[1]) < before]


def remove_for_good(storage: Storage, key: str) -> None:
    """Remove something of the trash. Several processes may be at it."""
    get_logger(__name__).info("removed_for_good", folder=key)
    storage.remove(key)


def _moment(text: str) -> datetime:
    try:
        return datetime.strptime(text, _MOVED_AT).replace(tzinfo=UTC)
    except ValueError:  # somebody else's name for something: it has been put away just now
        return datetime.max.replace(tzinfo=UTC)
