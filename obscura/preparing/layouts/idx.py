"""IDX files, the layout of MNIST and Fashion-MNIST: a pair of files for each part, gzipped or not.

With subjects a third file stands beside the pair, named like train-subjects-idx1-int.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from obscura.preparing.choices import Choices
from obscura.preparing.errors import PackingError
from obscura.preparing.labels import class_numbers
from obscura.preparing.package import Package, file_member, zip_stream
from obscura.preparing.sources import PIXELS_MAX, Pixels, Record, Source, Tally, choose_part, title_of
from obscura.preparing.subjects import number_subjects
from obscura.wire.formats import UPLOAD_RECORDS_MAX
from obscura.wire.subjects import SubjectId

_IMAGES_MAGIC, _LABELS_MAGIC, _SUBJECTS_MAGIC = 0x803, 0x801, 0xC01
_RECORDS_MAX = UPLOAD_RECORDS_MAX
_INSIDE = (".", "raw", "MNIST/raw", "FashionMNIST/raw")  # the last three as torchvision unpacks them


@dataclass(frozen=True)
class _Pair:
    split: str
    images: Path
    labels: Path
    owners: Path | None
    records: int
    height: int
    width: int
    private_labels: bytes
    ids: tuple[SubjectId, ...] | None
    owned: str | None

    def source(self, title: str, choices: Choices) -> Source:
        used = class_numbers(self.private_labels, choices.classes, used_only=choices.used_classes)
        classes = tuple(map(str, used))
        as_it_is = used == tuple(range(len(used)))
        package = partial(self.package, classes) if as_it_is else None
        return Source(title, self.walk, classes, package, (self.height, self.width, 1), owned=self.owned)

    def package(self, classes: tuple[str, ...]) -> Package:
        files = [path for path in (self.images, self.labels, self.owners) if path is not None]
        return Package(
            "idx",
            classes,
            self.height,
            self.width,
            1,
            self.records,
            None if self.ids is None else len(number_subjects(self.ids)),
            lambda: zip_stream(map(file_member, files)),
        )

    def walk(self, tally: Tally) -> Iterator[Record]:
        del tally  # nothing is passed over
        with _open(self.images) as file:
            file.read(16)
            for number, label in enumerate(self.private_labels):
                try:
                    data = file.read(self.height * self.width)
                except (EOFError, OSError, zlib.error):
                    data = b""
                if len(data) != self.height * self.width:
                    raise PackingError(f"{self.images.name} ends before its last image.")
                pixels: Pixels = np.frombuffer(data, np.uint8).reshape(self.height, self.width)
                owner = None if self.ids is None else self.ids[number]
                yield Record(str(label), owner, f"number {number}", lambda pixels=pixels: pixels)  # type: ignore[misc]


def find(folder: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise a folder with at least one IDX pair."""
    at = next((folder / inner for inner in _INSIDE if _images(folder / inner)), None)
    if at is None:
        return None
    splits = {_split_of(path): path for path in _images(at)}
    chosen = choose_part(f"{folder.name} (IDX files)", sorted(splits), choices.split)
    pair = _read(at, chosen, splits[chosen], subjects)
    return pair.source(title_of("IDX files", sorted(splits), chosen), choices)


def find_file(path: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise the images file of an IDX pair."""
    if "idx3-ubyte" not in path.name:
        return None
    split = _split_of(path)
    pair = _read(path.parent, split, path, subjects)
    return pair.source(f"IDX files, {split}", choices)


def _read(folder: Path, split: str, images: Path, subjects: bool) -> _Pair:
    labels = next((path for path in sorted(folder.glob(f"{split}-labels?idx1-ubyte*")) if _is_idx(path)), None)
    whose = next(iter(sorted(folder.glob(f"{split}-subjects?idx1-int*"))), None)
    owners, owned = whose if subjects else None, None if whose is None else f"The file {whose.name}"
    if labels is None:
        raise PackingError(f"{folder} holds no complete IDX pair {split!r}.")
    if subjects and owners is None:
        raise PackingError(
            f"{folder} holds no {split}-subjects-idx1-int, and the account protects all records of a subject together."
        )
    try:
        with _open(images) as file:
            magic, records, height, width = struct.unpack(">4I", file.read(16))
        with _open(labels) as file:
            label_magic, label_count = struct.unpack(">2I", file.read(8))
            if label_count != records or records > _RECORDS_MAX or height * width > PIXELS_MAX:
                raise ValueError("not as many labels as images, or more than can be")
            private_labels = file.read(records)
        ids = None if owners is None else _ids(owners, records)
    except (struct.error, OSError, EOFError, ValueError, zlib.error) as error:
        raise PackingError(f"The IDX pair {split!r} in {folder} is damaged: {error}.") from error
    if (magic, label_magic) != (_IMAGES_MAGIC, _LABELS_MAGIC):
        raise PackingError(f"The files of the pair {split!r} in {folder} do not begin like IDX files of bytes.")
    if len(private_labels) != records or (ids is not None and len(ids) != records):
        raise PackingError(f"The IDX pair {split!r} in {folder} is damaged: not as many labels as images.")
    return _Pair(split, images, labels, owners, records, height, width, private_labels, ids, owned)


def _ids(path: Path, count: int) -> tuple[SubjectId, ...]:
    with _open(path) as file:
        magic, _ = struct.unpack(">2I", file.read(8))
        if magic != _SUBJECTS_MAGIC:
            raise ValueError("the subjects are not an IDX file of 32-bit integers")
        return tuple(np.frombuffer(file.read(4 * count), dtype=">i4").tolist())


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*-images?idx3-ubyte*") if _is_idx(path))


def _is_idx(path: Path) -> bool:
    return path.is_file() and path.name.removesuffix(".gz").endswith("-ubyte")


def _split_of(images: Path) -> str:
    return images.name.partition("-images")[0]


def _open(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]  # both read bytes
