"""IDX files, the format of MNIST and Fashion-MNIST: a pair of files for each part, gzipped or not.

With subjects, a third file, named like train-subjects-idx1-int, contains their ids.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from obscura.errors import PackingError
from obscura.image_types import PIXELS_MAX
from obscura.preparing.choices import Choices
from obscura.preparing.labels import class_numbers
from obscura.preparing.package import Member, Package, file_stream, zip_stream
from obscura.preparing.sources import Pixels, Record, Source, Tally, choose_part
from obscura.preparing.subjects import number_subjects
from obscura.wire.formats import UPLOAD_RECORDS_MAX
from obscura.wire.uploads import SubjectId

_IMAGES_MAGIC, _LABELS_MAGIC, _SUBJECTS_MAGIC = 0x803, 0x801, 0xC01
_INSIDE = (".", "raw", "MNIST/raw", "FashionMNIST/raw")  # the last three as torchvision unpacks them


def find(path: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise the images file of an IDX pair, or a folder with pairs, including torchvision's folder layout."""
    if not path.is_dir():
        split = path.name.partition("-images")[0]
        return _source(path, split, f"IDX files, {split}", choices, subjects) if "idx3-ubyte" in path.name else None
    places = (_idx_files(path / inner, "*-images?idx3-ubyte*") for inner in _INSIDE)
    splits = {images.name.partition("-images")[0]: images for images in next(filter(None, places), [])}
    if not splits:
        return None
    chosen, title = choose_part(f"{path.name} (IDX files)", sorted(splits), choices.split, title="IDX files")
    return _source(splits[chosen], chosen, title, choices, subjects)


def _source(images: Path, split: str, title: str, choices: Choices, subjects: bool) -> Source:
    folder = images.parent
    labels = next(iter(_idx_files(folder, f"{split}-labels?idx1-ubyte*")), None)
    whose = next(iter(sorted(folder.glob(f"{split}-subjects?idx1-int*"))), None)
    owners = whose if subjects else None
    if labels is None:
        raise PackingError(f"{folder} has IDX images {split!r}, but no file {split}-labels-idx1-ubyte.")
    if subjects and owners is None:
        raise PackingError(
            f"{folder} has no file {split}-subjects-idx1-int. The account needs these subject ids to protect all "
            "records of a subject together."
        )
    try:
        with _open(images) as file:
            magic, records, height, width = struct.unpack(">4I", file.read(16))
        with _open(labels) as file:
            label_magic, label_count = struct.unpack(">2I", file.read(8))
            if label_count != records or records > UPLOAD_RECORDS_MAX or height * width > PIXELS_MAX:
                raise ValueError("the numbers of images and labels differ or are too large")
            private_labels = file.read(records)
        ids: tuple[SubjectId, ...] | None = None
        if owners is not None:
            with _open(owners) as file:
                if struct.unpack(">2I", file.read(8))[0] != _SUBJECTS_MAGIC:
                    raise ValueError("the subjects are not an IDX file of 32-bit integers")
                ids = tuple(np.frombuffer(file.read(4 * records), dtype=">i4").tolist())
    except (struct.error, OSError, EOFError, ValueError, zlib.error) as error:
        raise PackingError(f"The IDX pair {split!r} in {folder} is damaged: {error}.") from error
    if (magic, label_magic) != (_IMAGES_MAGIC, _LABELS_MAGIC):
        raise PackingError(f"The files of the pair {split!r} in {folder} do not have the header of IDX files of bytes.")
    if len(private_labels) != records or (ids is not None and len(ids) != records):
        raise PackingError(
            f"The IDX pair {split!r} in {folder} is damaged: its files differ in their number of records."
        )

    used = class_numbers(private_labels, choices.classes, used_only=choices.used_classes)
    classes = tuple(map(str, used))

    def walk(_: Tally) -> Iterator[Record]:
        with _open(images) as file:
            file.read(16)
            for number, label in enumerate(private_labels):
                try:
                    data = file.read(height * width)
                except (EOFError, OSError, zlib.error):
                    data = b""
                if len(data) != height * width:
                    raise PackingError(f"{images.name} is damaged: it ends before its last image.")
                pixels: Pixels = np.frombuffer(data, np.uint8).reshape(height, width)
                owner = None if ids is None else ids[number]
                yield Record(str(label), owner, f"number {number}", lambda pixels=pixels: pixels)  # type: ignore[misc]

    def package() -> Package:
        files = [path for path in (images, labels, owners) if path is not None]
        count = None if ids is None else len(number_subjects(ids))
        return Package(
            "idx", classes, height, width, 1, records, count,
            lambda: zip_stream(Member(path.name, path.stat().st_size, file_stream(path)) for path in files),
        )  # fmt: skip

    as_it_is = used == tuple(range(len(used)))
    owned = None if whose is None else f"The file {whose.name}"
    return Source(title, walk, classes, package if as_it_is else None, (height, width, 1), owned=owned)


def _idx_files(folder: Path, pattern: str) -> list[Path]:
    found = (path for path in folder.glob(pattern) if path.name.removesuffix(".gz").endswith("-ubyte"))
    return sorted(filter(Path.is_file, found))


def _open(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]  # both read bytes
