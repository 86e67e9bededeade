"""An upload that is ready to stream as a ZIP."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from obscura.errors import MoreThanStated
from obscura.wire.formats import UploadFormat

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Package:
    """An upload, ready to stream.

    `classes`, `height`, `width` and `channels` become public with the declaration. They are stated, fixed, or defined
    by the file format.

    Attributes:
        private_records, private_subjects: Counts, used only to check the owner's limits. `private_subjects` is None if
            there are no subjects.
        summary: One line on the conversions, for the owner alone.
        private_counts: Number of images by class, for the owner alone.
        private_notes: Remarks on suspicious images or names, for the owner alone.
        subjects_key_check: Identifies the secret that numbers the subjects; None if their numbers are random.
    """

    format: UploadFormat
    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    private_records: int
    private_subjects: int | None
    open: Callable[[], Iterator[bytes]]
    summary: str = ""
    private_counts: Mapping[str, int] = field(default_factory=dict)
    private_notes: tuple[str, ...] = ()
    subjects_key_check: str | None = None

    @property
    def recognised(self) -> bool:
        return self.subjects_key_check is not None

    def require_within(self, at_most: int, subjects_at_most: int | None) -> None:
        """Raise MoreThanStated if there are more records or subjects than the owner stated."""
        for what, flag, count, limit in (
            ("images", "--at-most", self.private_records, at_most),
            ("subjects", "--subjects-at-most", self.private_subjects or 0, subjects_at_most),
        ):
            if limit is not None and count > limit:
                raise MoreThanStated(
                    f"There are more {what} than you stated with {flag}. This limit is public and determines the "
                    f"noise: choose a number well above what you will ever have, or leave some {what} out."
                )


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    size_bytes: int
    chunks: Iterable[bytes]


def file_stream(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def can_be_folder(name: str) -> bool:
    return not {"/", "\\"} & set(name) and name not in (".", "..") and name[1:2] != ":"


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    file = io.BytesIO()
    descr = npy_format.dtype_to_descr(dtype)
    npy_format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": descr})
    return file.getvalue()


def npy_member(name: str, array: np.ndarray[Any, Any]) -> Member:
    return Member(f"{name}.npy", array.nbytes, (npy_header(array.shape, array.dtype), array.tobytes()))


def zip_stream(members: Iterable[Member]) -> Iterator[bytes]:
    """Stream an uncompressed ZIP without writing to disk."""
    outbox = _Outbox()
    with zipfile.ZipFile(outbox, "w", zipfile.ZIP_STORED) as archive:
        for member in members:
            info = zipfile.ZipInfo(member.name)  # a fixed date: file names and times are not sent
            with archive.open(info, "w", force_zip64=member.size_bytes >= 2**31) as target:
                for chunk in member.chunks:
                    target.write(chunk)
                    if len(outbox.waiting) >= CHUNK_BYTES:
                        yield bytes(outbox.waiting)
                        outbox.waiting.clear()
    yield bytes(outbox.waiting)


class _Outbox(io.RawIOBase):
    def __init__(self) -> None:
        self.waiting = bytearray()

    def write(self, data: Any) -> int:
        self.waiting += data
        return len(data)
