"""IDX, the format of the MNIST family: two files in a zip, or three with subjects, each plain or gzipped.

Format: four magic bytes (0, 0, type, dimensions), one big-endian 32-bit size for each dimension, then the values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import BinaryIO

import numpy as np

from service.ingest.array_files import IMAGES_NAME, LABELS_NAME
from service.ingest.exact_reading import copy_rest, finish, take
from service.ingest.faults import Fault, Refused
from service.ingest.request import IngestRequest
from service.ingest.subjects import store_subjects
from service.ingest.zip_directory import ZipEntry, read_directory
from service.ingest.zip_member import Member, Reader, gunzipped

_IMAGES_MAGIC, _LABELS_MAGIC, _SUBJECTS_MAGIC = 0x00000803, 0x00000801, 0x00000C01  # dimensions 3, 1, 1; 0C is int32
_IMAGES, _LABELS, _SUBJECTS = "*images?idx3-ubyte", "*labels?idx1-ubyte", "*subjects?idx1-int"
_SUBJECTS_AT_ONCE = 2**16


def ingest_idx(file: BinaryIO, request: IngestRequest) -> None:
    """Write the arrays of an IDX upload.

    Raises:
        Refused: With the broken rule; the target folder may then hold a part.
    """
    entries = read_directory(file, request.limits, slack_bytes=request.limits.array_slack_bytes)
    by_kind = _by_kind(entries, request)
    images, labels = _open(file, by_kind[_IMAGES]), _open(file, by_kind[_LABELS])
    count, height, width = _header(images, _IMAGES_MAGIC, 3)
    (label_count,) = _header(labels, _LABELS_MAGIC, 1)
    if request.channels != 1 or (height, width) != (request.height, request.width):
        raise Refused(Fault.IDX_SHAPE)
    if count != label_count:
        raise Refused(Fault.COUNTS_DIFFER)
    if count == 0:
        raise Refused(Fault.EMPTY)
    if count > request.records_max:
        raise Refused(Fault.RECORDS_TOO_MANY)
    private_labels = np.frombuffer(take(labels, count, Fault.IDX_LENGTH), dtype=np.uint8)
    finish(labels, Fault.IDX_LENGTH)
    if int(private_labels.max()) >= len(request.classes):
        raise Refused(Fault.LABEL_RANGE)
    with request.create_array(LABELS_NAME, (count,), np.int64) as stored:
        stored.append(private_labels)
    if request.subjects_declared is not None:
        subjects = _open(file, by_kind[_SUBJECTS])
        (subject_count,) = _header(subjects, _SUBJECTS_MAGIC, 1)
        if count != subject_count:
            raise Refused(Fault.COUNTS_DIFFER)
        store_subjects(_subject_ids(subjects, count), count, request)
    with request.create_array(IMAGES_NAME, (count, *request.record_shape), np.uint8) as stored:
        copy_rest(images, count * request.record_bytes, stored, Fault.IDX_LENGTH)


def _by_kind(entries: list[ZipEntry], request: IngestRequest) -> dict[str, ZipEntry]:
    """Return the entries by the pattern that their base names fit: one for each, and no other entry."""
    found: dict[str, ZipEntry] = {}
    for entry in entries:
        name = entry.private_name.rsplit("/", 1)[-1].removesuffix(".gz")
        kind = next((pattern for pattern in (_IMAGES, _LABELS, _SUBJECTS) if fnmatchcase(name, pattern)), None)
        if kind is None or kind in found:
            raise Refused(Fault.IDX_MEMBERS)
        found[kind] = entry
    if not {_IMAGES, _LABELS} <= set(found):
        raise Refused(Fault.IDX_MEMBERS)
    if (_SUBJECTS in found) != (request.subjects_declared is not None):
        raise Refused(Fault.SUBJECTS_UNEXPECTED if _SUBJECTS in found else Fault.SUBJECTS_ABSENT)
    return found


def _subject_ids(subjects: Reader, count: int) -> Iterator[int]:
    """Yield the ids in order, reading a bounded number of them at a time."""
    for start in range(0, count, _SUBJECTS_AT_ONCE):
        size = 4 * min(_SUBJECTS_AT_ONCE, count - start)
        yield from np.frombuffer(take(subjects, size, Fault.IDX_LENGTH), dtype=">i4").tolist()
    finish(subjects, Fault.IDX_LENGTH)


def _open(file: BinaryIO, entry: ZipEntry) -> Reader:
    member = Member(file, entry)
    return gunzipped(member, Fault.IDX_LENGTH) if entry.private_name.endswith(".gz") else member


def _header(reader: Reader, magic: int, dimensions: int) -> tuple[int, ...]:
    head = struct.unpack(f">{1 + dimensions}I", take(reader, 4 + 4 * dimensions, Fault.IDX_LENGTH))
    if head[0] != magic:
        raise Refused(Fault.IDX_MAGIC)
    return tuple(head[1:])
