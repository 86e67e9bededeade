"""An .npz with `images`, `labels` and perhaps `subjects`. Headers are judged before allocation; no pickle is read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, SUBJECTS_NAME
from service.ingest.exact_reading import copy_rest, finish, take
from service.ingest.faults import Fault, Refused
from service.ingest.request import IngestRequest
from service.ingest.subjects import SubjectId, store_subjects
from service.ingest.zip_directory import read_directory
from service.ingest.zip_member import Member

_SUBJECTS_AT_ONCE = 2**16


def ingest_npz(file: BinaryIO, request: IngestRequest) -> None:
    """Write the arrays of an .npz upload.

    Images are uint8 of shape (n, height, width) or (n, height, width, channels); labels are integers of shape (n), and
    so are subjects, which may also be texts or bytes of a fixed width.

    Raises:
        Refused: With the broken rule; the target folder may then hold a part.
    """
    entries = read_directory(file, request.limits, slack_bytes=request.limits.array_slack_bytes)
    by_name = {entry.private_name: entry for entry in entries}
    _check_members(set(by_name), request)
    images, labels = Member(file, by_name[IMAGES_NAME]), Member(file, by_name[LABELS_NAME])
    count = _check_images(*_header(images), request)
    label_type = _check_labels(*_header(labels), count)
    private_labels = np.frombuffer(take(labels, count * label_type.itemsize, Fault.ARRAY_LENGTH), dtype=label_type)
    finish(labels, Fault.ARRAY_LENGTH)
    if int(private_labels.min()) < 0 or int(private_labels.max()) >= len(request.classes):
        raise Refused(Fault.LABEL_RANGE)
    with request.create_array(LABELS_NAME, (count,), np.int64) as stored:
        stored.append(private_labels)
    if request.subjects_declared is not None:
        subjects = Member(file, by_name[SUBJECTS_NAME])
        subject_type = _check_subjects(*_header(subjects), count, request)
        store_subjects(_subject_ids(subjects, count, subject_type), count, request)
    with request.create_array(IMAGES_NAME, (count, *request.record_shape), np.uint8) as stored:
        copy_rest(images, count * request.record_bytes, stored, Fault.ARRAY_LENGTH)


def _check_members(names: set[str], request: IngestRequest) -> None:
    if names == set(request.array_names):
        return
    if names == {IMAGES_NAME, LABELS_NAME}:
        raise Refused(Fault.SUBJECTS_ABSENT)
    if names == {IMAGES_NAME, LABELS_NAME, SUBJECTS_NAME}:
        raise Refused(Fault.SUBJECTS_UNEXPECTED)
    raise Refused(Fault.ARRAY_MEMBERS)


def _header(member: Member) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return (shape, type). Only version 1.0 is taken: its header is at most 64 KiB, and plain arrays need no other."""
    try:
        if np.lib.format.read_magic(member) != (1, 0):
            raise Refused(Fault.ARRAY_HEADER)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(member)
    except (Refused, MemoryError):
        raise
    except Exception:
        # The header is a Python literal of the sender's; its parser's messages quote it and must not travel.
        raise Refused(Fault.ARRAY_HEADER) from None
    if fortran_order and len(shape) > 1:
        raise Refused(Fault.ARRAY_HEADER)
    return shape, dtype


def _check_images(shape: tuple[int, ...], dtype: np.dtype[Any], request: IngestRequest) -> int:
    if dtype != np.uint8:
        raise Refused(Fault.ARRAY_TYPE)
    allowed = {request.record_shape, (request.height, request.width, request.channels)}
    if not shape or shape[0] < 0 or shape[1:] not in allowed:
        raise Refused(Fault.ARRAY_SHAPE)
    if shape[0] == 0:
        raise Refused(Fault.EMPTY)
    if shape[0] > request.records_max:
        raise Refused(Fault.RECORDS_TOO_MANY)
    return shape[0]


def _check_labels(shape: tuple[int, ...], dtype: np.dtype[Any], count: int) -> np.dtype[Any]:
    if dtype.kind not in "iu" or dtype.subdtype is not None:
        raise Refused(Fault.ARRAY_TYPE)
    if len(shape) != 1:
        raise Refused(Fault.ARRAY_SHAPE)
    if shape[0] != count:
        raise Refused(Fault.COUNTS_DIFFER)
    return dtype


def _check_subjects(shape: tuple[int, ...], dtype: np.dtype[Any], count: int, request: IngestRequest) -> np.dtype[Any]:
    if dtype.kind not in "iuSU" or dtype.subdtype is not None or len(shape) != 1:
        raise Refused(Fault.SUBJECT_TYPE)
    characters = dtype.itemsize // (4 if dtype.kind == "U" else 1)
    if dtype.kind in "SU" and not 1 <= characters <= request.limits.subject_characters_max:
        raise Refused(Fault.SUBJECT_TYPE)
    if shape[0] != count:
        raise Refused(Fault.COUNTS_DIFFER)
    return dtype


def _subject_ids(subjects: Member, count: int, dtype: np.dtype[Any]) -> Iterator[SubjectId]:
    """Yield the ids in order, reading a bounded number of them at a time."""
    for start in range(0, count, _SUBJECTS_AT_ONCE):
        size = min(_SUBJECTS_AT_ONCE, count - start) * dtype.itemsize
        ids = np.frombuffer(take(subjects, size, Fault.ARRAY_LENGTH), dtype=dtype)
        if dtype.kind == "U" and int(ids.view(np.dtype("u4").newbyteorder(dtype.byteorder)).max()) > sys.maxunicode:
            raise Refused(Fault.SUBJECT_TYPE)  # numpy would make texts of them that Python cannot hold
        yield from ids.tolist()
    finish(subjects, Fault.ARRAY_LENGTH)
