"""The trash: folders that nobody needs any more, as far as the database knows, wait there before they are removed.

A folder is moved by one rename on its own file system, under a name that says when, and where it lay:
`trash/20300102T030405Z.releases.rel_...`. Whoever misses it moves it back. Each move, and each removal for good, is a
line in the log.
"""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

from obscura.private_files import flush_directory, make_private, make_private_folder
from service.logs import get_logger

FOLDER = "trash"
_MOVED_AT = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"(\d{8}T\d{6}Z)\.[a-z]+\.[A-Za-z0-9_.]+")


def put_away(data_dir: Path, folder: Path, *, now: datetime) -> bool:
    """Move a folder that lies two levels below the data folder, such as `releases/rel_...`, into the trash.

    Args:
        data_dir: of the service.
        folder: to be moved.
        now: aware; the grace period begins.

    Returns:
        False where it could not be moved, or another process has just done so: it is where it was, or in the trash.
    """
    trash, kind = data_dir / FOLDER, folder.parent
    target = trash / f"{now.astimezone(UTC).strftime(_MOVED_AT)}.{kind.name}.{folder.name}"
    make_private_folder(trash)
    try:
        folder.rename(target)
    except OSError as error:
        if folder.exists():
            get_logger(__name__).error("not_put_away", folder=_shown(data_dir, folder), error=type(error).__name__)
        return False
    make_private(target)
    for changed in (kind, trash):
        flush_directory(changed)
    get_logger(__name__).info("put_away", folder=_shown(data_dir, folder), into=_shown(data_dir, target))
    return True


def waiting_since(data_dir: Path, before: datetime) -> list[Path]:
    """Return the folders that were put away before a moment. What has another name than ours is left alone."""
    named = [(path, _NAME.fullmatch(path.name)) for path in sorted((data_dir / FOLDER).glob("*"))]
    return [path for path, name in named if name is not None and _moment(name[1]) < before and not path.is_symlink()]


def remove(data_dir: Path, folder: Path) -> None:
    """Remove a folder of the trash for good. Several processes may be at it."""
    get_logger(__name__).info("removed_for_good", folder=_shown(data_dir, folder))
    shutil.rmtree(folder, ignore_errors=True)


def _moment(text: str) -> datetime:
    try:
        return datetime.strptime(text, _MOVED_AT).replace(tzinfo=UTC)
    except ValueError:  # somebody else's name for something: it has been put away just now
        return datetime.max.replace(tzinfo=UTC)


def _shown(data_dir: Path, folder: Path) -> str:
    return folder.relative_to(data_dir).as_posix()
