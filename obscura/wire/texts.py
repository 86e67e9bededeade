"""Rules for texts that people write: names and reasons, ratios of classes, and the grids of a sweep.

Names and reasons stay on cards, on pages and in the log forever, and people base decisions on them. So two texts that
look alike must not differ by an invisible character, and no text may reverse the direction of surrounding text.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

NAME_CHARACTERS_MAX = 100
REASON_CHARACTERS_MAX = 500
# Zero-width (non-)joiners are part of the spelling in these blocks: Arabic to Myanmar, and Khmer to Mongolian.
_JOINERS = frozenset("\u200c\u200d")
_JOINED = ((0x0600, 0x109F), (0x1780, 0x18AF))
# Invisible, although Unicode counts them as letters, marks or symbols: fillers, variation selectors, a blank.
_BLANK = (
    (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164),
    (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
)  # fmt: skip
_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")  # every Unicode space except U+0020
_RULE = (  # the rule of `clean_text`, as part of a sentence
    "a text for people must have 1 to {} characters, without control characters, invisible characters and characters "
    "that change its direction; joiners (U+200C, U+200D) are allowed only between letters of a script that needs them"
)
RULE = _RULE.format(NAME_CHARACTERS_MAX)


def clean_text(text: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """Normalise text: Unicode form C, plain spaces, stripped.

    Raises:
        ValueError: It is empty or too long, or has an invisible character or one that changes the text's direction.
    """
    cleaned = normalize_text(text).strip(" ")
    if not 1 <= len(cleaned) <= characters_max or not is_readable(cleaned):
        raise ValueError(_RULE.format(characters_max))
    return cleaned


def normalize_text(text: str) -> str:
    """Return text in Unicode form C with plain spaces."""
    return unicodedata.normalize("NFC", _SPACES.sub(" ", text))


def is_readable(text: str) -> bool:
    """Return whether all characters are visible and keep the text's direction."""
    for place, character in enumerate(text):
        blank = any(first <= ord(character) <= last for first, last in _BLANK)
        beside = text[place - 1 : place] + text[place + 1 : place + 2]
        if character in _JOINERS and len(beside) == 2:
            joined = (any(first <= ord(side) <= last for first, last in _JOINED) for side in beside)
            if all(joined) and all(unicodedata.category(side)[0] in "LM" for side in beside):
                continue
        if blank or not character.isprintable():  # a control character, a direction mark, or a space other than U+0020
            return False
    return True


def is_name(text: str) -> bool:
    """Return whether `clean_text` would accept a text as a name and change nothing except its Unicode form."""
    try:
        return clean_text(text) == unicodedata.normalize("NFC", text)
    except ValueError:
        return False


# --- ratios of classes ------------------------------------------------------------------------------------------------

SHARE_MIN, SHARE_MAX = 1e-9, 1e12  # only the ratios matter
FRACTIONS_TEXT_MAX = 8000  # characters
AS_STATED = "stated"  # a value instead of numbers: use the ratios stated for the training
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_NAMED_MAX = 12  # classes that an error message lists


def read_class_fractions(text: str, classes: Sequence[str], *, every: bool = True) -> dict[str, float]:
    """Parse comma-separated `NAME=NUMBER` pairs, or one number per class in label order.

    Args:
        classes: Declared names, in label order.
        every: True if each class must have a number.

    Raises:
        ValueError: The text cannot be parsed, names an unknown class, repeats or omits a class, or has a number that is
            not above 0. The message states the expected form.
    """
    parts = text.split(",")
    if all(re.fullmatch(rf"\s*{_NUMBER}\s*", part) for part in parts):
        if len(parts) != len(classes):
            raise ValueError(
                f"there are {len(parts)} numbers for {len(classes)} classes: give one number for each class, in the "
                f"order {_listed(classes)}, or write NAME=NUMBER"
            )
        return checked_class_fractions(dict(zip(classes, map(float, parts), strict=True)), classes, every=every)
    known = "|".join(re.escape(name) for name in sorted(classes, key=len, reverse=True))
    pair = re.compile(rf"\s*({known})\s*=\s*({_NUMBER})\s*(?:,|$)")
    found: dict[str, float] = {}
    at = 0
    while at < len(text):
        read = pair.match(text, at)
        if read is None:
            raise ValueError(
                f"{text[at : at + 60].strip()!r} is not NAME=NUMBER of a declared class. The classes are "
                f"{_listed(classes)}. You can also give one number for each class, separated by commas"
            )
        if read[1] in found:
            raise ValueError(f"{read[1]} is named twice")
        found[read[1]] = float(read[2])
        at = read.end()
    return checked_class_fractions(found, classes, every=every)


def checked_class_fractions(shares: Mapping[str, float], classes: Sequence[str], *, every: bool) -> dict[str, float]:
    """Return positive numbers by class, in label order; raise ValueError like `read_class_fractions`."""
    other = [name for name in shares if name not in classes]
    if other:
        raise ValueError(f"there is no class {_listed(other)}; the classes are {_listed(classes)}")
    missing = [name for name in classes if name not in shares]
    if (every and missing) or not shares:
        raise ValueError(f"there is no number for {_listed(missing)}")
    for name, share in shares.items():
        if not (math.isfinite(share) and SHARE_MIN <= share <= SHARE_MAX):
            raise ValueError(f"{name}={share:g} is not a number from {SHARE_MIN:g} to {SHARE_MAX:g}")
    return {name: float(shares[name]) for name in classes if name in shares}


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


# --- grids of a sweep -------------------------------------------------------------------------------------------------

TRIALS_MIN, TRIALS_MAX = 2, 64  # of a sweep
EPSILON = "epsilon"  # varies like an option


class GridRefused(ValueError):
    """A grid cannot be parsed. `position` is its index; None if each grid is valid, but not their combination."""

    def __init__(self, said: str, position: int | None = None) -> None:
        super().__init__(said)
        self.position = position


def trials_of(grids: Sequence[str], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one trial per combination of values, in the form of a sweep request; the first grid varies slowest.

    Args:
        grids: `NAME=VALUE,VALUE` or `NAME=[JSON, ...]`, each for a different option or epsilon. A value that is not
            JSON is text.
        fixed: Options of every trial, except those that a grid varies.

    Raises:
        GridRefused: A grid has no name or values, a name occurs twice, or the trials are too few or too many.
    """
    values: dict[str, list[Any]] = {}
    for position, grid in enumerate(grids):
        name, _, text = (part.strip() for part in grid.partition("="))
        if not name:
            raise GridRefused("Write the name of an option before its values: NAME=VALUE,VALUE.", position)
        if not text:
            raise GridRefused(f"Write the values of {name} to try, separated by commas.", position)
        if name in values:
            raise GridRefused(f"{name} occurs twice: write all its values in one place.", position)
        listed = json_or_text(text)
        values[name] = listed if isinstance(listed, list) else [json_or_text(part) for part in text.split(",")]
    count = math.prod(map(len, values.values()))
    if not TRIALS_MIN <= count <= TRIALS_MAX:
        given = "1 trial" if count == 1 else f"{count:,} trials"
        raise GridRefused(f"These values give {given}; a sweep must have {TRIALS_MIN} to {TRIALS_MAX}.")
    trials = []
    for combination in itertools.product(*values.values()):
        options = {**fixed, **dict(zip(values, combination, strict=True))}
        own = {EPSILON: options.pop(EPSILON)} if EPSILON in values else {}
        trials.append({"options": options, **own})
    return trials


def json_or_text(text: str) -> Any:
    """Parse a value as JSON; return it as stripped text if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
