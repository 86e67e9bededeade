"""Rules for uploads, shared by the client, which prepares images, and the service, which receives them.

The rules define the reasons for rejecting an upload, when two subject ids are the same, and the layout of class
folders: `class/image.png`, or `class/subject/image.png`. `service.ingest.faults` has the message for each reason.
`service/dashboard/static/class_folders.js` repeats the layout in the browser;
`tests/service/dashboard/test_class_folders.py` runs both on the same names.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from functools import partial


class Fault(StrEnum):
    """Reason for rejecting an upload."""

    EMPTY = "empty"
    TOO_LARGE = "too_large"
    INCOMPLETE = "incomplete"
    ARCHIVE_BROKEN = "archive_broken"
    ARCHIVE_ENTRIES = "archive_entries"
    ARCHIVE_SIZE = "archive_size"
    ARCHIVE_RATIO = "archive_ratio"
    ARCHIVE_DUPLICATE = "archive_duplicate"
    ARCHIVE_OVERLAP = "archive_overlap"
    ARCHIVE_PATH = "archive_path"
    ARCHIVE_SPECIAL = "archive_special"
    ARCHIVE_NESTED = "archive_nested"
    ARCHIVE_ENCRYPTED = "archive_encrypted"
    ARCHIVE_METHOD = "archive_method"
    LAYOUT = "layout"
    CLASS_UNDECLARED = "class_undeclared"
    RECORDS_TOO_MANY = "records_too_many"
    IMAGE_FORMAT = "image_format"
    IMAGE_PIXELS = "image_pixels"
    IMAGE_SIZE = "image_size"
    IMAGE_FRAMES = "image_frames"
    IMAGE_SCANS = "image_scans"
    IMAGE_PARTS = "image_parts"
    IMAGE_MODE = "image_mode"
    IMAGE_TRANSPARENT = "image_transparent"
    IMAGE_BROKEN = "image_broken"
    ARRAY_MEMBERS = "array_members"
    ARRAY_HEADER = "array_header"
    ARRAY_SHAPE = "array_shape"
    ARRAY_TYPE = "array_type"
    ARRAY_LENGTH = "array_length"
    IDX_MEMBERS = "idx_members"
    IDX_MAGIC = "idx_magic"
    IDX_SHAPE = "idx_shape"
    IDX_LENGTH = "idx_length"
    COUNTS_DIFFER = "counts_differ"
    LABEL_RANGE = "label_range"
    SUBJECTS_ABSENT = "subjects_absent"
    SUBJECTS_UNEXPECTED = "subjects_unexpected"
    SUBJECTS_TOO_MANY = "subjects_too_many"
    SUBJECT_BLANK = "subject_blank"
    SUBJECT_TYPE = "subject_type"
    TOO_COSTLY = "too_costly"
    STORAGE = "storage"
    INTERNAL = "internal"


class Refused(Exception):
    """The upload is rejected. Has no message text, because an exception must not carry private content."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.value)
        self.fault = fault


# --- subject ids ------------------------------------------------------------------------------------------------------

SubjectId = int | str | bytes
KEY_CHECK_CHARACTERS = 16  # hexadecimal digits in the check value of a subjects key
# Missing values in tables, without punctuation: (null), N/A and n.a. become "null" and "n a".
MISSING = frozenset(
    ["nan", "nat", "none", "null", "nil", "na", "n a", "missing", "undefined", "not available", "tbd", "todo"]
)
# Placeholders for a missing or removed id.
_NOBODY = MISSING.union(
    ("unspecified", "blank", "empty", "unknown", "unk", "unbekannt", "inconnu", "desconocido", "noid", "noname"),
    ("dummy", "default", "placeholder", "test", "anonymous", "anonym", "anon", "anonymised", "anonymized"),
    ("deidentified", "de identified", "redacted", "removed"),
    ("not known", "not provided", "not applicable", "nicht bekannt", "no id"),
)
_BESIDE = frozenset(["patient", "patients", "subject", "person", "id", "name"])  # ignored next to such a placeholder
_NO_NUMBER = re.compile(r"-\d+(?:\.0+)?|x{2,}|\\n|#(?:ref|value|name|null|num|div/0)[!?]", re.IGNORECASE)


def canonical(private_id: SubjectId) -> int | str:
    """Return the canonical form of a subject id: two ids with the same form are one subject.

    Text is stripped and compared in Unicode form C; bytes are decoded as UTF-8.

    Raises:
        Refused: The id is a placeholder: a negative number, text without letters or digits, or a word such as NA.
    """
    if isinstance(private_id, int):
        if private_id < 0:
            raise Refused(Fault.SUBJECT_BLANK)
        return private_id
    text = private_id.decode("utf-8", "surrogateescape") if isinstance(private_id, bytes) else private_id
    text = unicodedata.normalize("NFC", text.strip())
    if _NO_NUMBER.fullmatch(text) or is_nobody(text):
        raise Refused(Fault.SUBJECT_BLANK)
    return text


def is_nobody(text: str) -> bool:
    """Return whether a text is a placeholder: no letters or digits, or a word for a missing value."""
    plain = without_marks(text)
    words = set(plain.split()) - _BESIDE
    return not plain or plain in _NOBODY or (bool(words) and words <= _NOBODY)


def without_marks(text: str) -> str:
    """Return the words of a text in lower case, separated by single spaces, without punctuation."""
    return re.sub(r"[\W_]+", " ", text.casefold()).strip()


# --- class folders ----------------------------------------------------------------------------------------------------

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
    """Return whether a folder, alone at its level, is a wrapper: it contains the class folders and is no class itself.

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
    """Sort class names: by value if all are whole numbers (2 before 10), otherwise by code point."""
    found = sorted(set(names))
    return tuple(sorted(found, key=int) if all(name.isascii() and name.isdecimal() for name in found) else found)
