"""The one screen before a declaration: what was found, which stays here, and what becomes public for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator

from obscura.preparing.package import Package

CLASSES_SHOWN_MAX = 20


def screen(package: Package, *, at_most: int, subjects_at_most: int | None, private: bool) -> Iterator[str]:
    """Yield the lines of it.

    Args:
        package: what was made of the pictures.
        at_most: the stated bound on the records; of public pictures their number.
        subjects_at_most: the same on the subjects, where those are protected.
        private: whether anything is protected.
    """
    yield package.summary
    yield f"Stays here: {_counts(package)}."
    yield from (f"Stays here: {note}" for note in package.private_notes)
    bound = f"at most {at_most} records"
    if not private:
        promise = f"{bound}, which are public themselves: nothing protects them"
    elif subjects_at_most is None:
        promise = f"{bound}, each protected by itself"
    else:
        promise = f"{bound} of at most {subjects_at_most} subjects, each protected with all of its records"
        promise += ", who are known again in other datasets" if package.recognised else ""
    yield (
        f"Declaring, and thereby making public: classes {', '.join(map(_quoted, package.classes))}; images "
        f"{package.height} x {package.width} x {package.channels} (height, width, channels); {promise}."
    )


def _quoted(name: str) -> str:
    """Return a name in quotation marks, because it may hold a comma."""
    return json.dumps(name, ensure_ascii=False)


def _counts(package: Package) -> str:
    """How many pictures each class has, the smallest first where not all are shown."""
    counts = list(package.private_counts.items())
    shown = counts if len(counts) <= CLASSES_SHOWN_MAX else sorted(counts, key=lambda item: item[1])[:CLASSES_SHOWN_MAX]
    listed = ", ".join(f"{_quoted(name)} {count:,}" for name, count in shown)
    more = len(counts) - len(shown)
    return f"pictures by class: {listed}" + (f", and {more} classes with more" if more else "")
