"""The stored form of a dataset: images.npy, labels.npy and optionally subjects.npy, sealed during writing.

Subject ids are replaced by numbers, and are not stored.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from array import array
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from obscura.wire.uploads import Fault, Refused, SubjectId, canonical
from service.ingest.request import IngestRequest
from service.sealing import SealedWriter

IMAGES_NAME, LABELS_NAME, SUBJECTS_NAME = "images.npy", "labels.npy", "subjects.npy"
SEALED_SUFFIX = ".sealed"
QUARANTINE = "quarantine"  # the sealing context of an upload's body
Array = np.ndarray[Any, np.dtype[Any]]
_NUMBER_BYTES = 8
_SUBJECT_LABEL = b"obscura subject 1\0"


def context_of(dataset_id: str, name: str) -> str:
    """Return the sealing context of an array, so that the file opens only as this array of this dataset."""
    return f"dataset {dataset_id} {name}"


def array_names(request: IngestRequest) -> tuple[str, ...]:
    """Return the names of a dataset's arrays, sorted."""
    return (IMAGES_NAME, LABELS_NAME, *(() if request.subjects_declared is None else (SUBJECTS_NAME,)))


class ArrayFile(AbstractContextManager["ArrayFile"]):
    """A sealed .npy file of known shape, written by appending, and durable when the block ends.

    Appending instead of memory-mapping keeps the address space small, so that it can be limited.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: DTypeLike, *, key: bytes, context: str) -> None:
        self._dtype = np.dtype(dtype)
        self._left = int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize
        self._file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")  # noqa: SIM115 (closed by __exit__)
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        self._sealed = SealedWriter(self._file, key, context)
        np.lib.format.write_array_header_1_0(self._sealed, header)

    def append(self, data: bytes | Array) -> None:
        """Write the next values: raw bytes, or an array, which is converted to the file's type."""
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data, dtype=self._dtype).tobytes()
        self._left -= len(raw)
        if self._left < 0:
            raise ValueError("more values than the shape holds")
        self._sealed.write(raw)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                if self._left:
                    raise ValueError("fewer values than the shape holds")
                self._sealed.finish()
                self._file.flush()
                os.fsync(self._file.fileno())


def create_array(request: IngestRequest, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> ArrayFile:
    path = request.target / f"{name}{SEALED_SUFFIX}"
    return ArrayFile(path, shape, dtype, key=request.target_key, context=context_of(request.dataset_id, name))


def require_count(request: IngestRequest, count: int) -> None:
    """Raise Refused if there are no records, or too many."""
    if count == 0:
        raise Refused(Fault.EMPTY)
    if count > request.records_max:
        raise Refused(Fault.RECORDS_TOO_MANY)


def store(
    request: IngestRequest, private_labels: Array, private_ids: Iterable[SubjectId], images: Iterable[bytes | Array]
) -> None:
    """Write the arrays of an upload; raise Refused for a label out of range, a missing id, or too many subjects.

    `private_labels` and `private_ids` have one value per record, in order; `private_ids` is not read if the dataset has
    no subjects. `images` yields the pixels in order, in pieces of any size.
    """
    count = len(private_labels)
    if int(private_labels.min()) < 0 or int(private_labels.max()) >= len(request.classes):
        raise Refused(Fault.LABEL_RANGE)
    with create_array(request, LABELS_NAME, (count,), np.int64) as stored:
        stored.append(private_labels)
    if request.subjects_declared is not None:
        numbers = subject_numbers(private_ids, request.subjects_declared, recognised=request.subjects_recognised)
        with create_array(request, SUBJECTS_NAME, (count,), np.int64) as stored:
            stored.append(numbers)
    with create_array(request, IMAGES_NAME, (count, *request.record_shape), np.uint8) as stored:
        for pixels in images:
            stored.append(pixels)


def subject_numbers(
    private_ids: Iterable[SubjectId], subjects_max: int, *, recognised: bool = False
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the subject's number for each record; raise Refused for a missing id or too many subjects.

    Unless subjects are recognised, the numbers are random: new for every upload, distinct, 63 bits, and independent of
    everything else. So one more subject does not change the distribution of the other numbers: uploads with and without
    this subject can be coupled so that all other numbers are equal. Consecutive numbers would not have this property,
    because one subject would shift the others. `privacy.mechanisms.partition` continues the argument.

    Args:
        recognised: compute each number from the id, in [0, 2^63), instead of at random. Anyone who knows an id can
            compute this number, so the service stores another number (`service.datasets.fingerprints`).
    """
    positions: dict[int | str, int] = {}  # of the subjects, in order of appearance
    of_records = array("q")  # as small as the result: the memory of the confined process is limited
    for private_id in private_ids:
        position = positions.setdefault(canonical(private_id), len(positions))
        if position >= subjects_max:
            raise Refused(Fault.SUBJECTS_TOO_MANY)
        of_records.append(position)
    indices = np.array(of_records, np.int64)
    if not recognised:
        return random_numbers(len(positions))[indices]
    names = (_SUBJECT_LABEL + str(name).encode("utf-8", "surrogateescape") for name in positions)
    halves = [hashlib.sha256(name).digest()[:_NUMBER_BYTES] for name in names]
    return np.array([int.from_bytes(half, "big") >> 1 for half in halves], np.int64)[indices]


def random_numbers(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Generate `count` distinct secret numbers in [0, 2^63); all sequences are equally likely."""
    while True:
        drawn = np.frombuffer(secrets.token_bytes(_NUMBER_BYTES * count), dtype="<u8") >> np.uint64(1)
        if len(np.unique(drawn)) == count:
            return drawn.astype(np.int64)
