"""Turn a folder or file on this machine into an upload without file names, subject ids or metadata.

Images are read twice, one at a time, and nothing is written to disk. The first pass determines the necessary
conversions; the second converts the images while they are sent. File names are never sent: images are renumbered, and
so are subjects' folders, in random order.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from obscura.preparing.arrays import Arrays
from obscura.preparing.choices import Choices, fits
from obscura.preparing.errors import PackingError, Unreadable, some
from obscura.preparing.images import Target, prepare_image
from obscura.preparing.labels import require_named, require_stated
from obscura.preparing.layouts import find_source
from obscura.preparing.package import Member, Package, can_be_folder, npy_header, npy_member, zip_stream
from obscura.preparing.questions import ask_about_classes, ask_about_people
from obscura.preparing.sources import Source, Tally
from obscura.preparing.subjects import key_check, keyed_numbers, number_subjects, refuse_owned, subject_key
from obscura.preparing.survey import OnImage, Survey, counted, notes, summarise, survey
from obscura.wire.uploads import in_order


def prepare(
    path: Path | Arrays,
    choices: Choices | None = None,
    *,
    subjects: bool | None = False,
    on_image: OnImage = lambda _count: None,
) -> Package:
    """Detect the format of a folder or file, survey every image, and return an upload that the service accepts.

    A folder contains class folders (also inside train/), a table of labels, IDX, Parquet or WebDataset files, DICOM
    files or NIfTI volumes. A file is an archive of such a folder, or an .npz, IDX, Parquet or WebDataset file.

    Args:
        path: The folder or file, or arrays in memory.
        choices: Options that the owner chose.
        subjects: True requires subject ids, because the account protects subjects. False rejects files with subject
            ids. None drops them, because the images are public.
        on_image: Called with the number of images surveyed.

    Raises:
        ChoiceNeeded: The owner must decide something; the message names the flags.
        PackingError: There are no images to push, or subject ids are missing or not allowed.
    """
    chosen = choices or Choices()
    if isinstance(path, Arrays):
        source = path.source(chosen, subjects=subjects)
    else:
        source = find_source(path, chosen, subjects=subjects)
    if source.owned is not None and subjects is False:
        refuse_owned(source.owned)
    if source.owned is not None and subjects is None:
        owned = source
        source = replace(
            owned, walk=lambda tally: (replace(record, subject=None) for record in owned.walk(tally)), package=None
        )
    tally = Tally()
    found = survey(source, chosen, tally, on_image)
    classes, names = _classes(source, found, chosen)
    counts = Counter(dict.fromkeys((*classes, *(names.get(label, label) for label in found.lost)), 0))
    for label, count in found.labels.items():
        counts[names.get(label, label)] += count
    remarks = tuple(notes(found, source, subjects=subjects))

    converts = chosen.size is not None or chosen.grey or chosen.rename_classes is not None
    renumbers = chosen.join_subjects or chosen.subjects_key is not None
    unchanged = None if converts or renumbers or source.package is None else source.package()
    if unchanged is not None and fits(unchanged.width, unchanged.height):
        summary = f"{source.title}: {counted(unchanged.private_records, 'image')}, as they are."
        return replace(unchanged, classes=classes, summary=summary, private_counts=dict(counts), private_notes=remarks)

    members = _Members(source, found, chosen, names)
    in_folders = all(map(can_be_folder, classes))
    secret = chosen.subjects_key if subjects else None
    return Package(
        "zip" if in_folders else "npz",
        classes,
        found.height,
        found.width,
        found.channels,
        found.records,
        len(found.subjects) if subjects else None,
        lambda: zip_stream(members if in_folders else members.as_arrays(classes)),
        summarise(found, tally, source.title),
        dict(counts),
        remarks,
        None if secret is None else key_check(secret, join=chosen.join_subjects),
    )


def _classes(source: Source, found: Survey, choices: Choices) -> tuple[tuple[str, ...], dict[str, str]]:
    # The classes in label order, and the new name of each label.
    if choices.rename_classes is not None:
        more = sorted(set(source.classes or found.labels) - set(choices.rename_classes))
        if more:
            raise PackingError(f"--rename-classes does not rename every class: {some(more)}. Write a line for each.")
        return tuple(dict.fromkeys(choices.rename_classes.values())), choices.rename_classes
    if source.classes is not None:
        if choices.classes is None:
            ask_about_people(source.classes)
        stated = choices.classes or source.classes
        require_named(len(source.classes), stated)
        return stated, dict(zip(source.classes, stated, strict=False))
    require_stated(found.labels, choices.classes)
    if choices.classes is None:
        ask_about_classes(found.labels, folders=source.folders, combinations=choices.combinations)
    return choices.classes or in_order(found.labels), {}


class _Members:
    def __init__(self, source: Source, found: Survey, choices: Choices, names: dict[str, str]) -> None:
        self._source, self._found, self._names = source, found, names
        self._target = Target(found.width, found.height, found.channels, choices.scale)
        secret = choices.subjects_key
        self._numbers = number_subjects(found.subjects) if secret is None else keyed_numbers(found.subjects, secret)
        self._join = choices.join_subjects

    def __iter__(self) -> Iterator[Member]:
        for sent, (name, owner, suffix, data) in enumerate(self._converted()):
            folder = name if owner is None else f"{name}/{owner}"
            yield Member(f"{folder}/{sent:07d}{suffix}", len(data), (data,))

    def as_arrays(self, classes: tuple[str, ...]) -> Iterator[Member]:
        labels, owners = list[int](), list[int]()
        shape = (self._found.height, self._found.width, *([3] if self._found.channels == 3 else []))

        def images() -> Iterator[bytes]:
            yield npy_header((self._found.records, *shape), np.dtype(np.uint8))
            for name, owner, _, data in self._converted():
                labels.append(classes.index(name))
                owners.extend([] if owner is None else [owner])
                with Image.open(io.BytesIO(data)) as image:
                    yield np.asarray(image.convert("L" if len(shape) == 2 else "RGB")).tobytes()

        yield Member("images.npy", self._found.records * math.prod(shape), images())
        for name, numbers in (("labels", labels), ("subjects", owners)):
            if numbers:
                yield npy_member(name, np.array(numbers, np.int64))

    def _converted(self) -> Iterator[tuple[str, int | None, str, bytes]]:
        sent = 0
        for record in self._source.walk(Tally()):
            if record.shown in self._found.broken:
                continue
            try:
                suffix, data = prepare_image(record.read(), self._target)
            except Unreadable as error:
                raise PackingError(f"The images changed while they were sent: {record.shown}: {error}.") from None
            number = None if record.subject is None else self._numbers.get(subject_key(record.subject, join=self._join))
            if record.subject is not None and number is None:
                raise PackingError("The images changed while they were sent: there is a new subject.")
            yield self._names.get(record.label, record.label), number, suffix, data
            sent += 1
        if sent != self._found.records:
            raise PackingError(
                f"The images changed while they were sent: there were {self._found.records:,}, and now {sent:,}."
            )
