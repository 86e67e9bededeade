"""Images in memory: NumPy arrays of pixels and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from obscura.preparing.choices import Choices
from obscura.preparing.errors import PackingError
from obscura.preparing.labels import UNLABELLED, read_labels, require_stated
from obscura.preparing.package import Package, npy_member, zip_stream
from obscura.preparing.sources import Pixels, Record, Source, Tally
from obscura.preparing.subjects import canonical_id, number_subjects
from obscura.wire.uploads import SubjectId, in_order


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
        images, owners = self.images, self.subjects
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
            raise PackingError(
                f"Images are uint8 of shape (n, h, w) or (n, h, w, 3), not {images.dtype} of shape {images.shape}: "
                "scale them to 0 to 255 and convert them with .astype('uint8')."
            )
        labels, numbered = read_labels(self.labels, len(images), "Images in memory", choices)
        if subjects and owners is None:
            raise PackingError(
                "The account protects all records of a subject together: give subjects=, one for each image."
            )
        if owners is not None and len(owners) != len(images):
            raise PackingError(f"There are {len(images):,} images and {len(owners):,} subjects.")
        used = {label for label in labels if label is not None}
        require_stated(() if numbered else used, choices.classes)
        classes = numbered or choices.classes or in_order(used)
        height, width, channels = (*images.shape[1:], 1)[:3]

        def walk(tally: Tally) -> Iterator[Record]:
            tally.left_out[UNLABELLED] += labels.count(None)
            flat = images[:, :, :, 0] if images.shape[3:] == (1,) else images
            for number, label in enumerate(labels):
                if label is not None:
                    pixels: Pixels = np.ascontiguousarray(flat[number])
                    owner = None if owners is None else owners[number]
                    yield Record(label, owner, f"number {number}", lambda pixels=pixels: pixels)  # type: ignore[misc]

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
            walk,
            None if is_text else classes,
            None if None in labels else package,
            (height, width, channels),
            owned=None if owners is None else "The argument subjects=",
        )
