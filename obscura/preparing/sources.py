"""Labelled images as every layout yields them, one at a time, with a tally of what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from obscura.preparing.depth import Numbers
from obscura.preparing.errors import PackingError
from obscura.preparing.package import Package
from obscura.wire.subjects import SubjectId

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # (h, w) or (h, w, 3)
PIXELS_MAX = 80_000_000  # 320 MB decoded; the largest photograph of a full-frame camera has about 60 million
Content = bytes | Pixels | Numbers


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled image.

    Attributes:
        label: Its class.
        subject: Its subject id, if known.
        shown: Its name for messages. Never leaves this machine.
        read: Returns the bytes of an image file, pixels or unscaled numbers; raises Unreadable.
    """

    label: str
    subject: SubjectId | None
    shown: str
    read: Callable[[], Content]


@dataclass
class Tally:
    """What a walk left out.

    Attributes:
        left_out: Counts by kind, such as "hidden or system file".
        suffixes: Suffixes of files that are not images.
        notes: Number of images by remark.
        lost: Class folders that contain files but no images.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    suffixes: set[str] = field(default_factory=set)
    notes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """Labelled images that can be walked repeatedly, always in the same order.

    Attributes:
        title: The recognised format, such as "IDX files, train"; empty for class folders.
        walk: Yields the records and tallies what it leaves out.
        classes: In label order, if the layout defines one; None uses the labels that occur, sorted.
        package: Returns an upload of the unchanged files, if the service reads this layout.
        shape: (height, width, channels) of arrays, given by their format and so independent of any record; None if each
            image is a file of its own size.
        folders: Whether labels are folder names, which may mean something other than classes.
        owned: Noun phrase for the source of the subject ids, such as "The column 'subject' of labels.csv"; or None.
        grouped: Sentence about hints that several images belong to one person, or "".
    """

    title: str
    walk: Callable[[Tally], Iterator[Record]]
    classes: tuple[str, ...] | None = None
    package: Callable[[], Package] | None = None
    shape: tuple[int, int, int] | None = None
    folders: bool = False
    owned: str | None = None
    grouped: str = ""


PARTS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev")  # as they are called


def choose_part(name: str, parts: Sequence[str], wanted: str | None) -> str:
    """Return the part to use: the requested one, else the only one, else train."""
    chosen = wanted or (parts[0] if len(parts) == 1 else "train")
    if chosen not in parts:
        listed = ", ".join(sorted(parts))
        raise PackingError(f"{name} has {listed}: choose one with --split." if parts else f"{name} is incomplete.")
    return chosen


def title_of(name: str, parts: Sequence[str], chosen: str) -> str:
    """Return the title of a format and the selected part."""
    others = " and ".join(sorted(part for part in parts if part != chosen))
    return f"{name}, {chosen}" + (f" (not {others}; --split chooses)" if others else "")
