"""Folders and zips with DICOM files, alone or among other pictures, with or without a suffix or a DICOMDIR.

Of the tags of a file, one says whose the picture is, and another may say its class. No other tag is looked at, but for
what the pixels mean. Subjects leave as numbers in random order.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from obscura.pictures.types import picture_suffixes
from obscura.preparing.choices import NO_TAG, SUBJECT_TAG_USUAL, Choices
from obscura.preparing.dicom import (
    HEAD_BYTES,
    begins_like_dicom,
    frames_of,
    has_picture,
    open_dicom,
    read_frame,
    require_reader,
    tag_text,
)
from obscura.preparing.errors import PackingError, Unreadable
from obscura.preparing.folders import LOOSE
from obscura.preparing.sources import Content, Record, Source, Tally
from obscura.preparing.subjects import OPEN_BY_SUBJECT
from obscura.preparing.trees import OTHER, Tree, all_files, begin, suffix_of

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

_DIRECTORY_NAME = "dicomdir"  # it names files of the folders, which are looked through anyway
SUFFIXES = frozenset({".dcm", ".dicom", ".ima"})
NO_PICTURE = "DICOM file without a picture"
BURNT_IN = (
    "may show text that is burnt into the pixels, for their files do not say that there is none (BurnedInAnnotation): "
    "look at some of them first"
)
FIRST_FRAMES = "are the first frame of a file that has several"


def find(tree: Tree, base: str, choices: Choices, *, subjects: bool) -> Source | None:
    """Recognise a folder in which there is at least one DICOM file, in any folder.

    Raises:
        MissingExtra: What reads DICOM is not installed.
        PackingError: There is no such tag, or one was named and there is no DICOM file.
    """
    if not is_in(tree, base):
        if choices.label_tag is not None or choices.subject_tag != SUBJECT_TAG_USUAL or choices.frames == "all":
            raise PackingError(
                f"--subject-tag, --label-tag and --frames are for DICOM files, and {tree.name} has none."
            )
        return None
    require_reader(choices.subject_tag, choices.label_tag)
    if subjects and choices.subject_tag == NO_TAG:
        raise PackingError("The account protects all records of a subject together: --subject-tag names the tag.")
    named = choices.label_tag is None  # classes are called as folders are
    return Source("DICOM", lambda tally: _walk(tree, base, _Reader(choices, subjects, tally)), folders=named)


def is_in(tree: Tree, base: str = "") -> bool:
    """Whether there is a DICOM file in a folder, or in one inside it."""
    return any(_is_dicom(tree, path) for path in all_files(tree, base))


def with_owners(source: Source, choices: Choices, *, subjects: bool) -> Source:
    """Where DICOM files come by another layout, as a table: keep to whose their tags say that they are.

    Raises:
        PackingError: Classes are to be those of a tag, and the layout names them.
    """
    if choices.label_tag is not None:
        raise PackingError(f"{source.title} says of which class each picture is: leave --label-tag out.")
    return replace(source, walk=lambda tally: _owned(source, _Reader(choices, subjects, tally)))


def _owned(source: Source, reader: _Reader) -> Iterator[Record]:
    for record in source.walk(reader.tally):
        try:
            content = record.read()
        except Unreadable as error:
            yield replace(record, read=partial(_fail, error))
            continue
        if isinstance(content, bytes) and begins_like_dicom(content):
            yield from reader.records(record, content)
        elif reader.subjects and record.subject is None:
            raise PackingError(f"Nothing says whose {record.shown} is: it is no DICOM file, and has no subject.")
        else:
            yield replace(record, read=partial(_given, content))


def _walk(tree: Tree, base: str, reader: _Reader) -> Iterator[Record]:
    tally, tagged = reader.tally, reader.choices.label_tag is not None
    for path in all_files(tree, base, tally):
        if path.rpartition("/")[2].casefold() == _DIRECTORY_NAME:
            continue
        folder, _, inside = path.removeprefix(f"{base}/" if base else "").partition("/")
        label = unicodedata.normalize("NFC", folder) if inside else ""
        record = Record(label, None, path, partial(tree.read, path))
        is_dicom = _is_dicom(tree, path)
        if not is_dicom and suffix_of(path) not in picture_suffixes():
            tally.left_out[OTHER] += 1
            tally.suffixes.add(suffix_of(path) or path.rpartition("/")[2])
        elif not label and not (is_dicom and tagged):
            tally.left_out[LOOSE] += 1
        elif is_dicom:
            try:
                yield from reader.records(record, tree.read(path))
            except Unreadable as error:
                yield replace(record, read=partial(_fail, error))
        elif reader.subjects or tagged:
            raise PackingError(
                f"{path} is a picture without tags among DICOM files: nothing says whose it is, or of which class. "
                "Push the DICOM files alone, or name a table of all pictures with --labels."
            )
        else:
            yield record


@dataclass
class _Reader:
    """Makes records of DICOM files, each with the subject and the class that its tags say."""

    choices: Choices
    subjects: bool
    tally: Tally
    owners: set[str] = field(default_factory=set)

    def records(self, record: Record, content: bytes) -> Iterator[Record]:
        try:
            dataset = open_dicom(content)
            if not has_picture(dataset):
                self.tally.left_out[NO_PICTURE] += 1
                return
            label, owner = record.label, record.subject
            if self.choices.label_tag is not None:
                label = unicodedata.normalize("NFC", _required(dataset, self.choices.label_tag))
            if self.subjects and owner is None:
                owner = _required(dataset, self.choices.subject_tag)
        except Unreadable as error:
            yield replace(record, read=partial(_fail, error))
            return
        if not self.subjects:
            self._require_first_of_its_owner(dataset)
        frames = frames_of(dataset)
        wanted = frames if self.choices.frames == "all" else 1
        if wanted > 1 and not self.subjects:
            raise PackingError(
                f"{record.shown} has {frames:,} frames, which show one person, and the account protects single "
                "records: leave --frames all out, or use an account whose unit is the subject."
            )
        self.tally.notes[BURNT_IN] += wanted * (tag_text(dataset, "BurnedInAnnotation").upper() != "NO")
        self.tally.notes[FIRST_FRAMES] += wanted < frames
        for number in range(wanted):
            shown = f"{record.shown} frame {number + 1}" if wanted > 1 else record.shown
            yield Record(label, owner, shown, partial(read_frame, dataset, number))

    def _require_first_of_its_owner(self, dataset: Dataset) -> None:
        """Let a picture of a record account pass, unless there was one of the same person before."""
        tag = self.choices.subject_tag
        owner = "" if tag == NO_TAG else tag_text(dataset, tag)
        if owner and owner in self.owners:
            raise PackingError(
                f"Several pictures have the same {tag}, and the account protects single records. Use an account whose "
                f"unit is the subject, and state --subjects-at-most: {OPEN_BY_SUBJECT}; or, where {tag} does not say "
                "whose a picture is, name the tag that does with --subject-tag, or say --subject-tag "
                f"{NO_TAG} where no two pictures are of one person."
            )
        self.owners.add(owner)


def _is_dicom(tree: Tree, path: str) -> bool:
    suffix = suffix_of(path)
    if suffix in SUFFIXES:
        return True
    return suffix not in picture_suffixes() and begins_like_dicom(begin(tree, path, HEAD_BYTES))


def _required(dataset: Dataset, tag: str) -> str:
    text = tag_text(dataset, tag)
    if not text:
        raise Unreadable(f"it has no {tag}")
    return text


def _given(content: Content) -> Content:
    return content


def _fail(error: Unreadable) -> NoReturn:
    raise error
