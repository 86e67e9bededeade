"""The one line that says what was done to how many pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from obscura.preparing.sources import Source, Tally
from obscura.preparing.subjects import OPEN_BY_SUBJECT
from obscura.preparing.survey import Survey
from obscura.preparing.trees import OTHER
from obscura.wire.meanings import persons_in_file_names

LARGE_SHARE = 0.25  # of all pictures, which one subject seldom has


def summarise(survey: Survey, tally: Tally, title: str) -> str:
    """Return, for example, "1,400 pictures: 37 cropped to 64 x 64, 12 laid on white; left out 3 other files"."""
    done = ", ".join(_done(survey)) or "as they are"
    left_out = _listed(_left_out(survey, tally))
    head = f"{title}: " if title else ""
    first = f"{head}{counted(survey.records, 'picture')}: {done}" + (f"; left out {left_out}" if left_out else "") + "."
    return " ".join([first, *(f"{count:,} {note}." for note, count in tally.notes.items() if count)])


def counted(count: int, noun: str) -> str:
    """A number and what it counts: "1 other file", "1,400 pictures outside of the class folders"."""
    if count == 1:
        return f"1 {noun}"
    head = re.match(r"picture|DICOM (?:file|object)", noun)
    return f"{count:,} {head[0]}s{noun[head.end() :]}" if head else f"{count:,} {noun}s"


def _done(survey: Survey) -> Iterator[str]:
    size = f"{survey.width} x {survey.height}"
    into = "colour" if survey.channels == 3 else "grey"
    parts = (
        (survey.reshaped, f"cropped to {size}"),
        (survey.scaled, f"scaled to {size}"),
        (survey.transparent, "laid on white"),
        (survey.turned, "turned upright by their EXIF"),
        (survey.colour if into == "grey" else survey.grey, f"turned to {into}"),
        (survey.deep, "brought to 8 bits"),
        (survey.printed, "turned from CMYK to RGB"),
        (survey.animated, "cut down to their first frame"),
        (survey.surplus, "cut down to red, green and blue, of 4 channels"),
    )
    yield from (f"{count:,} {what}" for count, what in parts if count)


def _left_out(survey: Survey, tally: Tally) -> Iterator[str]:
    if survey.broken:
        yield counted(survey.broken, "unreadable picture")
    for what, count in tally.left_out.items():
        if count:
            suffixes = f" ({', '.join(sorted(tally.suffixes)[:5])})" if what == OTHER else ""
            yield counted(count, what) + suffixes


def _listed(parts: Iterable[str]) -> str:
    *first, last = [*parts] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def notes(found: Survey, source: Source, *, subjects: bool | None) -> Iterator[str]:
    """Yield what their owner should know about pictures before they are declared. Stays on this machine."""
    if found.subjects and subjects:
        owned = source.owned or "The file"
        place, example = f"{owned[0].lower()}{owned[1:].rstrip(',')}", min(found.owners, key=str)
        yield f"{counted(len(found.subjects), 'subject')}; their ids come from {place}, such as {str(example)!r}."
    contents, counts = np.unique(np.frombuffer(found.contents, np.uint64), return_counts=True)
    if found.records > len(contents):
        by_class = np.unique(
            np.stack([np.array(found.contents, np.uint64), np.array(found.content_labels, np.uint64)]), axis=1
        )
        several = int(np.sum(np.unique(by_class[0], return_counts=True)[1] > 1))
        yield (
            f"{int(counts[counts > 1].sum()):,} pictures are there more than once: {int(np.sum(counts > 1)):,} "
            f"different, one of them {int(counts.max()):,} times"
            + (f"; {several:,} in several classes, so that labels contradict each other." if several else ".")
            + " Each copy counts as a record, and where records are protected, each only by itself."
        )
    owner, most = next(iter(found.subjects.most_common(1)), ("", 0))
    others = (found.records - most) / max(len(found.subjects) - 1, 1)  # pictures of each, in the mean
    if most > max(1, LARGE_SHARE * found.records, 2 * others):
        yield (
            f"One subject ({owner}) has {most:,} of the {found.records:,} pictures. See that it is one person, and no "
            "word for those who are not known."
        )
    pair = persons_in_file_names(found.shown, classes=len(found.labels)) if subjects is False else None
    signs = [f"Files are named after persons who have several pictures: {pair[0]} and {pair[1]}."] if pair else []
    if subjects is False and (signs := [*signs, *([source.grouped] if source.grouped else [])]):
        yield (
            f"{' '.join(signs)} Several images seem to be of one person, and this account protects each image by "
            f"itself. An account whose unit is the subject protects all images of a person together: {OPEN_BY_SUBJECT}"
        )
