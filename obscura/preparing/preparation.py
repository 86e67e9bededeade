"""Turn a folder or file on this machine into an upload without file names, subject ids or metadata.

Images are read twice, one at a time, and nothing is written to disk. The first pass determines the necessary
conversions; the second converts the images while they are sent. File names are never sent: images are numbered
consecutively, and subjects get random or keyed numbers.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from obscura.errors import PackingError, Unreadable, some
from obscura.preparing.choices import Choices, fits
from obscura.preparing.images import Target, prepare_image
from obscura.preparing.labels import require_named, require_stated
from obscura.preparing.layouts import find_source
from obscura.preparing.layouts.arrays import Arrays
from obscura.preparing.package import Member, Package, can_be_folder, npy_header, npy_member, zip_stream
from obscura.preparing.questions import ask_about_classes, ask_about_people
from obscura.preparing.sources import Source, Tally
from obscura.preparing.subjects import by_subject, key_check, keyed_numbers, number_subjects, subject_key
from obscura.preparing.survey import OnImage, Survey, counted, notes, summarise, survey
from obscura.wire.uploads import in_order

_Image = tuple[str, int | None, str, bytes]  # class, number of the subject, suffix and content of a converted image


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
            ids. None drops the ids, because the images are public.
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
        raise by_subject(f"{source.owned} identifies subjects")
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

    converts = chosen.size is not None or chosen.grey is not None or chosen.rename_classes is not None
    renumbers = chosen.join_subjects or chosen.subjects_key is not None
    unchanged = None if converts or renumbers or source.package is None else source.package()
    if unchanged is not None and fits(unchanged.width, unchanged.height):
        summary = f"{source.title}: {counted(unchanged.private_records, 'image')}, as they are."
        return replace(unchanged, classes=classes, summary=summary, private_counts=dict(counts), private_notes=remarks)

    in_folders = all(map(can_be_folder, classes))
    secret = chosen.subjects_key
    numbers = number_subjects(found.subjects) if secret is None else keyed_numbers(found.subjects, secret)

    def content() -> Iterator[bytes]:
        images = _convert(source, found, chosen, names, numbers)
        return zip_stream(_as_folders(images) if in_folders else _as_arrays(images, found, classes))

    return Package(
        "zip" if in_folders else "npz",
        classes,
        found.height,
        found.width,
        found.channels,
        found.records,
        len(found.subjects) if subjects else None,
        content,
        summarise(found, tally, source.title),
        dict(counts),
        remarks,
        key_check(secret, join=chosen.join_subjects) if secret is not None and subjects else None,
    )


def _classes(source: Source, found: Survey, choices: Choices) -> tuple[tuple[str, ...], dict[str, str]]:
    # The classes in label order, and the new name of each label.
    if choices.rename_classes is not None:
        more = sorted(set(source.classes or found.labels) - set(choices.rename_classes))
        if more:
            raise PackingError(f"The table of --rename-classes lacks classes: {some(more)}. Add a line for each.")
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


def _convert(
    source: Source, found: Survey, choices: Choices, names: Mapping[str, str], numbers: Mapping[int | str, int]
) -> Iterator[_Image]:
    target = Target(found.width, found.height, found.channels, choices.scale)
    sent = 0
    for record in source.walk(Tally()):
        if record.shown in found.broken:
            continue
        try:
            suffix, data = prepare_image(record.read(), target)
        except Unreadable as error:
            raise PackingError(f"The images changed while they were sent. {record.shown}: {error}.") from None
        number = None
        if record.subject is not None:
            number = numbers.get(subject_key(record.subject, join=choices.join_subjects))
            if number is None:
                raise PackingError("The images changed while they were sent: there is a new subject.")
        yield names.get(record.label, record.label), number, suffix, data
        sent += 1
    if sent != found.records:
        raise PackingError(f"The images changed while they were sent: there were {found.records:,}, and now {sent:,}.")


def _as_folders(images: Iterable[_Image]) -> Iterator[Member]:
    for sent, (name, owner, suffix, data) in enumerate(images):
        folder = name if owner is None else f"{name}/{owner}"
        yield Member(f"{folder}/{sent:07d}{suffix}", len(data), (data,))


def _as_arrays(images: Iterable[_Image], found: Survey, classes: tuple[str, ...]) -> Iterator[Member]:
    labels, owners = list[int](), list[int]()
    shape = (found.height, found.width, *([3] if found.channels == 3 else []))

    def pixels() -> Iterator[bytes]:
        yield npy_header((found.records, *shape), np.dtype(np.uint8))
        for name, owner, _, data in images:
            labels.append(classes.index(name))
            owners.extend([] if owner is None else [owner])
            with Image.open(io.BytesIO(data)) as image:
                yield np.asarray(image.convert("L" if len(shape) == 2 else "RGB")).tobytes()

    yield Member("images.npy", found.records * math.prod(shape), pixels())
    for name, numbers in (("labels", labels), ("subjects", owners)):
        if numbers:
            yield npy_member(name, np.array(numbers, np.int64))
