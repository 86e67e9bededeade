"""Images that are in memory already: NumPy arrays of pixels and labels."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from obscura.preparing.classes import require_stated
from obscura.preparing.errors import PackingError
from obscura.preparing.package import Member, Package, zip_stream
from obscura.preparing.sources import Pixels, Record, Source, Tally
from obscura.preparing.subjects import canonical_id, number_subjects
from obscura.wire.subjects import SubjectId


@dataclass(frozen=True)
class Arrays:
    """Images, the class of each, and whose each is.

    Attributes:
        images: uint8, (n, h, w), (n, h, w, 1) or (n, h, w, 3).
        labels: (n,): numbers from 0 on, or names.
        subjects: (n,), where the account's unit is the subject: integers or texts.
    """

    images: np.ndarray[Any, np.dtype[np.uint8]]
    labels: np.ndarray[Any, Any] | Sequence[int | str]
    subjects: Sequence[SubjectId] | None = None

    def source(self, *, subjects: bool | None, classes: tuple[str, ...] | None = None) -> Source:
        """Check the arrays and hand them on.

        Raises:
            PackingError: They are not of these types and shapes, or subjects are missing.
        """
        images, labels = self.images, np.asarray(self.labels)
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
            raise PackingError(
                f"Images are uint8 of shape (n, h, w) or (n, h, w, 3), not {images.dtype} of shape {images.shape}: "
                "scale them to 0 to 255 and convert them with .astype('uint8')."
            )
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iuU":
            raise PackingError(
                f"There are {len(images):,} images: give as many labels, numbers or names, not {labels.dtype} of shape "
                f"{labels.shape}."
            )
        if labels.dtype.kind != "U" and labels.min(initial=0) < 0:
            raise PackingError("Labels that are numbers begin at 0.")
        if subjects and self.subjects is None:
            raise PackingError(
                "The account protects all records of a subject together: give subjects=, one for each image."
            )
        if self.subjects is not None and len(self.subjects) != len(images):
            raise PackingError(f"There are {len(images):,} images and {len(self.subjects):,} subjects.")
        if labels.dtype.kind == "U":
            require_stated(map(str, np.unique(labels)), classes)
            names = classes or tuple(map(str, np.unique(labels)))
        else:
            names = tuple(map(str, range(int(labels.max(initial=-1)) + 1)))
        height, width, *channels = images.shape[1:]
        shape = (height, width, (channels or [1])[0])
        owned = None if self.subjects is None else "The argument subjects="
        package = None if owned is not None and not subjects else lambda: self._package(names)
        named = names if classes is not None or labels.dtype.kind != "U" else None  # texts may be anything: it is asked
        return Source("Arrays", self._walk, named, package, shape, owned=owned)

    def _walk(self, tally: Tally) -> Iterator[Record]:
        del tally  # nothing is passed over
        images = self.images[:, :, :, 0] if self.images.shape[3:] == (1,) else self.images
        for number, label in enumerate(self.labels):
            owner = None if self.subjects is None else self.subjects[number]
            pixels: Pixels = np.ascontiguousarray(images[number])
            yield Record(str(label), owner, f"number {number}", lambda pixels=pixels: pixels)  # type: ignore[misc]

    def _package(self, classes: tuple[str, ...]) -> Package:
        labels = np.asarray(self.labels)
        numbers = np.array([classes.index(str(label)) for label in labels]) if labels.dtype.kind == "U" else labels
        arrays: dict[str, np.ndarray[Any, Any]] = {"images": self.images, "labels": numbers.astype(np.int64)}
        owners = None
        if self.subjects is not None:
            drawn = number_subjects(self.subjects)  # the ids stay here
            arrays["subjects"] = np.array([drawn[canonical_id(owner)] for owner in self.subjects], dtype=np.int64)
            owners = len(drawn)
        n, height, width, *channels = self.images.shape
        return Package("npz", classes, height, width, (channels or [1])[0], n, owners, lambda: _npz(arrays))


def _npz(arrays: dict[str, np.ndarray[Any, Any]]) -> Iterator[bytes]:
    """An .npz, made while it is sent."""
    members = []
    for name, array in arrays.items():
        file = io.BytesIO()
        np.lib.format.write_array(file, array, allow_pickle=False)
        members.append(Member(f"{name}.npy", file.tell(), (file.getvalue(),)))
    return zip_stream(members)
