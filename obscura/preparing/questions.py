"""Ask the owner before folder names or table labels become public class names.

Names that look like people, or like parts of a collection, stop the push. `--classes` confirms that the names are
classes, and answers every question in this module.
"""

from __future__ import annotations

import re
import statistics
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

from obscura.errors import ChoiceNeeded, PackingError, some
from obscura.preparing.labels import is_missing, list_separator
from obscura.wire.meanings import identifiers_in, is_part, is_scale, masks_among, why_personal

MANY_CLASSES, FEW_IMAGES = 8, 10  # a class with fewer images is lost in the noise of any training
CLASSES_WRITTEN_OUT_MAX = 12  # a longer list belongs in a file
_IS_CODE = re.compile(r"[A-Za-z]{1,3}[-_ ]?\d{2,7}")  # eight digits would be an ImageNet class
_IS_SIDE = re.compile(
    r"frontal|lateral|left|right|od|os|pa|ap|axial|coronal|sagittal|t[12]w?|flair|dwi|adc|swi|bold|anat|pre|post"
    r"|ct|mri?|us|dx|cr|dr|mg|pet|oct|fundus|x-?rays?",
    re.IGNORECASE,
)


def ask_about_people(names: Iterable[str]) -> None:
    """Raise if class names look like people. The suggested flag renames the classes."""
    personal = [(name, why) for name in names if (why := why_personal(name)) is not None]
    if personal:
        shown = some([f"{name} ({why})" for name, why in personal])
        raise ChoiceNeeded(
            f"Class names become public forever, and these look like people: {shown}. If each is a person, use an "
            "account whose unit is the subject. Then put these folders inside class folders (class/person/image.png), "
            "or write a table (--labels). If they are classes, state them with --classes, or rename them by a table "
            "with the columns old and new.",
            ["--rename-classes classes.csv"],
        )


def ask_about_classes(counts: Mapping[str, int], *, folders: bool, combinations: bool = False) -> None:
    """Raise if class names look like people, parts of a dataset, duplicates or lists of labels. Suggest --classes.

    `counts` has the number of images by class name. With `folders`, the names are folder names, which are less reliable
    than labels. With `combinations`, lists of labels are intended.
    """
    names = sorted(counts)
    separator = None if combinations else list_separator(names)
    several = [repr(name) for name in names if separator is not None and separator.search(name)]
    if several:
        raise _ask(f"These look like several labels of one image, not like one class: {some(several)}", names)
    ask_about_people(names)
    if folders and len(names) == 1:
        raise _ask(f"There is only one folder, {names[0]}, so there would be only one class", names)
    masks = masks_among(names) if folders else []
    if masks:
        raise _ask(
            f"These folders seem to contain masks of images in other folders, not a class: {some(masks)}. Push a "
            "folder without masks that has one folder for each class",
            names,
        )
    parts = [name for name in names if folders and is_part(name)]
    blank = [name for name in names if is_missing(name)]
    for suspects, what in (
        (parts, "look like parts or copies of a dataset, not like classes"),
        (blank, "look like missing labels, not like classes"),
        *((group, "would be separate classes, but look like one") for group in look_alike(names)),
    ):
        if suspects:
            raise _ask(f"These {what}: {some(suspects)}", names)
    few = statistics.median(counts.values()) <= FEW_IMAGES
    codes = len(names) > 1 and all(map(_IS_CODE.fullmatch, names)) and not all(name.endswith("0") for name in names)
    coded = names if codes else identifiers_in(names, few=few)
    if folders and coded:
        raise _ask(
            f"These look like numbers of people or records, not like classes: {some(coded)}. If each is a person, put "
            "the folders inside class folders (class/person/image.png), or write a table (--labels)",
            names,
        )
    numbers = sorted(map(int, names)) if folders and all(name.isdecimal() for name in names) else []
    if numbers and (numbers[0] > 1 or numbers != list(range(numbers[0], numbers[0] + len(numbers)))):
        raise _ask(f"These numbers are not consecutive, so they may be numbers of people: {some(names)}", names)
    if len(names) >= MANY_CLASSES and few and not is_scale(names):
        raise _ask(
            f"There are {len(names)} classes, and most have {FEW_IMAGES} images or fewer. Perhaps each class "
            f"is a person: {some(names)}",
            names,
        )


def ask_about_owners(owners: Mapping[str, Collection[str]]) -> None:
    """Raise if the top-level folders seem to be people: the folders inside look like parts (train) or sides (left)."""
    every = set().union(*owners.values())
    shown = some(sorted(every))
    parts = all(is_part(name) or _IS_SIDE.fullmatch(name) for name in every)
    alike = len(every) < len(owners) and all(set(inner) == every for inner in owners.values())
    if every and (parts or alike):
        tops = some(sorted(owners))
        raise PackingError(
            f"The folders inside the top-level folders ({tops}) are {'the same' if alike else 'parts or sides'}: "
            f"{shown}. So the top-level folders seem to be people, who would not be protected. Put the folders of "
            "people inside class folders (class/person/image.png), or write a table with the columns file, label and "
            "subject (--labels)."
        )


def look_alike(names: Iterable[str]) -> list[list[str]]:
    """Return groups of texts that people would read as the same: Normal and normal, 1 and 1.0, P1 and p1."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(folded(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def folded(text: str) -> str:
    """Reduce a text so that spellings that people read as the same become equal.

    Ignores case, Unicode form, punctuation, spaces, leading zeros and zero decimals.
    """
    whole = re.sub(r"(?<=\d)\.0+$", "", unicodedata.normalize("NFKC", text).casefold().strip())
    plain = " ".join(re.findall(r"[^\W_]+", whole)) or whole
    number = re.fullmatch(r"([a-z]*) ?0*(\d+)", plain)
    return f"{number[1]}{number[2]}" if number else plain


def classes_flag(names: Sequence[str]) -> str:
    """Return the `--classes` flag for these names: a list, or a file if there are many."""
    listed = ",".join(names)
    short = len(names) <= CLASSES_WRITTEN_OUT_MAX and not any("," in name for name in names)
    return f"--classes {listed}" if short else "--classes classes.txt"


def _ask(why: str, names: Sequence[str]) -> ChoiceNeeded:
    flag = classes_flag(names)
    how = " (a file with one name on each line)" if flag.endswith(".txt") else ""
    why = f"{why}. Class names become public forever. If these are the classes, state them{how}."
    return ChoiceNeeded(why, [flag])
