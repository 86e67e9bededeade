"""Folders and zips with DICOM files, alone or among other images. Suffixes and a DICOMDIR are optional.

One tag of a file contains the subject, and another may contain the class. No other tag is read, except those that
describe the pixels. Subjects are sent as numbers in random order.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from obscura.errors import ChoiceNeeded, PackingError, Unreadable, some
from obscura.image_types import image_suffixes
from obscura.preparing import dicom
from obscura.preparing.choices import NO_TAG, SUBJECT_TAG_USUAL, Choices
from obscura.preparing.folders import LOOSE, base_of
from obscura.preparing.questions import classes_flag
from obscura.preparing.sources import Record, Source, Tally, fail
from obscura.preparing.subjects import by_subject
from obscura.preparing.trees import Tree, all_files, begin, below, folders, suffix_of

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

_DIRECTORY_NAME = "dicomdir"  # an index of files that are searched anyway
SUFFIXES = frozenset({".dcm", ".dicom", ".ima"})
BURNT_IN = (
    "of the images may show text burnt into the pixels, because their files do not rule it out (BurnedInAnnotation): "
    "look at some of them first"
)
SAME_STUDY = (
    "of the images have no subject, but share a StudyInstanceUID with another image, so they seem to show one person: "
    "use an account whose unit is the subject"
)


def find_tree(tree: Tree, choices: Choices, *, subjects: bool | None) -> Source | None:
    if not is_in(tree):
        if choices.label_tag is not None or choices.subject_tag != SUBJECT_TAG_USUAL or choices.frames == "all":
            raise PackingError(
                f"--subject-tag, --label-tag and --frames are for DICOM files, but {tree.name} has none."
            )
        return None
    dicom.require_reader(choices.subject_tag, choices.label_tag)
    if subjects and choices.subject_tag == NO_TAG:
        raise PackingError("The account protects subjects, so --subject-tag must name a tag, not none.")
    named = choices.label_tag is None  # folder names are the classes

    def holds(at: str) -> bool:
        names = [name for name in tree.files(at) if name.casefold() != _DIRECTORY_NAME]
        return any(suffix_of(name) in image_suffixes() or _is_dicom(tree, below(at, name)) for name in names)

    base, note = base_of(tree, choices, subjects=False, holds=holds) if named else ("", "")
    if named and not folders(tree, base):
        raise ChoiceNeeded(
            f"The DICOM files of {tree.name} are not in class folders. Put them into one folder for each class, name a "
            "table of their classes (--labels), or name the tag whose value is the class.",
            ["--label-tag NAME"],
        )
    title = f"{note}, DICOM" if note else "DICOM"
    owned = f"The tag {choices.subject_tag}" if subjects else None

    def walk(tally: Tally) -> Iterator[Record]:
        return _walk(tree, base, _Reader(choices, subjects, tally))

    return Source(title, walk, grey=True, folders=named, owned=owned)


def is_in(tree: Tree) -> bool:
    return any(_is_dicom(tree, path) for path in all_files(tree))


def with_owners(source: Source, choices: Choices, *, subjects: bool | None) -> Source:
    """Add subjects from DICOM tags to images that another layout, such as a table, lists."""
    if choices.label_tag is not None:
        raise PackingError(f"A table defines the classes ({source.title}): leave --label-tag out.")
    owned = source.owned or (f"The tag {choices.subject_tag}" if subjects else None)

    def walk(tally: Tally) -> Iterator[Record]:
        reader = _Reader(choices, subjects, tally)
        for record in source.walk(tally):
            try:
                content = record.read()
            except Unreadable as error:
                yield replace(record, read=partial(fail, error))
                continue
            if isinstance(content, bytes) and dicom.begins_like_dicom(content):
                yield from reader.records(record, partial(bytes, content))
            elif subjects and record.subject is None:
                raise PackingError(f"{record.shown} is not a DICOM file, and the table does not name its subject.")
            else:
                yield replace(record, read=lambda content=content: content)  # type: ignore[misc]

    return replace(source, walk=walk, grey=True, owned=owned)


def _walk(tree: Tree, base: str, reader: _Reader) -> Iterator[Record]:
    tally, tagged = reader.tally, reader.choices.label_tag is not None
    others: dict[str, None] = {}  # class folders with files that are not images
    for path in all_files(tree, base, tally):
        if path.rpartition("/")[2].casefold() == _DIRECTORY_NAME:
            continue
        folder, _, inside = path.removeprefix(f"{base}/" if base else "").partition("/")
        label = unicodedata.normalize("NFC", folder) if inside else ""
        record = Record(label, None, path, partial(tree.read, path))
        is_dicom = _is_dicom(tree, path)
        if not is_dicom and suffix_of(path) not in image_suffixes():
            tally.leave_out(path)
            others |= {label: None} if label else {}
        elif not label and not (is_dicom and tagged):
            tally.left_out[LOOSE] += 1
        elif is_dicom:
            yield from reader.records(record, partial(tree.read, path))
        elif reader.subjects or tagged:
            raise PackingError(
                f"{path} is not a DICOM file, so it has no tags for its subject and class. Push only the DICOM files, "
                "or name a table of all images with --labels."
            )
        else:
            reader.private_owners[label].add(None)
            yield record
    if not tagged:
        owners = reader.private_owners
        tally.lost += [name for name in (*others, *reader.private_reports) if name not in owners]
        every = [owner for each in owners.values() for owner in each]
        alone = len(every) == len(owners) > 1 and len(set(every)) == len(every) and None not in every
        if alone and reader.choices.classes is None and reader.choices.rename_classes is None:
            names = sorted(owners)
            raise ChoiceNeeded(
                f"According to {reader.choices.subject_tag}, every top-level folder contains images of only one "
                f"person, so these folders seem to be people: {some(names)}. Class names become public forever. State "
                "the classes in a table (--labels) or by a tag (--label-tag); or, if these are classes, state them.",
                [classes_flag(names)],
            )


@dataclass
class _Reader:
    choices: Choices
    subjects: bool | None
    tally: Tally
    private_owners: defaultdict[str, set[str | None]] = field(default_factory=lambda: defaultdict(set))  # by class
    private_studies: set[str] = field(default_factory=set)
    private_reports: dict[str, None] = field(default_factory=dict)  # classes with files without an image

    def records(self, record: Record, read: Callable[[], bytes]) -> Iterator[Record]:
        try:
            dataset = dicom.open_dicom(read())
            describing = dicom.describes_images(dataset)
            if describing or not dicom.has_pixels(dataset):
                if not describing and ("SOPClassUID" not in dataset or "Rows" in dataset):
                    raise Unreadable("it is damaged: its pixels are missing")
                no_image = "DICOM object without an image (segmentation, dose, ...)"
                self.tally.left_out[no_image if dicom.has_pixels(dataset) else "DICOM file without pixels"] += 1
                self.private_reports |= {record.label: None} if record.label else {}
                return
            label, owner = record.label, record.subject
            if self.choices.label_tag is not None:
                label = unicodedata.normalize("NFC", _required(dataset, self.choices.label_tag))
            if self.subjects and owner is None:
                owner = _required(dataset, self.choices.subject_tag)
        except Unreadable as error:
            yield replace(record, read=partial(fail, error))
            return

        tag = self.choices.subject_tag
        person = "" if tag == NO_TAG else dicom.tag_text(dataset, tag)
        if person and self.subjects is False and any(person in owners for owners in self.private_owners.values()):
            raise by_subject(
                f"Several images have the same {tag}",
                f"If {tag} does not identify the subject, give the right tag: --subject-tag TAG. If no two images show "
                f"the same person, add --subject-tag {NO_TAG}.",
            )
        study = "" if person or self.subjects is not False else dicom.tag_text(dataset, "StudyInstanceUID")
        self.tally.notes[SAME_STUDY] += study in self.private_studies
        self.private_studies |= {study} - {""}
        self.private_owners[label].add(person or None)

        frames = dicom.frames_of(dataset)
        wanted = frames if self.choices.frames == "all" else 1
        if wanted > 1 and self.subjects is False:
            raise by_subject(f"{record.shown} has {frames:,} frames of one person", "Or leave --frames out.")
        self.tally.notes[BURNT_IN] += wanted * (dicom.tag_text(dataset, "BurnedInAnnotation").upper() != "NO")
        self.tally.notes["of the images are the first frame of a file with several frames"] += wanted < frames
        for number in range(wanted):
            shown = f"{record.shown} frame {number + 1}" if wanted > 1 else record.shown
            yield Record(label, owner, shown, partial(dicom.read_frame, dataset, number))


def _is_dicom(tree: Tree, path: str) -> bool:
    suffix = suffix_of(path)
    if suffix in SUFFIXES:
        return True
    return suffix not in image_suffixes() and dicom.begins_like_dicom(begin(tree, path, dicom.HEAD_BYTES))


def _required(dataset: Dataset, tag: str) -> str:
    text = dicom.tag_text(dataset, tag)
    if not text:
        raise Unreadable(f"it has no {tag}")
    return text
