"""Read labels: integers or text, exactly as in the file. Numbers are never rounded.

A class without images would be published and generated, so the owner decides about gaps in the numbers.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from obscura.errors import ChoiceNeeded, PackingError, some
from obscura.preparing.choices import Choices
from obscura.wire.uploads import MISSING, without_marks

# Spellings of missing values. Many collections use "unknown" and "other" as classes.
_MISSING = MISSING.union(("unlabeled", "unlabelled", "no label", "not labeled", "not labelled"))
UNLABELLED = "image without a label"
# Separators of several labels in one text. A text is a list if one of its parts is a label elsewhere; with _LISTS, also
# if a part occurs in another list. Class names may contain _PHRASES, so with these every part must be a label.
_LISTS, _WORDS, _PHRASES = (r"\|", ";", ",", r"\n"), (r"\s(?:and|und|et)\s", r"\+", "&"), ("/", r"\swith\s", r"\s")


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
