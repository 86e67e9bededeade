"""An .npz with `images` (uint8), `labels` and perhaps `subjects`: the service reads it as it is."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from obscura.preparing.errors import PackingError
from obscura.preparing.package import Package, file_stream
from obscura.preparing.pictures import PIXELS_MAX
from obscura.preparing.sources import Pixels, Record, Source, Tally
from obscura.preparing.subjects import number_subjects
from obscura.wire.subjects import SubjectId


@dataclass(frozen=True)
class _Arrays:
    path: Path
    shape: tuple[int, ...]
    plain: bool  # bytes, one image after the other
    private_labels: tuple[int, ...]
    ids: tuple[SubjectId, ...] | None

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(label) for label in range(max(self.private_labels, default=0) + 1))

    def package(self) -> Package:
        return Package(
            "npz",
            self.classes,
            self.shape[1],
            self.shape[2],
            self.shape[3] if len(self.shape) == 4 else 1,
            self.shape[0],
            None if self.ids is None else len(number_subjects(self.ids)),
            lambda: file_stream(self.path),
        )

    def walk(self, tally: Tally) -> Iterator[Record]:
        del tally  # nothing is passed over
        shape = self.shape[1:3] if self.shape[3:] in ((), (1,)) else self.shape[1:]
        if not self.plain or shape[2:] not in ((), (3,)) or len(self.private_labels) != self.shape[0]:
            raise PackingError(
                f"The images of {self.path.name} must be uint8 in C order, (n, h, w) or (n, h, w, 3), with as many "
                "labels."
            )
        with zipfile.ZipFile(self.path) as archive, archive.open("images.npy") as member:
            _header(member)
            for number, label in enumerate(self.private_labels):
                data = member.read(int(np.prod(shape)))
                pixels: Pixels = np.frombuffer(data, np.uint8).reshape(shape)
                owner = None if self.ids is None else self.ids[number]
                yield Record(str(label), owner, f"number {number}", lambda pixels=pixels: pixels)  # type: ignore[misc]


def find_file(path: Path, subjects: bool) -> Source | None:
    """Recognise an .npz.

    Raises:
        PackingError: It is not made of the arrays that are wanted.
    """
    if path.suffix != ".npz":
        return None
    try:
        with zipfile.ZipFile(path) as archive, archive.open("images.npy") as member:
            shape, plain = _header(member)
        with np.load(path, allow_pickle=False) as arrays:
            labels = tuple(int(label) for label in arrays["labels"])
            ids = tuple(arrays["subjects"].tolist()) if "subjects" in arrays else None
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, ValueError, TypeError) as error:
        raise PackingError(f"{path.name} must hold two arrays, 'images' (uint8) and 'labels': {error}.") from error
    if len(shape) not in (3, 4):
        raise PackingError(f"'images' must be (n, h, w) or (n, h, w, c); it is {shape}.")
    if int(np.prod(shape[1:])) > 3 * PIXELS_MAX:
        raise PackingError(f"The images of {path.name} are larger than any picture: {shape}.")
    if subjects and ids is None:
        raise PackingError(
            f"{path.name} must hold a third array 'subjects', integers or texts: the account protects all records of "
            "a subject together."
        )
    owned = None if ids is None else f"The array 'subjects' of {path.name}"
    found = _Arrays(path, shape, plain, labels, ids if subjects else None)
    package = None if owned is not None and not subjects else found.package
    size = (shape[1], shape[2], (*shape, 1)[3])
    return Source("Arrays", found.walk, found.classes, package, size, owned=owned)


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool]:
    """Return (shape, whether it is bytes in C order)."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(member)
    return shape, dtype == np.uint8 and not fortran_order
