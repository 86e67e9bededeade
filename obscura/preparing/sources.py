"""Labelled images that layouts yield one at a time, a tally of the files left out, and uploads ready to stream."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np
from numpy.lib import format as npy_format

from obscura.errors import MoreThanStated, PackingError, Unreadable
from obscura.preparing.depth import Numbers
from obscura.wire.formats import UploadFormat
from obscura.wire.uploads import SubjectId

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # (h, w) or (h, w, 3)
Content = bytes | Pixels | Numbers
OTHER = "other file"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled image.

    `shown` is the image's name in messages, which never leave this machine. `read` returns the bytes of an image file,
    pixels, or numbers before scaling; it may raise Unreadable.
    """

    label: str
    subject: SubjectId | None
    shown: str
    read: Callable[[], Content]


def fail(error: Unreadable) -> NoReturn:
    raise error


@dataclass
class Tally:
    """Counts of one pass over the images: files left out by kind, suffixes of other files, and empty class folders.

    `notes` counts images by remark.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    suffixes: set[str] = field(default_factory=set)
    notes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def leave_out(self, path: str) -> None:
        """Count a file that is not an image."""
        self.left_out[OTHER] += 1
        self.suffixes.add(PurePosixPath(path).suffix.lower() or path.rpartition("/")[2])


@dataclass(frozen=True)
class Source:
    """Labelled images that can be walked repeatedly, always in the same order.

    Attributes:
        title: The recognised format, such as "IDX files, train"; empty for class folders.
        walk: Yields the records and tallies what it leaves out.
        classes: In label order, if the layout defines it. None uses the labels that occur, sorted.
        package: Returns an upload of the unchanged files, if the service can read this layout.
        shape: (height, width, channels) of arrays, which the format defines independently of any record; None if each
            image is a file of its own size.
        grey: True if the images of this layout are usually grey, so that grey is the fixed default.
        folders: True if labels are folder names, which may denote something other than classes.
        owned: Noun phrase for the source of the subject ids, such as "The column 'subject' of labels.csv"; or None.
        grouped: Sentence about signs that several images belong to one person, or "".
    """

    title: str
    walk: Callable[[Tally], Iterator[Record]]
    classes: tuple[str, ...] | None = None
    package: Callable[[], Package] | None = None
    shape: tuple[int, int, int] | None = None
    grey: bool = False
    folders: bool = False
    owned: str | None = None
    grouped: str = ""


PARTS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev")  # common spellings
_PART = re.compile(rf"(?<![a-z])({'|'.join(PARTS)})(?=[-._/]|$)", re.IGNORECASE)


def part_in(path: str) -> str:
    """Return the part named in a path, such as train, in lower case; "" if there is none."""
    found = _PART.search(path)
    return found[1].casefold() if found else ""


def choose_part(name: str, parts: Sequence[str], wanted: str | None, *, title: str) -> tuple[str, str]:
    """Return the part to use and its title: the requested part, otherwise the only part, otherwise train."""
    chosen = wanted or (parts[0] if len(parts) == 1 else "train")
    if chosen not in parts:
        listed = ", ".join(sorted(parts))
        raise PackingError(f"{name} has {listed}: choose a part with --split." if parts else f"{name} is incomplete.")
    others = " and ".join(sorted(part for part in parts if part != chosen))
    title = f"{title}, {chosen}" if chosen else title
    return chosen, title + (f" (not {others}; choose with --split)" if others and chosen else "")


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
