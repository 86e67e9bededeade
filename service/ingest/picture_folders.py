"""A zip of class folders: `class/picture.png`, or `class/subject/picture.png` where the dataset has subjects."""

from __future__ import annotations

import unicodedata
from typing import BinaryIO

import numpy as np

from service.ingest.array_files import IMAGES_NAME, LABELS_NAME
from service.ingest.faults import Fault, Refused
from service.ingest.pictures import decode_picture
from service.ingest.request import IngestRequest
from service.ingest.subjects import store_subjects
from service.ingest.zip_directory import ZipEntry, read_directory
from service.ingest.zip_member import read_whole


def ingest_picture_folders(file: BinaryIO, request: IngestRequest) -> None:
    """Write the arrays of a zip of class folders, in the order of its directory.

    One folder around all class folders is accepted, since many programs add it.

    Raises:
        Refused: With the broken rule; the target folder may then hold a part.
    """
    limits = request.limits
    entries = read_directory(file, limits, slack_bytes=limits.entry_slack_bytes)
    if any(entry.expanded_bytes > limits.entry_bytes_max for entry in entries):
        raise Refused(Fault.ARCHIVE_SIZE)
    if not entries:
        raise Refused(Fault.EMPTY)
    if len(entries) > request.records_max:
        raise Refused(Fault.RECORDS_TOO_MANY)
    classes = {unicodedata.normalize("NFC", name): label for label, name in enumerate(request.classes)}
    paths = _paths(entries, classes, subjects=request.subjects_declared is not None)
    private_labels = _labels(paths, classes)
    with request.create_array(LABELS_NAME, (len(entries),), np.int64) as stored:
        stored.append(np.array(private_labels))
    if request.subjects_declared is not None:
        store_subjects((path[1] for path in paths), len(paths), request)
    with request.create_array(IMAGES_NAME, (len(entries), *request.record_shape), np.uint8) as stored:
        for entry in entries:
            stored.append(decode_picture(read_whole(file, entry), request))


def _paths(entries: list[ZipEntry], classes: dict[str, int], *, subjects: bool) -> list[list[str]]:
    """Return the entries' paths, split: (class, file) or (class, subject, file), without a folder around all of it."""
    paths = [entry.private_name.split("/") for entry in entries]
    if len({len(path) for path in paths}) != 1:
        raise Refused(Fault.LAYOUT)
    depth, expected = len(paths[0]), 3 if subjects else 2
    in_classes = [depth > level + 1 and all(path[level] in classes for path in paths) for level in (0, 1)]
    wrapped = depth > 2 and len({path[0] for path in paths}) == 1
    if not subjects and depth == 3 and in_classes[0] and not in_classes[1]:
        raise Refused(Fault.SUBJECTS_UNEXPECTED)
    if subjects and (depth == 2 or (depth == 3 and wrapped and in_classes[1] and not in_classes[0])):
        raise Refused(Fault.SUBJECTS_ABSENT)
    if wrapped and depth == expected + 1:
        return [path[1:] for path in paths]
    if depth != expected:
        raise Refused(Fault.LAYOUT)
    return paths


def _labels(paths: list[list[str]], classes: dict[str, int]) -> list[int]:
    try:
        return [classes[path[0]] for path in paths]
    except KeyError:
        raise Refused(Fault.CLASS_UNDECLARED) from None
