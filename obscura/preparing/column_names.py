"""What columns of tables and arrays are called that name pictures, classes and subjects."""

from __future__ import annotations

import re
from collections.abc import Sequence

# As CheXpert, NIH ChestX-ray14, HAM10000, ISIC, Kaggle and Hugging Face call them, in small letters and digits alone.
_FILE = (
    "file", "filename", "filepath", "path", "imagepath", "imgpath", "imagefile", "imagefilename", "image", "imageindex",
    "imageid", "imagename", "img", "imgname", "isicid", "dicomid", "idcode", "id", "key",
)  # fmt: skip
_LABEL = (
    "label", "labels", "class", "classname", "classlabel", "dx", "target", "findinglabels", "finding", "diagnosis",
    "category", "level",
)  # fmt: skip
_SUBJECT = re.compile(
    r"(?:(?:subject|patient(?:en)?|person|participant|proband|donor|volunteer|individual)s?"
    r"|(?:pat|case|fall)(?=id|no|nr|num|code))(?:ids?|no|nr|num|number|nummer|code|key|name|uid|identifier)?"
    r"|(?:id|name|nr)(?:subject|patient|person|participant)|pid|mrn|eid"
)


def known_files(columns: Sequence[str]) -> list[str]:
    """Which of these columns are called as those that name pictures are."""
    return _known(columns, _FILE)


def known_labels(columns: Sequence[str]) -> list[str]:
    """Which of these columns are called as those of classes are."""
    return _known(columns, _LABEL)


def known_subjects(columns: Sequence[str]) -> list[str]:
    """Which of these columns are called as those of subjects are."""
    return [column for column in columns if _SUBJECT.fullmatch(_plain(column))]


def is_subject_heading(cell: str) -> bool:
    """Whether the first line of a list of ids is its heading."""
    return bool(known_subjects([cell])) or _plain(cell) in ("id", "ids")


def _known(columns: Sequence[str], names: tuple[str, ...]) -> list[str]:
    return [column for column in columns if _plain(column) in names]


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]", "", column.casefold())
