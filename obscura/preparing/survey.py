"""Examine every image once, count the conversions, and summarise them for the owner before anything is declared.

The size and colour of the result never depend on any single image.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np

from obscura.errors import NAMES_SHOWN_MAX, BrokenImages, ChoiceNeeded, PackingError, Unreadable, some
from obscura.preparing.choices import SIDE_USUAL, Choices, fits
from obscura.preparing.depth import Depths, Numbers
from obscura.preparing.images import Look, look
from obscura.preparing.package import Package
from obscura.preparing.sources import OTHER, Record, Source, Tally
from obscura.preparing.subjects import OPEN_BY_SUBJECT, require_plain_ids, require_told_apart, subject_key
from obscura.stopping import go_on
from obscura.wire.meanings import persons_in_file_names
from obscura.wire.texts import RULE, is_name
from obscura.wire.uploads import SubjectId

OnImage = Callable[[int], None]
SHOWN_MAX = 20_000  # number of file names kept for the search for people
LARGE_SHARE = 0.25  # share of all images; one subject rarely has more
CLASSES_SHOWN_MAX = 20
_quoted = partial(json.dumps, ensure_ascii=False)


@dataclass
class Survey:
    """Counts over all images. PRIVATE, except size and channels.

    Attributes:
        conversions: Number of images by conversion, in the order of the summary.
        labels, subjects: Number of images by class, and by subject.
        owners: For each subject id, as written in the source, the name of one image.
        contents, content_labels: For each image, its digest and the number of its class.
        broken: Unreadable images, with the reason.
        lost: Classes that have no image left, in order.
    """

    width: int
    height: int
    channels: int
    records: int = 0
    depths: Depths = field(default_factory=Depths)
    conversions: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    subjects: Counter[int | str] = field(default_factory=Counter)
    owners: dict[SubjectId, str] = field(default_factory=dict)
    contents: array[int] = field(default_factory=lambda: array("Q"))
    content_labels: array[int] = field(default_factory=lambda: array("L"))
    numbers: dict[str, int] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)

    def add(self, record: Record, seen: Look, *, join: bool) -> None:
        """Count one image; `join` is the option `join_subjects`."""
        size, wanted = (seen.width, seen.height), (self.width, self.height)
        scale = max(self.width / seen.width, self.height / seen.height)
        scales = (round(seen.width * scale), round(seen.height * scale)) == wanted  # to within a pixel
        into = f"{self.width} x {self.height}"
        for conversion, applies in (
            (f"cropped to {into}", size != wanted and not scales),
            (f"scaled to {into}", size != wanted and scales),
            ("put on a white background", seen.transparent),
            ("turned upright by their EXIF orientation", seen.turned),
            ("turned to colour" if self.channels == 3 else "turned to grey", seen.grey == (self.channels == 3)),
            ("brought to 8 bits", seen.depth is not None),
            ("turned from CMYK to RGB", seen.printed),
            ("cut down to their first frame", seen.animated),
            ("reduced from 4 channels to red, green and blue", seen.surplus),
        ):
            self.conversions[conversion] += applies
        self.records += 1
        if seen.depth is not None:
            self.depths.add(seen.depth)
        if not is_name(record.label):
            raise PackingError(f"{record.label!r} cannot be a class name: {RULE}; and no space at the start or end.")
        self.labels[record.label] += 1
        self.contents.append(seen.digest)
        self.content_labels.append(self.numbers.setdefault(record.label, len(self.numbers)))
        if len(self.shown) < SHOWN_MAX:
            self.shown.append(record.shown)
        if record.subject is not None:
            self.subjects[subject_key(record.subject, join=join)] += 1
            self.owners.setdefault(record.subject, record.shown)


def survey(source: Source, choices: Choices, tally: Tally, on_image: OnImage) -> Survey:
    width, height = choices.size or (SIDE_USUAL, SIDE_USUAL)
    if choices.size is None and source.shape is not None and fits(source.shape[1], source.shape[0]):
        height, width = source.shape[:2]
    grey = choices.grey
    if grey is None:  # a fixed default, which no image changes
        grey = source.grey or (source.shape is not None and source.shape[2] == 1)
    found = Survey(width, height, 1 if grey else 3)
    others = 0
    for record in source.walk(tally):
        go_on()
        try:
            content = record.read()
            seen = look(content)
        except Unreadable as error:
            found.lost[record.label] = None
            found.broken[record.shown] = str(error)
            continue
        others += not isinstance(content, Numbers)
        found.add(record, seen, join=choices.join_subjects)
        on_image(found.records)
    found.lost = dict.fromkeys(label for label in (*tally.lost, *found.lost) if not found.labels[label])

    count = len(found.broken)
    shown = [f"{name} ({why})" for name, why in islice(found.broken.items(), NAMES_SHOWN_MAX)]
    if found.lost and not choices.skip_broken:
        lost, example = list(found.lost), f", such as {shown[0]}" if shown else ""
        which = f"the class {lost[0]}" if len(lost) == 1 else f"{len(lost)} classes ({some(lost)})"
        raise BrokenImages(f"No image of {which} can be read, although there are files{example}", count, lost)
    if count and not choices.skip_broken:
        which = "One image cannot be read:" if count == 1 else f"{count:,} images cannot be read:"
        raise BrokenImages(f"{which} {some(shown, count)}", count, shown)
    if not found.records:
        raise PackingError("There is no image to send: check the folder, and the options that leave images out.")
    if source.grey and choices.grey is None and others:
        raise ChoiceNeeded(
            f"{others:,} of {found.records:,} images are in colour, or are not in DICOM files, so no fixed default "
            "fits. State whether the images are declared in colour or in grey (--grey).",
            ["--colour"],
        )
    found.depths.require(choices.scale, found.records - found.conversions["brought to 8 bits"])
    require_plain_ids(found.owners, join=choices.join_subjects)
    if not choices.join_subjects:
        require_told_apart(found.owners)
    return found


def summarise(survey: Survey, tally: Tally, title: str) -> str:
    """Return, for example, "1,400 images: 37 cropped to 64 x 64, 12 turned to grey; left out 3 other files"."""
    done = ", ".join(f"{count:,} {what}" for what, count in survey.conversions.items() if count)
    *first, last = [
        *([counted(len(survey.broken), "unreadable image")] if survey.broken else []),
        *(
            counted(count, what) + (f" ({', '.join(sorted(tally.suffixes)[:5])})" if what == OTHER else "")
            for what, count in tally.left_out.items()
            if count
        ),
    ] or [""]
    left_out = f"{', '.join(first)} and {last}" if first else last
    line = f"{title}: " if title else ""
    line += f"{counted(survey.records, 'image')}: {done or 'as they are'}"
    line += f"; left out {left_out}." if left_out else "."
    return " ".join([line, *(f"{count:,} {note}." for note, count in tally.notes.items() if count)])


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 other file", "1,400 images outside of the class folders"."""
    if count == 1:
        return f"1 {noun}"
    head = re.match(r"image|DICOM (?:file|object)", noun)
    return f"{count:,} {head[0]}s{noun[head.end() :]}" if head else f"{count:,} {noun}s"


def notes(found: Survey, source: Source, *, subjects: bool | None) -> Iterator[str]:
    """Yield remarks for the owner, before anything is declared. They never leave this machine."""
    if found.subjects and subjects:
        owned = source.owned or "The file"
        place, example = f"{owned[0].lower()}{owned[1:].rstrip(',')}", min(found.owners, key=str)
        yield f"{counted(len(found.subjects), 'subject')}; their ids, such as {str(example)!r}, come from {place}."
    contents, counts = np.unique(np.frombuffer(found.contents, np.uint64), return_counts=True)
    if found.records > len(contents):
        by_class = np.unique(
            np.stack([np.array(found.contents, np.uint64), np.array(found.content_labels, np.uint64)]), axis=1
        )
        several = int(np.sum(np.unique(by_class[0], return_counts=True)[1] > 1))
        yield (
            f"{int(counts[counts > 1].sum()):,} images occur more than once: they are {int(np.sum(counts > 1)):,} "
            f"different images, one of which occurs {int(counts.max()):,} times"
            + (f"; {several:,} occur in several classes, so their labels contradict each other." if several else ".")
            + " Each copy counts as a record, and an account that protects records protects each copy separately."
        )
    owner, most = next(iter(found.subjects.most_common(1)), ("", 0))
    others_mean = (found.records - most) / max(len(found.subjects) - 1, 1)
    if most > max(1, LARGE_SHARE * found.records, 2 * others_mean):
        yield (
            f"One subject ({owner}) has {most:,} of the {found.records:,} images. Check that it is one person, not a "
            "placeholder for unknown people."
        )
    if subjects is False:
        pair = persons_in_file_names(found.shown, classes=len(found.labels))
        named = f"File names suggest people with several images: {pair[0]} and {pair[1]}." if pair else ""
        signs = " ".join(filter(None, (named, source.grouped)))
        if signs:
            yield (
                f"{signs} Several images seem to show the same person, but this account protects each image by itself. "
                f"An account whose unit is the subject protects all images of a person together: {OPEN_BY_SUBJECT}"
            )
    if found.conversions["turned to colour"] == found.records:
        yield "All images are grey, but declared in colour. To declare grey images, which need less noise, add --grey."


def screen(package: Package, *, at_most: int, subjects_at_most: int | None, private: bool) -> Iterator[str]:
    """Yield the lines shown before a declaration: findings, facts that are not sent, and public metadata.

    `at_most` is the stated limit on records; for public images, their number.
    """
    yield package.summary
    counts = list(package.private_counts.items())
    shown = counts if len(counts) <= CLASSES_SHOWN_MAX else sorted(counts, key=lambda item: item[1])[:CLASSES_SHOWN_MAX]
    listed = ", ".join(f"{_quoted(name)} {count:,}" for name, count in shown)
    more = f", and {len(counts) - len(shown)} larger classes" if len(counts) > len(shown) else ""
    yield f"Stays here: images by class: {listed}{more}."
    yield from (f"Stays here: {note}" for note in package.private_notes)

    promise = f"at most {at_most} records"
    if not private:
        promise += ", which are public and therefore not protected"
    elif subjects_at_most is None:
        promise += ", each protected by itself"
    else:
        promise += f" of at most {subjects_at_most} subjects, each protected with all of its records"
        promise += " and recognised in other datasets" if package.recognised else ""
    yield (
        f"Declaring, and thereby making public: classes {', '.join(map(_quoted, package.classes))}; images "
        f"{package.height} x {package.width} x {package.channels} (height, width, channels: "
        f"{'grey' if package.channels == 1 else 'colour'}); {promise}."
    )
