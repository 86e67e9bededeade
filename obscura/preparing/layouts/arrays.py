"""NumPy arrays of images and labels: in memory, or in an .npz as Obscura, MedMNIST or Keras write it.

The arrays of an .npz are `images` and `labels`, and optionally `subjects` and `classes` (names in label order). Names
may start with the part (`train_images`) or end with the part (`x_train`). Images are read one at a time.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from obscura.errors import PackingError
from obscura.image_types import PIXELS_MAX
from obscura.preparing.choices import Choices
from obscura.preparing.columns import NOT_ONE, labels_of
from obscura.preparing.depth import Numbers
from obscura.preparing.labels import UNLABELLED, label_text, read_labels, require_stated
from obscura.preparing.package import Package, file_stream, npy_member, zip_stream
from obscura.preparing.sources import Content, Pixels, Record, Source, Tally, choose_part
from obscura.preparing.subjects import canonical_id, number_subjects
from obscura.preparing.tables import Table, usual_columns
from obscura.wire.uploads import SubjectId, in_order

_IMAGES, _LABELS = ("images", "image", "x", "data", "imgs"), ("labels", "label", "y", "targets", "target")
_CLASSES = ("classes", "class_names", "label_names")
_DEEP = ("u2", "i2", "u4", "i4", "f2", "f4", "f8")  # types of grey numbers that need a scale
_CHANNELS = ((), (1,), (3,), (4,))
_Header = tuple[tuple[int, ...], bool, np.dtype[Any]]  # shape, True if in Fortran order, type


@dataclass(frozen=True)
class Arrays:
    """Images in memory with the class and, if the account protects subjects, the subject of each.

    Attributes:
        images: uint8, (n, h, w), (n, h, w, 1) or (n, h, w, 3).
        labels: (n,) integers from 0, or names.
        subjects: (n,) integers or text; None if the account protects records.
    """

    images: np.ndarray[Any, np.dtype[np.uint8]]
    labels: np.ndarray[Any, Any] | Sequence[int | str]
    subjects: Sequence[SubjectId] | None = None

    def source(self, choices: Choices, *, subjects: bool | None) -> Source:
        images, owners = self.images, self.subjects
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
            raise PackingError(
                f"Images must be uint8 of shape (n, h, w) or (n, h, w, 3), not {images.dtype} of shape {images.shape}: "
                "scale them to 0 to 255 and convert them with .astype('uint8')."
            )
        labels, numbered = read_labels(self.labels, len(images), "Images in memory", choices)
        if subjects and owners is None:
            raise PackingError("The account protects subjects: give their ids as subjects=, one for each image.")
        if owners is not None and len(owners) != len(images):
            raise PackingError(f"There are {len(images):,} images, but {len(owners):,} subject ids.")
        used = {label for label in labels if label is not None}
        require_stated(() if numbered else used, choices.classes)
        classes = numbered or choices.classes or in_order(used)
        height, width, channels = (*images.shape[1:], 1)[:3]

        def package() -> Package:
            label_numbers = {name: number for number, name in enumerate(classes)}
            arrays: dict[str, np.ndarray[Any, Any]] = {"images": images}
            arrays["labels"] = np.array([label_numbers[str(label)] for label in labels], np.int64)
            ids = None if owners is None else number_subjects(owners)  # only random numbers are sent
            if owners is not None and ids is not None:
                arrays["subjects"] = np.array([ids[canonical_id(owner)] for owner in owners], np.int64)
            members = [npy_member(name, array) for name, array in arrays.items()]
            count = None if ids is None else len(ids)
            return Package("npz", classes, height, width, channels, len(images), count, lambda: zip_stream(members))

        is_text = choices.classes is None and numbered is None  # names that were not stated need the owner's answer
        return Source(
            "Arrays",
            lambda tally: _walk(images, labels, owners, UNLABELLED, tally),
            None if is_text else classes,
            None if None in labels else package,
            (height, width, channels),
            owned=None if owners is None else "The argument subjects=",
        )


def find(path: Path, choices: Choices, subjects: bool) -> Source | None:
    if path.is_dir() or path.suffix.lower() != ".npz":
        return None
    headers = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
            for info in archive.infolist():
                if info.filename.endswith(".npy"):
                    with archive.open(info) as member:
                        headers[info.filename.removesuffix(".npy")] = _header(member)
        parts = _parts(path, headers)
        if choices.split is not None and list(parts) == [""]:
            raise PackingError(f"{path.name} does not come in parts such as train and test: leave --split out.")
        chosen, title = choose_part(path.name, list(parts), choices.split, title="Arrays")
        names = parts[chosen]
        shape, in_fortran_order, dtype = headers[names["images"]]
        with np.load(path, allow_pickle=False) as arrays:
            found = {kind: arrays[name] for kind, name in names.items() if kind != "images"}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, ValueError, TypeError) as error:
        raise PackingError(
            f"{path.name} cannot be read as an .npz with two arrays, 'images' (uint8) and 'labels': {error}."
        ) from error
    channels_first = _channels_first(path, shape, in_fortran_order, dtype)
    count = shape[0]
    height, width, channels = (*shape[2:], shape[1]) if channels_first else (*shape[1:], 1)[:3]
    labels, classes = _labels_of(path, found, count, choices)

    ids: tuple[SubjectId, ...] | None = None
    if subjects and "subjects" not in found:
        raise PackingError(
            f"{path.name} must contain a third array 'subjects', of integers or text: the account protects all records "
            "of a subject together."
        )
    if "subjects" in found:
        flat = found["subjects"]
        flat = flat[:, 0] if flat.ndim == 2 and flat.shape[1] == 1 else flat
        if flat.shape != (count,) or flat.dtype.kind not in "iuUS":
            raise PackingError(f"The subjects of {path.name} must be integers or text, one for each image.")
        ids = tuple(flat.tolist())

    def images() -> Iterator[np.ndarray[Any, Any]]:
        with zipfile.ZipFile(path) as archive, archive.open(f"{names['images']}.npy") as member:
            _header(member)
            for _ in labels:
                data = member.read(int(np.prod(shape[1:])) * dtype.itemsize)
                values = np.frombuffer(data, dtype).reshape(shape[1:])
                yield np.ascontiguousarray(values.transpose(1, 2, 0)) if channels_first else values

    def walk(tally: Tally) -> Iterator[Record]:
        return _walk(images(), labels, ids, NOT_ONE if choices.attribute else UNLABELLED, tally)

    def package() -> Package:
        assert classes is not None
        subjects_count = None if ids is None else len(number_subjects(ids))
        return Package("npz", classes, height, width, channels, count, subjects_count, lambda: file_stream(path))

    as_it_is = (
        members == {"images.npy", "labels.npy", *(["subjects.npy"] if subjects else [])}
        and found["labels"].ndim == 1
        and found["labels"].dtype.kind in "iu"
        and None not in labels
        and classes == tuple(map(str, range(len(classes or ()))))
        and channels != 4
        and dtype == np.uint8
        and not channels_first
    )
    owned = None if ids is None else f"The array {names['subjects']!r} of {path.name}"
    shown_shape = (height, width, min(channels, 3))
    return Source(title, walk, classes, package if as_it_is else None, shown_shape, owned=owned)


def _walk(
    images: Iterable[np.ndarray[Any, Any]],
    labels: Sequence[str | None],
    owners: Sequence[SubjectId] | None,
    left_out: str,
    tally: Tally,
) -> Iterator[Record]:
    tally.left_out[left_out] += labels.count(None)
    for number, (values, label) in enumerate(zip(images, labels, strict=True)):
        if label is not None:
            owner = None if owners is None else owners[number]
            yield Record(label, owner, f"number {number}", partial(_image, values))


def _image(values: np.ndarray[Any, Any]) -> Content:
    if values.dtype != np.uint8:
        whole = values.dtype.kind == "u"
        limits = (0, 2 ** (8 * values.dtype.itemsize) - 1) if whole else None
        return Numbers(values.reshape(values.shape[:2]), limits, integers=whole)
    pixels: Pixels = values[:, :, 0] if values.shape[2:] == (1,) else values
    if pixels.shape[2:] != (4,):
        return pixels
    file = io.BytesIO()  # as an image file, so that transparent pixels become white
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _header(member: IO[bytes]) -> _Header:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(member)
    return shape, fortran_order, dtype


def _parts(path: Path, headers: Mapping[str, _Header]) -> dict[str, dict[str, str]]:
    parts: dict[str, dict[str, str]] = {}
    for name in headers:
        split = re.fullmatch(r"(?:(train|val|valid|test)_)?(\w+?)(?:_(train|val|valid|test))?", name, re.IGNORECASE)
        if split is None:
            continue
        owners = usual_columns("subject", [split[2]])
        known = {"images": _IMAGES, "labels": _LABELS, "subjects": owners, "classes": _CLASSES}
        for kind, words in known.items():
            if split[2].casefold() in map(str.casefold, words):
                parts.setdefault((split[1] or split[3] or "").casefold(), {}).setdefault(kind, name)
    shared = parts.get("", {})
    parts = {part: shared | names for part, names in parts.items()}  # class names apply to all parts
    whole = {part: names for part, names in parts.items() if {"images", "labels"} <= set(names)}
    if not whole:
        raise PackingError(
            f"{path.name} must contain two arrays, 'images' (uint8) and 'labels', or the arrays of a part, such as "
            f"'train_images' and 'train_labels'. It contains {', '.join(headers) or 'none'}."
        )
    return whole


def _channels_first(path: Path, shape: tuple[int, ...], in_fortran_order: bool, dtype: np.dtype[Any]) -> bool:
    if len(shape) not in (3, 4):
        raise PackingError(f"'images' must have shape (n, h, w) or (n, h, w, c), not {shape}.")
    if int(np.prod(shape[1:])) > 4 * PIXELS_MAX or 0 in shape[1:]:
        raise PackingError(f"The images of {path.name} are too large, or have no pixels: their shape is {shape}.")
    deep = dtype.str[1:] in _DEEP and (len(shape) == 3 or shape[3:] == (1,))
    if not (deep or dtype == np.uint8) or in_fortran_order:
        raise PackingError(
            f"The images of {path.name} must be uint8 in C order, (n, h, w) or (n, h, w, 3), or grey numbers of more "
            f"bits; they are {dtype}{' in Fortran order' if in_fortran_order else ''}. Scale them to 0 to 255 and "
            "write them with numpy.ascontiguousarray(images.astype('uint8'))."
        )
    first = len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3:] not in _CHANNELS
    if not first and shape[3:] not in _CHANNELS:
        raise PackingError(
            f"The images of {path.name} have shape {shape}: they are volumes, or have more channels than colours. "
            "Images must have shape (n, h, w) or (n, h, w, 3)."
        )
    return first


def _labels_of(
    path: Path, found: Mapping[str, np.ndarray[Any, Any]], count: int, choices: Choices
) -> tuple[tuple[str | None, ...], tuple[str, ...] | None]:
    labels = found["labels"]
    several = labels.ndim == 2 and labels.shape[1] > 1
    one_hot = several and labels.dtype.kind == "f" and bool(np.isin(labels, (0, 1)).all())
    labels = labels.astype(np.uint8) if labels.dtype == bool or one_hot else labels
    if not several:
        if choices.attribute:
            raise PackingError(f"Leave --attribute out: each image of {path.name} has only one label.")
        named = tuple(label_text(name) for name in found["classes"].ravel().tolist()) if "classes" in found else ()
        return read_labels(labels, count, path.name, choices, named)
    if len(labels) != count or labels.dtype.kind not in "iub" or not np.isin(labels, (0, 1)).all():
        raise PackingError(
            f"The labels of {path.name} are {labels.dtype} of shape {labels.shape}: give one label for each image, or "
            "columns of 0 and 1."
        )
    rows = [(str(number), *map(str, map(int, row))) for number, row in enumerate(labels.tolist())]
    return labels_of(Table(path.name, ("number", *map(str, range(labels.shape[1]))), rows), choices)
