"""IDX, the format of MNIST: a zip with two files, or three with subjects, each plain or gzipped.

Format: four magic bytes (0, 0, type, dimensions), one big-endian 32-bit size for each dimension, then the values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import BinaryIO

import numpy as np

from obscura.wire.uploads import Fault, Refused
from service.ingest import zip_archive
from service.ingest.array_files import require_count, store
from service.ingest.request import IngestRequest

_IMAGES_MAGIC, _LABELS_MAGIC, _SUBJECTS_MAGIC = 0x00000803, 0x00000801, 0x00000C01  # dimensions 3, 1, 1; 0C is int32
_IMAGES, _LABELS, _SUBJECTS = "*images?idx3-ubyte", "*labels?idx1-ubyte", "*subjects?idx1-int"
_SUBJECTS_AT_ONCE = 2**16


def ingest(file: BinaryIO, request: IngestRequest) -> None:
    """Write the arrays of an IDX upload; raise Refused with the broken rule."""
    entries = zip_archive.read_directory(file, request.limits, slack_bytes=request.limits.array_slack_bytes)
    by_kind: dict[str, zip_archive.ZipEntry] = {}  # exactly one entry for each file name pattern
    for entry in entries:
        name = entry.private_name.rsplit("/", 1)[-1].removesuffix(".gz")
        kind = next((pattern for pattern in (_IMAGES, _LABELS, _SUBJECTS) if fnmatchcase(name, pattern)), None)
        if kind is None or kind in by_kind:
            raise Refused(Fault.IDX_MEMBERS)
        by_kind[kind] = entry
    if not {_IMAGES, _LABELS} <= set(by_kind):
        raise Refused(Fault.IDX_MEMBERS)
    if (_SUBJECTS in by_kind) != (request.subjects_declared is not None):
        raise Refused(Fault.SUBJECTS_UNEXPECTED if _SUBJECTS in by_kind else Fault.SUBJECTS_ABSENT)
    images, labels = _open(file, by_kind[_IMAGES]), _open(file, by_kind[_LABELS])
    count, height, width = _header(images, _IMAGES_MAGIC, 3)
    (label_count,) = _header(labels, _LABELS_MAGIC, 1)
    if request.channels != 1 or (height, width) != (request.height, request.width):
        raise Refused(Fault.IDX_SHAPE)
    if count != label_count:
        raise Refused(Fault.COUNTS_DIFFER)
    require_count(request, count)
    private_labels = np.frombuffer(zip_archive.take_rest(labels, count, Fault.IDX_LENGTH), dtype=np.uint8)
    pixels = zip_archive.pieces(images, count * request.record_bytes, Fault.IDX_LENGTH)

    def subject_ids() -> Iterator[int]:
        subjects = _open(file, by_kind[_SUBJECTS])
        if _header(subjects, _SUBJECTS_MAGIC, 1) != (count,):
            raise Refused(Fault.COUNTS_DIFFER)
        for data in zip_archive.pieces(subjects, 4 * count, Fault.IDX_LENGTH, 4 * _SUBJECTS_AT_ONCE):
            yield from np.frombuffer(data, dtype=">i4").tolist()

    store(request, private_labels, subject_ids(), pixels)


def _open(file: BinaryIO, entry: zip_archive.ZipEntry) -> zip_archive.Reader:
    member = zip_archive.Member(file, entry)
    return (
        zip_archive.Inflated(member, zip_archive.GZIP_WINDOW, Fault.IDX_LENGTH)
        if entry.private_name.endswith(".gz")
        else member
    )


def _header(reader: zip_archive.Reader, magic: int, dimensions: int) -> tuple[int, ...]:
    head = struct.unpack(f">{1 + dimensions}I", zip_archive.take(reader, 4 + 4 * dimensions, Fault.IDX_LENGTH))
    if head[0] != magic:
        raise Refused(Fault.IDX_MAGIC)
    return tuple(head[1:])
