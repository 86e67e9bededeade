"""Look at every image once, count the conversions, and summarise them for the owner before anything is declared.

The size and colour of the result never depend on any single image.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from obscura.preparing.choices import SIDE_USUAL, Choices, Size, fits
from obscura.preparing.depth import Depths
from obscura.preparing.errors import NAMES_SHOWN_MAX, BrokenImages, PackingError, Unreadable, some
from obscura.preparing.images import Look, has_shape, look
from obscura.preparing.package import Package
from obscura.preparing.sources import Record, Source, Tally
from obscura.preparing.subjects import OPEN_BY_SUBJECT, require_plain_ids, require_told_apart, subject_key
from obscura.preparing.trees import OTHER
from obscura.stopping import go_on
from obscura.wire.meanings import persons_in_file_names
from obscura.wire.names import RULE, is_name
from obscura.wire.subjects import SubjectId

OnImage = Callable[[int], None]
SHOWN_MAX = 20_000  # names of files that are kept to look at


@dataclass
class Survey:
    """Counts over all images. PRIVATE, except size and channels.

    `labels` counts images by class and `subjects` by subject; `owners` maps each id as written to one of its images.
    `contents` has a digest for each image, and `content_labels` the number of its class.
    """

    records: int = 0
    grey: int = 0
    colour: int = 0
    transparent: int = 0
    turned: int = 0
    printed: int = 0
    deep: int = 0
    animated: int = 0
    surplus: int = 0
    reshaped: int = 0
    scaled: int = 0
    broken: int = 0
    depths: Depths = field(default_factory=Depths)
    width: int = 0  # of the images of the dataset
    height: int = 0
    channels: int = 3
    labels: Counter[str] = field(default_factory=Counter)
    subjects: Counter[int | str] = field(default_factory=Counter)
    owners: dict[SubjectId, str] = field(default_factory=dict)
    contents: array[int] = field(default_factory=lambda: array("Q"))
    content_labels: array[int] = field(default_factory=lambda: array("L"))
    numbers: dict[str, int] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    broken_files: set[str] = field(default_factory=set)
    broken_shown: list[str] = field(default_factory=list)
    lost: dict[str, None] = field(default_factory=dict)  # classes of which no image is left, in order


def survey(source: Source, choices: Choices, tally: Tally, on_image: OnImage) -> Survey:
    """Survey every image, one at a time."""
    found = Survey()
    found.width, found.height = _size(source, choices)
    found.channels = 1 if choices.grey or (source.shape is not None and source.shape[2] == 1) else 3
    for record in source.walk(tally):
        go_on()
        try:
            seen = look(record.read())
        except Unreadable as error:
            found.broken += 1
            found.lost[record.label] = None
            found.broken_files.add(record.shown)
            if len(found.broken_shown) < NAMES_SHOWN_MAX:
                found.broken_shown.append(f"{record.shown} ({error})")
            continue
        _count(found, record, seen, choices)
        on_image(found.records)
    found.lost = dict.fromkeys(label for label in (*tally.lost, *found.lost) if not found.labels[label])
    _require(found, choices)
    require_plain_ids(found.owners, join=choices.join_subjects)
    if not choices.join_subjects:
        require_told_apart(found.owners)
    return found


def _size(source: Source, choices: Choices) -> Size:
    if choices.size is not None:
        return choices.size
    if source.shape is not None and fits(source.shape[1], source.shape[0]):
        return source.shape[1], source.shape[0]
    return SIDE_USUAL, SIDE_USUAL


def _count(found: Survey, record: Record, seen: Look, choices: Choices) -> None:
    if (seen.width, seen.height) != (found.width, found.height):
        if has_shape(seen.width, seen.height, (found.width, found.height)):
            found.scaled += 1
        else:
            found.reshaped += 1
    found.records += 1
    found.grey += seen.grey
    found.colour += not seen.grey
    found.transparent += seen.transparent
    found.turned += seen.turned
    found.printed += seen.printed
    found.deep += seen.deep
    if seen.depth is not None:
        found.depths.add(seen.depth)
    found.animated += seen.animated
    found.surplus += seen.surplus
    if not is_name(record.label):
        raise PackingError(f"{record.label!r} cannot be the name of a class: {RULE}; no space begins or ends it.")
    found.labels[record.label] += 1
    found.contents.append(seen.digest)
    found.content_labels.append(found.numbers.setdefault(record.label, len(found.numbers)))
    if len(found.shown) < SHOWN_MAX:
        found.shown.append(record.shown)
    if record.subject is not None:
        found.subjects[subject_key(record.subject, join=choices.join_subjects)] += 1
        found.owners.setdefault(record.subject, record.shown)


def _require(found: Survey, choices: Choices) -> None:
    if found.lost and not choices.skip_broken:
        lost, such = list(found.lost), f", such as {found.broken_shown[0]}" if found.broken_shown else ""
        which = f"the class {lost[0]}" if len(lost) == 1 else f"{len(lost)} classes ({some(lost, len(lost))})"
        why = f"No image of {which} can be read, though there are files{such}. Repair them, or leave them out."
        raise BrokenImages(why, ["--skip-broken"], found.broken, lost)
    if found.broken and not choices.skip_broken:
        which = "One image cannot be read:" if found.broken == 1 else f"{found.broken:,} images cannot be read:"
        why = f"{which} {some(found.broken_shown, found.broken)}. Repair them, or leave them out."
        raise BrokenImages(why, ["--skip-broken"], found.broken, found.broken_shown)
    if not found.records:
        raise PackingError("There is no image to send.")
    found.depths.require(choices.scale, found.records - found.deep)


LARGE_SHARE = 0.25  # of all images, which one subject seldom has


def summarise(survey: Survey, tally: Tally, title: str) -> str:
    """Return, for example, "1,400 images: 37 cropped to 64 x 64, 12 laid on white; left out 3 other files"."""
    done = ", ".join(_done(survey)) or "as they are"
    left_out = _listed(_left_out(survey, tally))
    head = f"{title}: " if title else ""
    first = f"{head}{counted(survey.records, 'image')}: {done}" + (f"; left out {left_out}" if left_out else "") + "."
    return " ".join([first, *(f"{count:,} {note}." for note, count in tally.notes.items() if count)])


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 other file", "1,400 images outside of the class folders"."""
    if count == 1:
        return f"1 {noun}"
    head = re.match(r"image|DICOM (?:file|object)", noun)
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
        yield counted(survey.broken, "unreadable image")
    for what, count in tally.left_out.items():
        if count:
            suffixes = f" ({', '.join(sorted(tally.suffixes)[:5])})" if what == OTHER else ""
            yield counted(count, what) + suffixes


def _listed(parts: Iterable[str]) -> str:
    *first, last = [*parts] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def notes(found: Survey, source: Source, *, subjects: bool | None) -> Iterator[str]:
    """Yield remarks for the owner, before anything is declared. Never leave this machine."""
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
            f"{int(counts[counts > 1].sum()):,} images occur more than once: {int(np.sum(counts > 1)):,} "
            f"different, one of them {int(counts.max()):,} times"
            + (f"; {several:,} in several classes, so their labels contradict each other." if several else ".")
            + " Each copy counts as a record, and an account that protects records protects each copy separately."
        )
    owner, most = next(iter(found.subjects.most_common(1)), ("", 0))
    others = (found.records - most) / max(len(found.subjects) - 1, 1)  # images of each, in the mean
    if most > max(1, LARGE_SHARE * found.records, 2 * others):
        yield (
            f"One subject ({owner}) has {most:,} of the {found.records:,} images. Check that it is one person, not a "
            "placeholder for unknown people."
        )
    pair = persons_in_file_names(found.shown, classes=len(found.labels)) if subjects is False else None
    signs = [f"File names suggest people with several images: {pair[0]} and {pair[1]}."] if pair else []
    if subjects is False and (signs := [*signs, *([source.grouped] if source.grouped else [])]):
        yield (
            f"{' '.join(signs)} Several images seem to be of one person, and this account protects each image by "
            f"itself. An account whose unit is the subject protects all images of a person together: {OPEN_BY_SUBJECT}"
        )


CLASSES_SHOWN_MAX = 20


def screen(package: Package, *, at_most: int, subjects_at_most: int | None, private: bool) -> Iterator[str]:
    """Yield the lines shown before a declaration: findings, what stays here, and what becomes public.

    Args:
        package: The prepared upload.
        at_most: Stated limit on records; for public images, their number.
        subjects_at_most: Stated limit on subjects, if the account protects them.
        private: Whether the images are private.
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
        promise += ", who are recognised in other datasets" if package.recognised else ""
    yield (
        f"Declaring, and thereby making public: classes {', '.join(map(_quoted, package.classes))}; images "
        f"{package.height} x {package.width} x {package.channels} (height, width, channels); {promise}."
    )


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _counts(package: Package) -> str:
    counts = list(package.private_counts.items())
    shown = counts if len(counts) <= CLASSES_SHOWN_MAX else sorted(counts, key=lambda item: item[1])[:CLASSES_SHOWN_MAX]
    listed = ", ".join(f"{_quoted(name)} {count:,}" for name, count in shown)
    more = len(counts) - len(shown)
    return f"images by class: {listed}" + (f", and {more} classes with more" if more else "")
