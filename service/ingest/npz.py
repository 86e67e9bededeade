"""Read an .npz with `images`, `labels` and optionally `subjects`. Checks headers first, and never loads pickles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from obscura.wire.uploads import Fault, Refused, SubjectId
from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, SUBJECTS_NAME, array_names, require_count, store
from service.ingest.request import IngestRequest
from service.ingest.zip_archive import Member, pieces, read_directory, take_rest

_SUBJECTS_AT_ONCE = 2**16


def ingest(file: BinaryIO, request: IngestRequest) -> None:
    """Write the arrays of an .npz upload; raise Refused with the broken rule.

    Images are uint8 of shape (n, height, width) or (n, height, width, channels). Labels are integers of shape (n).
    Subjects are integers, or strings or bytes of a fixed width, of shape (n).
    """
    entries = read_directory(file, request.limits, slack_bytes=request.limits.array_slack_bytes)
    members = {entry.private_name: Member(file, entry) for entry in entries}
    names = set(members)
    if names != set(array_names(request)):
        if names == {IMAGES_NAME, LABELS_NAME}:
            raise Refused(Fault.SUBJECTS_ABSENT)
        raise Refused(
            Fault.SUBJECTS_UNEXPECTED if names == {IMAGES_NAME, LABELS_NAME, SUBJECTS_NAME} else Fault.ARRAY_MEMBERS
        )
    images, labels = members[IMAGES_NAME], members[LABELS_NAME]
    shape, dtype = _header(images)
    if dtype != np.uint8:
        raise Refused(Fault.ARRAY_TYPE)
    allowed = {request.record_shape, (request.height, request.width, request.channels)}
    if not shape or shape[0] < 0 or shape[1:] not in allowed:
        raise Refused(Fault.ARRAY_SHAPE)
    count = shape[0]
    require_count(request, count)

    label_shape, label_type = _header(labels)
    if label_type.kind not in "iu" or label_type.subdtype is not None:
        raise Refused(Fault.ARRAY_TYPE)
    if len(label_shape) != 1:
        raise Refused(Fault.ARRAY_SHAPE)
    if label_shape[0] != count:
        raise Refused(Fault.COUNTS_DIFFER)
    private_labels = np.frombuffer(take_rest(labels, count * label_type.itemsize, Fault.ARRAY_LENGTH), label_type)
    pixels = pieces(images, count * request.record_bytes, Fault.ARRAY_LENGTH)
    store(request, private_labels, _subject_ids(members, count, request), pixels)


def _header(member: Member) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return (shape, type). Accepts only version 1.0, whose header has at most 64 KiB."""
    try:
        if np.lib.format.read_magic(member) != (1, 0):
            raise Refused(Fault.ARRAY_HEADER)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(member)
    except (Refused, MemoryError):
        raise
    except Exception:  # the header is a Python literal, and the parser's messages quote it
        raise Refused(Fault.ARRAY_HEADER) from None
    if fortran_order and len(shape) > 1:
        raise Refused(Fault.ARRAY_HEADER)
    return shape, dtype


def _subject_ids(members: dict[str, Member], count: int, request: IngestRequest) -> Iterator[SubjectId]:
    subjects = members[SUBJECTS_NAME]
    shape, dtype = _header(subjects)
    if dtype.kind not in "iuSU" or dtype.subdtype is not None or len(shape) != 1:
        raise Refused(Fault.SUBJECT_TYPE)
    characters = dtype.itemsize // (4 if dtype.kind == "U" else 1)
    if dtype.kind in "SU" and not 1 <= characters <= request.limits.subject_characters_max:
        raise Refused(Fault.SUBJECT_TYPE)
    if shape[0] != count:
        raise Refused(Fault.COUNTS_DIFFER)
    for data in pieces(subjects, count * dtype.itemsize, Fault.ARRAY_LENGTH, _SUBJECTS_AT_ONCE * dtype.itemsize):
        ids = np.frombuffer(data, dtype=dtype)
        if dtype.kind == "U" and int(ids.view(np.dtype("u4").newbyteorder(dtype.byteorder)).max()) > sys.maxunicode:
            raise Refused(Fault.SUBJECT_TYPE)  # not valid Python strings
        yield from ids.tolist()
