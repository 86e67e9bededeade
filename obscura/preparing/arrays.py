"""Images that are in memory already: NumPy arrays of pixels and labels."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from obscura.preparing.choices import Choices
from obscura.preparing.errors import PackingError
from obscura.preparing.labels import UNLABELLED, call_classes, read_labels, require_stated
from obscura.preparing.package import Member, Package, zip_stream
from obscura.preparing.sources import Pixels, Record, Source, Tally
from obscura.preparing.subjects import canonical_id, number_subjects
from obscura.wire.class_folders import in_order
from obscura.wire.subjects import SubjectId


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
        """Validate types and shapes and return the source."""
        images = self.images
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
            raise PackingError(
                f"Images are uint8 of shape (n, h, w) or (n, h, w, 3), not {images.dtype} of shape {images.shape}: "
                "scale them to 0 to 255 and convert them with .astype('uint8')."
            )
        read = read_labels(self.labels, len(images), "Images in memory", choices)
        labels, numbered = call_classes(read, (), choices, "Images in memory")
        if subjects and self.subjects is None:
            raise PackingError(
                "The account protects all records of a subject together: give subjects=, one for each image."
            )
        if self.subjects is not None and len(self.subjects) != len(images):
            raise PackingError(f"There are {len(images):,} images and {len(self.subjects):,} subjects.")
        found = {label for label in labels if label is not None}
        require_stated(() if numbered else found, choices.classes)
        names = numbered or choices.classes or in_order(found)
        height, width, *channels = images.shape[1:]
        shape = (height, width, (channels or [1])[0])
        walk, package = partial(self._walk, labels), None if None in labels else partial(self._package, labels, names)
        owned = None if self.subjects is None else "The argument subjects="
        texts = choices.classes is None and numbered is None  # which may be anything: it is asked
        return Source("Arrays", walk, None if texts else names, package, shape, owned=owned)

    def _walk(self, labels: tuple[str | None, ...], tally: Tally) -> Iterator[Record]:
        tally.left_out[UNLABELLED] += labels.count(None)
        images = self.images[:, :, :, 0] if self.images.shape[3:] == (1,) else self.images
        for number, label in enumerate(labels):
            if label is None:
                continue
            owner = None if self.subjects is None else self.subjects[number]
            pixels: Pixels = np.ascontiguousarray(images[number])
            yield Record(label, owner, f"number {number}", lambda pixels=pixels: pixels)  # type: ignore[misc]

    def _package(self, labels: tuple[str | None, ...], classes: tuple[str, ...]) -> Package:
        numbers = {name: number for number, name in enumerate(classes)}
        of_each = np.array([numbers[str(label)] for label in labels], dtype=np.int64)
        arrays: dict[str, np.ndarray[Any, Any]] = {"images": self.images, "labels": of_each}
        owners = None
        if self.subjects is not None:
            drawn = number_subjects(self.subjects)  # the ids stay here
            arrays["subjects"] = np.array([drawn[canonical_id(owner)] for owner in self.subjects], dtype=np.int64)
            owners = len(drawn)
        n, height, width, *channels = self.images.shape
        return Package("npz", classes, height, width, (channels or [1])[0], n, owners, lambda: _npz(arrays))


def _npz(arrays: dict[str, np.ndarray[Any, Any]]) -> Iterator[bytes]:
    members = []
    for name, array in arrays.items():
        file = io.BytesIO()
        np.lib.format.write_array(file, array, allow_pickle=False)
        members.append(Member(f"{name}.npy", file.tell(), (file.getvalue(),)))
    return zip_stream(members)
