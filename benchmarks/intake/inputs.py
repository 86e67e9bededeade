"""What an input is: how it is built, what is said with it, and what is to become of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

ImageInput = Sequence[
    tuple[str, np.ndarray[Any, Any]]
]  # class, or class/subject, and pixels of each image that is sent


@dataclass(frozen=True)
class Read:
    """It is declared and sent.

    Attributes:
        classes: In label order.
        records: How many images.
        subjects: How many subjects, where the account protects those.
        said: Words that are told beside it.
        looks: What is wrong with the images that are sent, or "".
    """

    classes: tuple[str, ...]
    records: int
    subjects: int | None = None
    said: str = ""
    looks: Callable[[ImageInput], str] | None = None


@dataclass(frozen=True)
class Asked:
    """Its owner must decide something, and this flag is named; nothing is declared."""

    flag: str
    said: str = ""


@dataclass(frozen=True)
class Refused:
    """It does not go in, and a sentence with these words says why; nothing is declared."""

    said: str


Outcome = Read | Asked | Refused


@dataclass(frozen=True)
class InBrowser:
    """What becomes of the file in the browser, where nothing prepares images.

    Attributes:
        expected: Read, or refused.
        fields: What is typed into the form of a declaration, over what the page fills in itself.
    """

    expected: Read | Refused
    fields: Mapping[str, str]


@dataclass(frozen=True)
class Input:
    """Something that people have.

    Attributes:
        name: Of the input, and of the folder that it is built in.
        build: Writes it into an empty folder, with random numbers of its own, so that no two inputs share an image.
        expected: What is to become of it.
        path: What of the folder is pushed; all of it where this is empty.
        unit: Of the account it is pushed to.
        options: What is said with it, as keyword arguments of `client.datasets.push`; the command line's flags follow.
            `{folder}` in a text stands for the folder.
        browser: Where it is tried in the browser, too.
    """

    name: str
    build: Callable[[Path, np.random.Generator], None]
    expected: Outcome
    path: str = ""
    unit: Literal["record", "subject", "public"] = "record"
    options: Mapping[str, Any] = field(default_factory=dict)
    browser: InBrowser | None = None

    def write(self, folder: Path) -> Path:
        """Build it in a new folder below this one, and return what is pushed."""
        home = folder / self.name
        home.mkdir(parents=True)
        self.build(home, np.random.default_rng(zlib.crc32(self.name.encode())))
        return home / self.path if self.path else home

    def arguments(self, folder: Path) -> dict[str, Any]:
        """What is said with it in Python; bounds are stated where none are."""
        bounds = {} if self.unit == "public" else {"at_most": 1000}
        bounds |= {"subjects_at_most": 500} if self.unit == "subject" else {}
        home = str(folder / self.name)
        texts = {name: _filled(value, home) for name, value in self.options.items()}
        return bounds | texts

    def flags(self, folder: Path) -> list[str]:
        """The same on the command line."""
        words = []
        for name, value in self.arguments(folder).items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                words.append(flag)
            elif value is not False and value is not None:
                words += [flag, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
        return words


def _filled(value: Any, home: str) -> Any:
    return value.replace("{folder}", home) if isinstance(value, str) else value


def grey(rng: np.random.Generator, height: int = 16, width: int = 16) -> np.ndarray[Any, Any]:
    """Random grey pixels, uint8 (height, width)."""
    return rng.integers(0, 256, (height, width), dtype=np.uint8)


def colour(rng: np.random.Generator, height: int = 16, width: int = 16) -> np.ndarray[Any, Any]:
    """Random colour pixels, uint8 (height, width, 3)."""
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def put(folder: Path, rng: np.random.Generator, *paths: str) -> None:
    """Write a random grey image at each of these paths below a folder."""
    for path in paths:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grey(rng)).save(file)


def numbered(folder: str, count: int, suffix: str = ".png") -> list[str]:
    """Paths of so many images in a folder: 000.png, 001.png, ..."""
    return [f"{folder}/{number:03d}{suffix}" if folder else f"{number:03d}{suffix}" for number in range(count)]
