"""The layout of class folders: `class/image.png`, or `class/subject/image.png`.

The upload reader and the command line share these rules. `service/dashboard/static/class_folders.js` repeats them in
the browser; `tests/service/dashboard/test_class_folders.py` runs both on the same names.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from obscura.wire.faults import Fault, Refused

_nfc = partial(unicodedata.normalize, "NFC")
_JUNK = frozenset(
    [
        *("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "system volume information"),
        *("$recycle.bin", "#recycle", "@eadir", "lost+found", "__pycache__"),
    ]
)


def is_junk(name: str) -> bool:
    """Return whether operating systems or editors create files or folders of this name by themselves."""
    return name.startswith((".", "~$")) or name.lower() in _JUNK


def is_junk_path(path: str) -> bool:
    """Return whether any part of a path, separated by "/", is junk."""
    return any(map(is_junk, path.split("/")))


def is_wrapper(folder: str, inside: Mapping[str, bool], classes: Collection[str], *, subjects: bool) -> bool:
    """Return whether a folder that is alone at its level wraps the class folders instead of being a class folder.

    Args:
        folder: Its name. It must not contain images directly.
        inside: Its subfolders by name; True for those that contain images directly.
        classes: The declared class names in Unicode form C; empty if none are declared.
        subjects: True if the folders inside class folders are subjects.
    """
    inner_are_classes = bool(inside) and {_nfc(name) for name in inside} <= set(classes)
    if _nfc(folder) in classes:
        if not inner_are_classes:
            return False
    elif inner_are_classes:
        return True
    return bool(inside) and not (subjects and any(inside.values()))


def class_paths(names: Iterable[str], classes: Collection[str], *, subjects: bool) -> list[list[str]]:
    """Return the paths of an archive's files as (class, file) or (class, subject, file), without wrapping folders.

    Args:
        names: Paths of files, separated by "/", without junk; not empty.
        classes, subjects: As for `is_wrapper`.

    Raises:
        Refused: LAYOUT, SUBJECTS_UNEXPECTED or SUBJECTS_ABSENT.
    """
    paths = [name.split("/") for name in names]
    depth = len(paths[0])
    if any(len(path) != depth for path in paths):
        raise Refused(Fault.LAYOUT)
    low, high = min(paths), max(paths)  # the common prefix of these two is the common prefix of all paths
    level = 0
    while level + 2 < depth and low[level] == high[level]:
        inner = {low[level + 1]} if low[level + 1] == high[level + 1] else {path[level + 1] for path in paths}
        inside = dict.fromkeys(inner, level + 3 == depth)
        if not is_wrapper(low[level], inside, classes, subjects=subjects):
            break
        level += 1
    paths, depth = [path[level:] for path in paths], depth - level
    if not subjects and depth == 3 and (not classes or {_nfc(path[0]) for path in paths} <= set(classes)):
        raise Refused(Fault.SUBJECTS_UNEXPECTED)
    if subjects and depth == 2:
        raise Refused(Fault.SUBJECTS_ABSENT)
    if depth != (3 if subjects else 2):
        raise Refused(Fault.LAYOUT)
    return paths


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort class names: as numbers if all are (2 before 10), otherwise by code point."""
    found = sorted(set(names))
    return tuple(sorted(found, key=int) if all(name.isascii() and name.isdecimal() for name in found) else found)
