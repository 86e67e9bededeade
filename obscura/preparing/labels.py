"""Read labels, integers or text, exactly as in the file, and ask the owner before they become public class names.

Numbers are never rounded. A class without images would be published and generated, so the owner decides about gaps in
the numbers. Names that look like people, or like parts of a collection, stop the push. `--classes` confirms that the
names are classes, and answers every question about names.
"""

from __future__ import annotations

import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from obscura.errors import ChoiceNeeded, PackingError, some
from obscura.preparing.choices import Choices
from obscura.wire.meanings import identifiers_in, is_part, is_scale, masks_among, why_personal
from obscura.wire.uploads import MISSING, without_marks

# Spellings of missing values. Many collections use "unknown" and "other" as classes.
_MISSING = MISSING.union(("unlabeled", "unlabelled", "no label", "not labeled", "not labelled"))
UNLABELLED = "image without a label"
# Separators of several labels in one text. A text is a list if one of its parts is a label elsewhere; with _LISTS, also
# if a part occurs in another list. Class names may contain _PHRASES, so with these every part must be a label.
_LISTS, _WORDS, _PHRASES = (r"\|", ";", ",", r"\n"), (r"\s(?:and|und|et)\s", r"\+", "&"), ("/", r"\swith\s", r"\s")
MANY_CLASSES, FEW_IMAGES = 8, 10  # a class with fewer images is lost in the noise of any training
CLASSES_WRITTEN_OUT_MAX = 12  # a longer list belongs in a file
_IS_CODE = re.compile(r"[A-Za-z]{1,3}[-_ ]?\d{2,7}")  # eight digits would be an ImageNet class
_IS_SIDE = re.compile(
    r"frontal|lateral|left|right|od|os|pa|ap|axial|coronal|sagittal|t[12]w?|flair|dwi|adc|swi|bold|anat|pre|post"
    r"|ct|mri?|us|dx|cr|dr|mg|pet|oct|fundus|x-?rays?",
    re.IGNORECASE,
)


def label_text(value: object) -> str:
    """Normalise a label for comparison: Unicode form C, stripped."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return unicodedata.normalize("NFC", text).strip()


def is_missing(label: str) -> bool:
    plain = without_marks(label)
    return not plain or plain in _MISSING or label == "\\N"


def list_separator(labels: Iterable[str]) -> re.Pattern[str] | None:
    """Return the pattern that separates several labels in one text, such as "Effusion, Mass"; or None."""
    texts, separators = {label_text(label).casefold() for label in labels}, list[str]()

    def split(text: str, pattern: str) -> set[str]:
        return {part.strip() for part in re.split(pattern, text) if part.strip()}

    for pattern in (*_LISTS, *_WORDS, *_PHRASES):
        lists = [parts for text in texts if len(parts := split(text, pattern)) > 1]
        seen = Counter(part for parts in lists for part in parts)
        everywhere = all if pattern in _PHRASES else any
        if any(
            everywhere(part in texts or (pattern in _LISTS and seen[part] > 1) for part in parts) for parts in lists
        ):
            separators.append(pattern)
            texts = {part for text in texts for part in split(text, pattern)}
    return re.compile("|".join(separators), re.IGNORECASE) if separators else None


def read_labels(
    values: np.ndarray[Any, Any] | Sequence[Any], count: int, whose: str, choices: Choices, names: tuple[str, ...] = ()
) -> tuple[tuple[str | None, ...], tuple[str, ...] | None]:
    """Return the class name of each image and, for numeric labels, all class names in label order.

    Negative numbers and words such as "nan" are missing labels, unless `choices.classes` contains the word. The class
    name of an image that is left out is None.

    Args:
        values: (count,) or (count, 1) integers or text.
        names: Class names in label order, if the file has them.
        whose: Name of the file, for messages.
    """
    labels = np.asarray(values)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (count,):
        raise PackingError(f"{whose}: give one label for each of the {count:,} images, not an array of {labels.shape}.")
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels):
        labels = labels.astype(str)
    if labels.dtype.kind not in "iuUS":
        raise PackingError(
            f"{whose}: labels must be integers or names, not {labels.dtype}, and are never rounded. If they are whole "
            "numbers, convert them with .astype(int). If they are measurements, make classes of them."
        )
    read = tuple(map(label_text, labels.tolist()) if labels.dtype.kind in "US" else labels.tolist())
    absent = {
        label
        for label in set(read)
        if (label < 0 if isinstance(label, int) else is_missing(label) and label not in (choices.classes or ()))
    }
    if absent and not choices.skip_unlabelled:
        raise ChoiceNeeded(
            f"{whose}: labels are names, or numbers from 0, but {sorted(map(str, absent))[0]!r} looks like a missing "
            "label. If it is a class, name all classes with --classes. Otherwise, leave these images out.",
            ["--skip-unlabelled"],
        )
    numbers = {label for label in read if isinstance(label, int)} - absent
    if not numbers:
        return tuple(None if label in absent else str(label) for label in read), None
    if names and max(numbers) >= len(names):
        raise PackingError(f"{whose} names {len(names)} classes, but some labels have higher numbers.")
    used = class_numbers(numbers, choices.classes, used_only=choices.used_classes, known=len(names))
    called = {number: names[number] if names else str(number) for number in used}
    return tuple(called.get(label) for label in read), tuple(called.values())


def class_numbers(
    used: Iterable[int], stated: tuple[str, ...] | None, *, used_only: bool, known: int = 0
) -> tuple[int, ...]:
    """Return the numeric labels that are classes, in order: 0 to the largest, or only those that occur.

    `stated` has the class names stated by the owner; `known` is the number of class names in the file.
    """
    numbers = sorted(set(used))
    last = max(numbers[-1] if numbers else -1, known - 1)
    if stated is not None:
        require_named(len(numbers) if used_only else last + 1, stated)
    if used_only:
        return tuple(numbers)
    if stated is None and last >= len(numbers):
        gap = next(number for number in range(last + 1) if number >= len(numbers) or numbers[number] != number)
        raise ChoiceNeeded(
            f"No image has the label {gap}, but labels go up to {last}: {last + 1 - len(numbers):,} of these numbers "
            "have no image. A class without images would also become public, and its generated images would be noise. "
            "To keep such classes, name all classes with --classes, starting with label 0. Otherwise, use only the "
            "labels that occur.",
            ["--used-classes"],
        )
    return tuple(range(last + 1))


def require_named(count: int, stated: tuple[str, ...]) -> None:
    if count > len(stated):
        raise PackingError(
            f"--classes names {len(stated)} classes, but there are more: name every possible class, in label order."
        )


def require_stated(found: Iterable[str], stated: tuple[str, ...] | None) -> None:
    more = [] if stated is None else sorted(set(found) - set(stated))
    if more:
        raise PackingError(
            f"--classes lacks classes of the data: {some(more)}. Name these classes, or leave their images out."
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
