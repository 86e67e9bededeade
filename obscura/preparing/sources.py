"""What every layout hands on: labelled pictures, one at a time, and a tally of what it passed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from obscura.preparing.depth import Numbers
from obscura.preparing.package import Package
from obscura.wire.subjects import SubjectId

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # (h, w) or (h, w, 3)
PIXELS_MAX = 80_000_000  # 320 MB decoded; the largest photograph of a full-frame camera has about 60 million
Content = bytes | Pixels | Numbers


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled picture.

    Attributes:
        label: Its class.
        subject: Whose it is, where that is told.
        shown: How its owner knows it. Stays on this machine.
        read: Returns the bytes of a picture file, pixels, or numbers that are no pixels yet; raises Unreadable.
    """

    label: str
    subject: SubjectId | None
    shown: str
    read: Callable[[], Content]


@dataclass
class Tally:
    """What a walk over the files passed over.

    Attributes:
        left_out: How many, by what people call them ("1 hidden or system file").
        suffixes: Of the files that are no pictures.
        notes: How many pictures something is to be said of, by what.
        lost: The class folders that hold files, and no picture.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    suffixes: set[str] = field(default_factory=set)
    notes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """Labelled pictures that can be walked over more than once, always in the same order.

    Attributes:
        title: The recognised format, for people: "IDX files, train"; empty for ordinary class folders.
        walk: Yields the records, and counts what it passes over.
        classes: In label order, where the layout has one; None takes the labels that occur, sorted.
        package: Makes an upload of the files as they are, where the layout is one that the service reads.
        shape: (height, width, channels) of arrays, which their format gives to all records alike, so that no single
            record can change it; None where each picture is a file with a size of its own.
        folders: Whether the labels are names of folders, which may stand for other things than classes.
        owned: What in the files says whose each picture is, at the beginning of a sentence: "The column 'subject' of
            labels.csv"; None where nothing does.
        grouped: A sentence about what in the files says that several pictures are of one person, or "".
    """

    title: str
    walk: Callable[[Tally], Iterator[Record]]
    classes: tuple[str, ...] | None = None
    package: Callable[[], Package] | None = None
    shape: tuple[int, int, int] | None = None
    folders: bool = False
    owned: str | None = None
    grouped: str = ""
