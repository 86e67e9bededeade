"""The stored form of a dataset: images.npy, labels.npy and optionally subjects.npy, sealed during writing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from obscura.wire.uploads import Fault, Refused, SubjectId
from service.ingest.request import IngestRequest
from service.ingest.subjects import subject_numbers
from service.sealing import SealedWriter

IMAGES_NAME, LABELS_NAME, SUBJECTS_NAME = "images.npy", "labels.npy", "subjects.npy"
SEALED_SUFFIX = ".sealed"
QUARANTINE = "quarantine"  # the sealing context of an upload's body
Array = np.ndarray[Any, np.dtype[Any]]


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """Write the arrays of an upload. After an error, the target folder contains a part of them.

    `private_labels` and `private_ids` have one value per record, in order; `private_ids` is not read if the dataset has
    no subjects. `images` yields the pixels in order, in pieces of any size. Raise Refused for a label out of range, a
    missing id, or too many subjects.
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
