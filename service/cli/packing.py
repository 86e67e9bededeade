"""Turn a folder or file on this machine into an upload, and read off what its owner is about to declare public.

Runs on the owner's side only. File names never leave: pictures are numbered anew inside their class folder, and so are
the folders of subjects, in random order.
"""

from __future__ import annotations

import gzip
import secrets
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from PIL import Image

from service.api.schemas import UploadFormat
from service.ingest.faults import Refused
from service.ingest.subjects import SubjectId, canonical

PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
CHUNK_BYTES = 1 << 20


class PackingError(Exception):
    """The folder or file is not something that can be pushed; the message says what would be."""


@dataclass(frozen=True)
class Package:
    """An upload that is ready to stream.

    `classes`, `height`, `width`, `channels`, `records` and `subjects` (None where the upload carries none) were read
    from the files; whatever of them goes into a declaration becomes public.
    """

    format: UploadFormat
    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    records: int
    subjects: int | None
    open: Callable[[], Iterator[bytes]]


def pack(path: Path, *, split: str | None = None, subjects: bool = False) -> Package:
    """Recognise a folder of class folders, an .npz, a .zip, or IDX files (a folder with a pair, or one of the pair).

    With subjects, class folders hold one folder for each subject, an .npz a third array `subjects`, and IDX files a
    third one beside the pair, named like train-subjects-idx1-int.

    Args:
        path: The folder or file.
        split: Prefix of the IDX pair ("train", "t10k") when a folder holds several.
        subjects: Whether the upload must say whose each record is: the account's unit is the subject.

    Raises:
        PackingError: Nothing of that kind is there, or it carries subjects exactly where none are wanted.
    """
    if path.is_dir():
        return _pack_idx(path, split, subjects) if _idx_images(path) else _pack_class_folders(path, subjects)
    if not path.is_file():
        raise PackingError(f"{path} does not exist.")
    if path.suffix == ".npz":
        return _pack_npz(path, subjects)
    if path.suffix == ".zip":
        return _pack_zip(path, subjects)
    if "idx3-ubyte" in path.name:
        return _pack_idx(path.parent, _split_of(path), subjects)
    raise PackingError(f"{path.name} is neither a folder of class folders, nor an .npz, a .zip or IDX files.")


def _pack_class_folders(root: Path, subjects: bool) -> Package:
    found = [(name, folder) for name, folder in _folders(root)]
    owners = [(name, owner, folder) for name, inner in found for owner, folder in _folders(inner)]
    if not subjects and any(_pictures(folder) for _, _, folder in owners):
        raise PackingError(
            f"{root} has folders inside its class folders, as for subjects, and the account protects single records. "
            "Put the pictures into the class folders themselves, or use an account whose unit is the subject."
        )
    if subjects and any(_pictures(folder) for _, folder in found):
        raise PackingError(
            f"{root} has pictures outside of the folders of subjects. The account protects all records of a subject "
            "together: put them into one folder for each subject inside the class folders (class/subject/picture.png)."
        )
    numbers = _numbers(owner for _, owner, _ in owners) if subjects else {}
    members = [(name, file) for name, folder in found for file in _pictures(folder)]
    members += [(f"{name}/{numbers[canonical(owner)]}", f) for name, owner, at in owners for f in _pictures(at)]
    if not members:
        kinds = ", ".join(sorted(PICTURE_SUFFIXES))
        raise PackingError(f"{root} holds no class folders with pictures ({kinds}).")
    with members[0][1].open("rb") as file:
        height, width, channels = _picture_shape(file)
    return Package(
        "zip",
        tuple(name for name, _ in found),
        height,
        width,
        channels,
        len(members),
        len({name.split("/")[1] for name, _ in members}) if subjects else None,
        lambda: _zip_stream((f"{folder}/{i:07d}{file.suffix}", file) for i, (folder, file) in enumerate(members)),
    )


def _pack_zip(path: Path, subjects: bool) -> Package:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            classes = tuple(sorted({name.split("/", 1)[0] for name in names if "/" in name}))
            if not classes:
                raise PackingError(f"{path.name} holds no class folders.")
            if subjects and any(name.count("/") != 2 for name in names):
                raise PackingError(
                    f"{path.name} must hold class/subject/picture.png: the account protects all records of a subject."
                )
            owners = len(_numbers(name.split("/")[1] for name in names)) if subjects else None
            with archive.open(names[0]) as picture:
                height, width, channels = _picture_shape(picture)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise PackingError(f"{path.name} cannot be read as a zip: {error}.") from error
    return Package("zip", classes, height, width, channels, len(names), owners, lambda: _file_stream(path))


def _pack_npz(path: Path, subjects: bool) -> Package:
    try:
        with zipfile.ZipFile(path) as archive, archive.open("images.npy") as member:
            version = np.lib.format.read_magic(member)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, _ = read(member)
        with np.load(path, allow_pickle=False) as arrays:
            class_count = int(arrays["labels"].max()) + 1
            ids = arrays["subjects"].tolist() if "subjects" in arrays else None
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise PackingError(f"{path.name} must hold two arrays, 'images' (uint8) and 'labels': {error}.") from error
    if len(shape) not in (3, 4):
        raise PackingError(f"'images' must be (n, h, w) or (n, h, w, c); it is {shape}.")
    if subjects != (ids is not None):
        raise PackingError(
            f"{path.name} must hold a third array 'subjects', integers or texts: the account protects all records of "
            "a subject together."
            if subjects
            else f"{path.name} holds subject ids, and the account protects single records. Leave 'subjects' out, or "
            "use an account whose unit is the subject."
        )
    channels = shape[3] if len(shape) == 4 else 1
    names = tuple(str(label) for label in range(class_count))
    owners = None if ids is None else len(_numbers(ids))
    return Package("npz", names, shape[1], shape[2], channels, shape[0], owners, lambda: _file_stream(path))


def _pack_idx(folder: Path, split: str | None, subjects: bool) -> Package:
    splits = {_split_of(path): path for path in _idx_images(folder)}
    if split is None and len(splits) != 1:
        raise PackingError(f"{folder} holds several IDX pairs: choose one with --split ({', '.join(sorted(splits))}).")
    chosen = split if split is not None else next(iter(splits))
    images = splits.get(chosen)
    labels = next((path for path in sorted(folder.glob(f"{chosen}-labels?idx1-ubyte*")) if _is_idx(path)), None)
    owners = next(iter(sorted(folder.glob(f"{chosen}-subjects?idx1-int*"))), None) if subjects else None
    if images is None or labels is None:
        raise PackingError(f"{folder} holds no complete IDX pair {chosen!r}.")
    if subjects and owners is None:
        raise PackingError(
            f"{folder} holds no {chosen}-subjects-idx1-int, and the account protects all records of a subject together."
        )
    try:
        with _open_idx(images) as file:
            magic, records, height, width = struct.unpack(">4I", file.read(16))
        with _open_idx(labels) as file:
            label_magic, label_count = struct.unpack(">2I", file.read(8))
            class_count = max(file.read(label_count), default=0) + 1
        ids = [] if owners is None else _idx_ids(owners)
    except (struct.error, OSError, EOFError, ValueError) as error:
        raise PackingError(f"The IDX pair {chosen!r} in {folder} is damaged: {error}.") from error
    if (magic, label_magic) != (0x803, 0x801):
        raise PackingError(f"The files of the pair {chosen!r} in {folder} do not begin like IDX files of bytes.")
    names = tuple(str(label) for label in range(class_count))
    members = [(path.name, path) for path in (images, labels, owners) if path is not None]
    count = len(_numbers(ids)) if subjects else None
    return Package("idx", names, height, width, 1, records, count, lambda: _zip_stream(iter(members)))


def _idx_ids(path: Path) -> list[SubjectId]:
    with _open_idx(path) as file:
        magic, _ = struct.unpack(">2I", file.read(8))
        if magic != 0xC01:
            raise ValueError("the subjects are not an IDX file of 32-bit integers")
        ids: list[SubjectId] = np.frombuffer(file.read(), dtype=">i4").tolist()
    return ids


def _numbers(ids: Iterable[SubjectId]) -> dict[int | str, int]:
    """Number the distinct subjects in random order.

    Raises:
        PackingError: An id stands for nobody.
    """
    try:
        names = list({canonical(private_id) for private_id in ids})
    except Refused:
        raise PackingError("A subject id is no id: it is empty, negative, or a word such as 'nan'.") from None
    secrets.SystemRandom().shuffle(names)
    return {name: number for number, name in enumerate(names)}


def _folders(root: Path) -> list[tuple[str, Path]]:
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    return [(folder.name, folder) for folder in folders]


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURE_SUFFIXES and path.is_file())


def _picture_shape(file: IO[bytes]) -> tuple[int, int, int]:
    try:
        with Image.open(file) as picture:
            width, height = picture.size
            return height, width, 1 if picture.mode in ("L", "1", "I;16") else 3
    except (OSError, Image.DecompressionBombError) as error:
        raise PackingError(f"The first picture cannot be read: {type(error).__name__}.") from error


def _idx_images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*-images?idx3-ubyte*") if _is_idx(path))


def _is_idx(path: Path) -> bool:
    return path.is_file() and path.name.removesuffix(".gz").endswith("-ubyte")


def _split_of(images: Path) -> str:
    return images.name.partition("-images")[0]


def _open_idx(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]  # both read bytes


def _file_stream(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


class _Outbox(RawIOBase):
    """A file that cannot seek: collects what the zip writer writes until it is taken away."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.waiting_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        part = bytes(data)  # type: ignore[call-overload]  # a bytes-like object, by the protocol of files
        self._parts.append(part)
        self.waiting_bytes += len(part)
        return len(part)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts, self.waiting_bytes = [], 0
        return data


def _zip_stream(members: Iterator[tuple[str, Path]]) -> Iterator[bytes]:
    """Zip files without compression while they are sent; nothing is written to the disk."""
    outbox = _Outbox()
    with zipfile.ZipFile(outbox, "w", zipfile.ZIP_STORED) as archive:
        for name, path in members:
            info = zipfile.ZipInfo(name)  # a fixed date: neither names nor times of the files leave
            with archive.open(info, "w", force_zip64=path.stat().st_size >= 2**31) as target:
                for chunk in _file_stream(path):
                    target.write(chunk)
                    if outbox.waiting_bytes >= CHUNK_BYTES:
                        yield outbox.take()
    yield outbox.take()
