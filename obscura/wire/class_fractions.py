"""Parse ratios of classes: `normal=2000,sick=20`, or numbers in the order of the labels."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

SHARE_MIN, SHARE_MAX = 1e-9, 1e12  # only the ratios matter
TEXT_MAX = 8000  # characters
AS_STATED = "stated"  # instead of numbers: use the ratios stated for the training
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
                f"there are {len(parts)} numbers for {len(classes)} classes: give one for each, in the order "
                f"{_listed(classes)}, or write NAME=NUMBER"
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
                f"{text[at : at + 60].strip()!r} is not NAME=NUMBER of a declared class; these are {_listed(classes)}. "
                "Or give a number for each, separated by commas"
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
