"""Labelled images that every layout yields one at a time, and a tally of the files left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NoReturn

import numpy as np

from obscura.errors import PackingError, Unreadable
from obscura.preparing.depth import Numbers
from obscura.preparing.package import Package
from obscura.wire.uploads import SubjectId

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # (h, w) or (h, w, 3)
Content = bytes | Pixels | Numbers
OTHER = "other file"


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
