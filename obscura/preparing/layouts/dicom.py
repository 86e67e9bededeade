"""Folders and zips with DICOM files, alone or among other pictures, with or without a suffix or a DICOMDIR.

Of the tags of a file, one says whose the picture is, and another may say its class. No other tag is looked at, but for
what the pixels mean. Subjects leave as numbers in random order.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
    if not any(_is_dicom(tree, path) for path in all_files(tree, base)):
        if choices.label_tag is not None or choices.subject_tag != SUBJECT_TAG_USUAL or choices.frames == "all":
            raise PackingError(
                f"--subject-tag, --label-tag and --frames are for DICOM files, and {tree.name} has none."
            )
        return None
    require_reader(choices.subject_tag, choices.label_tag)
    if subjects and choices.subject_tag == NO_TAG:
        raise PackingError("The account protects all records of a subject together: --subject-tag names the tag.")
    return Source("DICOM", lambda tally: _Walk(tree, base, choices, subjects, tally).records())


@dataclass
class _Walk:
    tree: Tree
    base: str
    choices: Choices
    subjects: bool
    tally: Tally
    owners: set[str] = field(default_factory=set)

    def records(self) -> Iterator[Record]:
        for path in all_files(self.tree, self.base, self.tally):
            if path.rpartition("/")[2].casefold() == _DIRECTORY_NAME:
                continue
            folder, _, inside = path.removeprefix(f"{self.base}/" if self.base else "").partition("/")
            label = unicodedata.normalize("NFC", folder) if inside else ""
            if _is_dicom(self.tree, path):
                yield from self._dicom(path, label)
            elif suffix_of(path) in picture_suffixes():
                yield from self._picture(path, label)
            else:
                self.tally.left_out[OTHER] += 1
                self.tally.suffixes.add(suffix_of(path) or path.rpartition("/")[2])

    def _picture(self, path: str, label: str) -> Iterator[Record]:
        if not label:
            self.tally.left_out[LOOSE] += 1
            return
        if self.subjects or self.choices.label_tag is not None:
            raise PackingError(
                f"{path} is a picture without tags among DICOM files: nothing says whose it is, or of which class. "
                "Push the DICOM files alone, or name a table of all pictures with --labels."
            )
        yield Record(label, None, path, partial(self.tree.read, path))

    def _dicom(self, path: str, label: str) -> Iterator[Record]:
        if not label and self.choices.label_tag is None:
            self.tally.left_out[LOOSE] += 1
            return
        try:
            dataset = open_dicom(self.tree.read(path))
            if not has_picture(dataset):
                self.tally.left_out[NO_PICTURE] += 1
                return
            if self.choices.label_tag is not None:
                label = unicodedata.normalize("NFC", _required(dataset, self.choices.label_tag))
            owner = _required(dataset, self.choices.subject_tag) if self.subjects else None
        except Unreadable as error:
            yield Record(label, None, path, partial(_fail, error))
            return
        if not self.subjects:
            self._require_first_of_its_owner(dataset)
        frames = frames_of(dataset)
        wanted = frames if self.choices.frames == "all" else 1
        if wanted > 1 and not self.subjects:
            raise PackingError(
                f"{path} has {frames:,} frames, which show one person, and the account protects single records: leave "
                "--frames all out, or use an account whose unit is the subject."
            )
        self.tally.notes[BURNT_IN] += wanted * (tag_text(dataset, "BurnedInAnnotation").upper() != "NO")
        self.tally.notes[FIRST_FRAMES] += wanted < frames
        for number in range(wanted):
            shown = f"{path} frame {number + 1}" if wanted > 1 else path
            yield Record(label, owner, shown, _frame(dataset, number))

    def _require_first_of_its_owner(self, dataset: Dataset) -> None:
        """Let a picture of a record account pass, unless there was one of the same person before."""
        tag = self.choices.subject_tag
        owner = "" if tag == NO_TAG else tag_text(dataset, tag)
        if owner and owner in self.owners:
            raise PackingError(
                f"Several pictures have the same {tag}, and the account protects single records. Use an account whose "
                f"unit is the subject; or, where {tag} does not say whose a picture is, name the tag that does with "
                f"--subject-tag, or say --subject-tag {NO_TAG} where no two pictures are of one person."
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


def _frame(dataset: Dataset, number: int) -> Callable[[], Content]:
    return lambda: read_frame(dataset, number)


def _fail(error: Unreadable) -> NoReturn:
    raise error
