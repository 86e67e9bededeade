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
        subject: Whose it is, where that is told.
        shown: How its owner knows it. Stays on this machine.
        read: Returns the bytes of an image file, pixels, or numbers that are no pixels yet; raises Unreadable.
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
        suffixes: Of the files that are no images.
        notes: How many images something is to be said of, by what.
        lost: The class folders that hold files, and no image.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    suffixes: set[str] = field(default_factory=set)
    notes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """Labelled images that can be walked over more than once, always in the same order.

    Attributes:
        title: The recognised format, for people: "IDX files, train"; empty for ordinary class folders.
        walk: Yields the records, and counts what it passes over.
        classes: In label order, where the layout has one; None takes the labels that occur, sorted.
        package: Makes an upload of the files as they are, where the layout is one that the service reads.
        shape: (height, width, channels) of arrays, which their format gives to all records alike, so that no single
            record can change it; None where each image is a file with a size of its own.
        folders: Whether the labels are names of folders, which may stand for other things than classes.
        owned: What in the files says whose each image is, at the beginning of a sentence: "The column 'subject' of
            labels.csv"; None where nothing does.
        grouped: A sentence about what in the files says that several images are of one person, or "".
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
    """Return the part to take: the one that was asked for, else the only one, else train.

    Raises:
        PackingError: No part has that name, or several stand there of which none is called train.
    """
    chosen = wanted or (parts[0] if len(parts) == 1 else "train")
    if chosen not in parts:
        listed = ", ".join(sorted(parts))
        raise PackingError(f"{name} has {listed}: choose one with --split." if parts else f"{name} is incomplete.")
    return chosen


def title_of(name: str, parts: Sequence[str], chosen: str) -> str:
    """Say what was recognised and which part of it is taken."""
    others = " and ".join(sorted(part for part in parts if part != chosen))
    return f"{name}, {chosen}" + (f" (not {others}; --split chooses)" if others else "")
