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
    r"(?:(?:subject|patient(?:en)?|person|participant|proband|donor|volunteer|individual|pseudonym|animal)s?"
    r"|(?:pat|case|fall|pseudo|anon|user)(?=id|no|nr|num|code))(?:ids?|no|nr|num|number|nummer|code|key|name|uid|identifier)?"
    r"|(?:id|name|nr)(?:subject|patient|person|participant)|pid|mrn|eid"
    r"|medicalrecord(?:no|nr|number)|ssn|nhs(?:no|number)"
)
# Of what a person has one or several of, and which shows in several pictures: HAM10000's lesion_id, StudyInstanceUID.
_SUFFIX = r"(?:ids?|no|nr|num|number|nummer|code|key|name|(?:instance)?uid|identifier)"
_GROUP = re.compile(
    r"(?:lesion|nodule|tumou?r|polyp|study|exam(?:ination)?|scan|series|session|visit|encounter|admission|accession"
    rf"|acquisition|video|clip|slide|biopsy|specimen|case|family){_SUFFIX}?"
    rf"|(?:eye|breast|knee|hip|hand|tooth|wound|mole|sample|volume|block|stack|group|hadm|stay|event|episode){_SUFFIX}"
)


def known_files(columns: Sequence[str]) -> list[str]:
    """Return the columns whose names are usual for file names of images."""
    return _known(columns, _FILE)


def known_labels(columns: Sequence[str]) -> list[str]:
    """Return the columns whose names are usual for classes."""
    return _known(columns, _LABEL)


def known_subjects(columns: Sequence[str]) -> list[str]:
    """Return the columns whose names are usual for subjects."""
    return [column for column in columns if _SUBJECT.fullmatch(_plain(column))]


def known_groups(columns: Sequence[str]) -> list[str]:
    """Return the columns whose names are usual for ids that several images of one person share, such as lesion_id."""
    return [column for column in columns if _GROUP.fullmatch(_plain(column))]


def is_subject_heading(cell: str) -> bool:
    """Whether the first line of a list of ids is its heading."""
    return bool(known_subjects([cell])) or _plain(cell) in ("id", "ids")


def _known(columns: Sequence[str], names: tuple[str, ...]) -> list[str]:
    return [column for column in columns if _plain(column) in names]


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]", "", column.casefold())
