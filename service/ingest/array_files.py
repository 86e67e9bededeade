"""The stored form of a dataset: images.npy, labels.npy and, where it has subjects, subjects.npy, sealed as written."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from service.sealing import SealedWriter

IMAGES_NAME, LABELS_NAME, SUBJECTS_NAME = "images.npy", "labels.npy", "subjects.npy"
SEALED_SUFFIX = ".sealed"
QUARANTINE = "quarantine"  # what the file of an upload is sealed as, before it is read


def context_of(dataset_id: str, name: str) -> str:
    """Return what an array is sealed as, so that it opens in its own place alone."""
    return f"dataset {dataset_id} {name}"


class ArrayFile:
    """A sealed .npy file of known shape that is filled by appending, and is on disk when the block ends.

    Appending instead of memory-mapping keeps the writer's address space small, so that it can be limited.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: DTypeLike, *, key: bytes, context: str) -> None:
        self._dtype = np.dtype(dtype)
        self._left = int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize
        self._file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")  # noqa: SIM115 (closed by __exit__)
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        self._sealed = SealedWriter(self._file, key, context)
        np.lib.format.write_array_header_1_0(self._sealed, header)

    def append(self, data: bytes | np.ndarray[Any, Any]) -> None:
        """Write the next values: raw bytes in the file's type, or an array that is converted to it."""
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data, dtype=self._dtype).tobytes()
        self._left -= len(raw)
        if self._left < 0:
            raise ValueError("more values than the shape holds")
        self._sealed.write(raw)

    def __enter__(self) -> ArrayFile:
        return self

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
