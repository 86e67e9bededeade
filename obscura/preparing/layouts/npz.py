"""An .npz of images and labels: what the service reads as it is, what MedMNIST and Keras hand out, what Obscura writes.

The arrays are called `images` and `labels`, with `subjects` and `classes` (the names in label order) beside them; or
with the part in front (`train_images`) or behind (`x_train`). Images are read one at a time.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from obscura.preparing.choices import Choices
from obscura.preparing.columns import NOT_ONE, read_columns
from obscura.preparing.depth import Numbers
from obscura.preparing.errors import PackingError
from obscura.preparing.labels import UNLABELLED, call_classes, label_text, read_labels
from obscura.preparing.package import Package, file_stream
from obscura.preparing.sources import PIXELS_MAX, Content, Pixels, Record, Source, Tally, choose_part, title_of
from obscura.preparing.subjects import number_subjects
from obscura.preparing.tables import Table, known_subjects
from obscura.wire.subjects import SubjectId

_IMAGES, _LABELS = ("images", "image", "x", "data", "imgs"), ("labels", "label", "y", "targets", "target")
_CLASSES = ("classes", "class_names", "label_names")
_DEEP = ("u2", "i2", "u4", "i4", "f2", "f4", "f8")  # types of grey numbers that are no pixels yet
_CHANNELS = ((), (1,), (3,), (4,))


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool


@dataclass(frozen=True)
class _Arrays:
    path: Path
    images: str  # the array's name
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    channels_first: bool
    labels: tuple[str | None, ...]
    attributes: bool
    ids: tuple[SubjectId, ...] | None

    def package(self, classes: tuple[str, ...]) -> Package:
        return Package(
            "npz",
            classes,
            self.shape[1],
            self.shape[2],
            self.shape[3] if len(self.shape) == 4 else 1,
            self.shape[0],
            None if self.ids is None else len(number_subjects(self.ids)),
            lambda: file_stream(self.path),
        )

    def walk(self, tally: Tally) -> Iterator[Record]:
        tally.left_out[NOT_ONE if self.attributes else UNLABELLED] += self.labels.count(None)
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{self.images}.npy") as member:
            _header(member)
            for number, label in enumerate(self.labels):
                data = member.read(int(np.prod(self.shape[1:])) * self.dtype.itemsize)
                if label is None:
                    continue
                owner = None if self.ids is None else self.ids[number]
                yield Record(label, owner, f"number {number}", partial(self._image, data))

    def _image(self, data: bytes) -> Content:
        if self.dtype != np.uint8:
            values = np.frombuffer(data, self.dtype).reshape(self.shape[1:3])
            whole = self.dtype.kind == "u"
            return Numbers(values, (0, 2 ** (8 * self.dtype.itemsize) - 1) if whole else None, integers=whole)
        pixels: Pixels = np.frombuffer(data, np.uint8).reshape(self.shape[1:])
        if self.channels_first:
            pixels = np.ascontiguousarray(pixels.transpose(1, 2, 0))
        if pixels.shape[2:] == (1,):
            return pixels[:, :, 0]
        if pixels.shape[2:] != (4,):
            return pixels
        file = io.BytesIO()  # transparency is laid on the background as that of any image
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        return file.getvalue()


def find_file(path: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise an .npz file."""
    if path.suffix.lower() != ".npz":
        return None
    try:
        members, headers = _headers(path)
        parts = _parts(path, headers)
        if choices.split is not None and list(parts) == [""]:
            raise PackingError(f"{path.name} does not come in parts such as train and test: leave --split out.")
        chosen = choose_part(path.name, list(parts), choices.split)
        names = parts[chosen]
        header = headers[names["images"]]
        with np.load(path, allow_pickle=False) as arrays:
            found = {kind: arrays[name] for kind, name in names.items() if kind != "images"}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, ValueError, TypeError) as error:
        raise PackingError(f"{path.name} must hold two arrays, 'images' (uint8) and 'labels': {error}.") from error
    first = _channels_first(path, header)
    height, width, channels = _size(header.shape, channels_first=first)
    labels, classes = _labels_of(path, found, header.shape[0], choices)
    ids = _ids(path, found.get("subjects"), header.shape[0], subjects=subjects)
    made = _Arrays(path, names["images"], header.shape, header.dtype, first, labels, bool(choices.attributes), ids)
    title = title_of("Arrays", list(parts), chosen) if chosen else "Arrays"
    as_it_is = (
        members == {"images.npy", "labels.npy", *(["subjects.npy"] if subjects else [])}
        and found["labels"].ndim == 1
        and found["labels"].dtype.kind in "iu"
        and None not in labels
        and classes == tuple(map(str, range(len(classes or ()))))
        and channels != 4
        and header.dtype == np.uint8
        and not first
    )
    owned = None if ids is None else f"The array {names['subjects']!r} of {path.name}"
    package = partial(made.package, classes) if as_it_is and classes is not None else None
    return Source(title, made.walk, classes, package, (height, width, min(channels, 3)), owned=owned)


def _headers(path: Path) -> tuple[set[str], dict[str, _Header]]:
    found = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.filename.endswith(".npy"):
                with archive.open(info) as member:
                    found[info.filename.removesuffix(".npy")] = _header(member)
        return set(archive.namelist()), found


def _header(member: IO[bytes]) -> _Header:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(member)
    return _Header(shape, dtype, fortran_order)


def _parts(path: Path, headers: Mapping[str, _Header]) -> dict[str, dict[str, str]]:
    parts: dict[str, dict[str, str]] = {}
    for name in headers:
        split = re.fullmatch(r"(?:(train|val|valid|test)_)?(\w+?)(?:_(train|val|valid|test))?", name, re.IGNORECASE)
        if split is None:
            continue
        known = {"images": _IMAGES, "labels": _LABELS, "subjects": known_subjects([split[2]]), "classes": _CLASSES}
        for kind, words in known.items():
            if split[2].casefold() in map(str.casefold, words):
                parts.setdefault((split[1] or split[3] or "").casefold(), {}).setdefault(kind, name)
    shared = parts.get("", {})
    parts = {part: shared | names for part, names in parts.items()}  # names of classes are those of all parts
    whole = {part: names for part, names in parts.items() if {"images", "labels"} <= set(names)}
    if not whole:
        raise PackingError(
            f"{path.name} must hold two arrays, 'images' (uint8) and 'labels', or those of a part, such as "
            f"'train_images' and 'train_labels'. It holds {', '.join(headers) or 'none'}."
        )
    return whole


def _channels_first(path: Path, header: _Header) -> bool:
    shape = header.shape
    if len(shape) not in (3, 4):
        raise PackingError(f"'images' must be (n, h, w) or (n, h, w, c); it is {shape}.")
    if int(np.prod(shape[1:])) > 4 * PIXELS_MAX or 0 in shape[1:]:
        raise PackingError(f"The images of {path.name} are larger than any image, or have no pixels: {shape}.")
    deep = header.dtype.str[1:] in _DEEP and (len(shape) == 3 or shape[3:] == (1,))
    if not (deep or header.dtype == np.uint8) or header.fortran_order:
        raise PackingError(
            f"The images of {path.name} must be uint8 in C order, (n, h, w) or (n, h, w, 3), or grey numbers of more "
            f"bits; they are {header.dtype}{' in Fortran order' if header.fortran_order else ''}. Bring them to 0 to "
            "255 and write them with numpy.ascontiguousarray(images.astype('uint8'))."
        )
    first = len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3:] not in _CHANNELS
    if not first and shape[3:] not in _CHANNELS:
        raise PackingError(
            f"The images of {path.name} are {shape}: volumes, or of more channels than colours have. Images are "
            "(n, h, w) or (n, h, w, 3)."
        )
    return first


def _size(shape: tuple[int, ...], *, channels_first: bool) -> tuple[int, int, int]:
    if channels_first:
        return shape[2], shape[3], shape[1]
    return shape[1], shape[2], (*shape, 1)[3]


def _labels_of(
    path: Path, found: Mapping[str, np.ndarray[Any, Any]], count: int, choices: Choices
) -> tuple[tuple[str | None, ...], tuple[str, ...] | None]:
    labels = found["labels"]
    labels = labels.astype(np.uint8) if labels.dtype == bool or _is_one_hot(labels) else labels
    if labels.ndim == 2 and labels.shape[1] > 1:
        return _of_columns(path, labels, count, choices)
    if choices.attributes:
        raise PackingError(f"--attribute is for labels in several columns, and those of {path.name} are in one.")
    named = tuple(label_text(name) for name in found["classes"].ravel().tolist()) if "classes" in found else ()
    return call_classes(read_labels(labels, count, path.name, choices), named, choices, path.name)


def _is_one_hot(labels: np.ndarray[Any, Any]) -> bool:
    return labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind == "f" and bool(np.isin(labels, (0, 1)).all())


def _of_columns(
    path: Path, labels: np.ndarray[Any, Any], count: int, choices: Choices
) -> tuple[tuple[str | None, ...], tuple[str, ...] | None]:
    if len(labels) != count or labels.dtype.kind not in "iub" or not np.isin(labels, (0, 1)).all():
        raise PackingError(
            f"The labels of {path.name} are {labels.dtype} of shape {labels.shape}: give one for each image, or "
            "columns of 0 and 1."
        )
    rows = [(str(number), *map(str, map(int, row))) for number, row in enumerate(labels.tolist())]
    table = Table(path.name, ("number", *map(str, range(labels.shape[1]))), rows)
    here = choices.replace(file_column="number", label_column=None, subject_column=None)
    said = read_columns(table, here, lambda _: True, subjects=False)
    return tuple(row.label for row in said.rows), said.classes


def _ids(path: Path, ids: np.ndarray[Any, Any] | None, count: int, *, subjects: bool) -> tuple[SubjectId, ...] | None:
    if subjects and ids is None:
        raise PackingError(
            f"{path.name} must hold a third array 'subjects', integers or texts: the account protects all records of "
            "a subject together."
        )
    if ids is None:
        return None
    flat = ids[:, 0] if ids.ndim == 2 and ids.shape[1] == 1 else ids
    if flat.shape != (count,) or flat.dtype.kind not in "iuUS":
        raise PackingError(f"The subjects of {path.name} must be integers or texts, one for each image.")
    return tuple(flat.tolist())
