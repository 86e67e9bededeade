"""An input: how it is built, the options it is pushed with, and the expected outcome.

Inputs of files alone are lines of `inputs.jsonl`. `files` (or a `zip` of them) are random grey images; "normal*3" is
three numbered ones in a folder. `table` is twelve images and a table that has a line for each; `ids` is a table of
subjects, two images of each. `read`, `ask` or `refuse` is the outcome.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

Pixels = np.ndarray[Any, Any]
ImageInput = Sequence[tuple[str, Pixels]]  # class, or class/subject, and pixels of each image that is sent
Build = Callable[[Path, np.random.Generator], None]
COUNT, WORDS = 12, ("normal", "sick")
LINES = Path(__file__).with_name("inputs.jsonl")


@dataclass(frozen=True)
class Read:
    """The input is declared and sent: its classes in label order, its counts, words that are printed, a look at it.

    `looks` returns what is wrong with the images that are sent, or "".
    """

    classes: tuple[str, ...]
    records: int
    subjects: int | None = None
    said: str = ""
    looks: Callable[[ImageInput], str] | None = None


@dataclass(frozen=True)
class Asked:
    """The owner must decide something, and this flag is named; nothing is declared."""

    flag: str
    said: str = ""


@dataclass(frozen=True)
class Refused:
    """The input is refused with an error that contains these words; nothing is declared."""

    said: str


Outcome = Read | Asked | Refused


@dataclass(frozen=True)
class InBrowser:
    """The outcome in the browser, which prepares nothing, and what is typed beyond what the page fills in."""

    expected: Read | Refused
    fields: Mapping[str, str]


@dataclass(frozen=True)
class Input:
    """Something that people have.

    Attributes:
        name: also of the folder that it is built in, and the seed of its random numbers: no two inputs share an image.
        build: writes it into an empty folder.
        expected: outcome.
        path: the part of the folder that is pushed; empty is all of it.
        unit: of the account it is pushed to.
        options: of `client.datasets.push`, from which the command line's flags follow; {folder} is the folder.
        browser: if it is tried in the browser, too.
    """

    name: str
    build: Build
    expected: Outcome
    path: str = ""
    unit: Literal["record", "subject", "public"] = "record"
    options: Mapping[str, Any] = field(default_factory=dict)
    browser: InBrowser | None = None

    def write(self, folder: Path) -> Path:
        """Build it in a new folder below this one; return the path to push."""
        home = folder / self.name
        home.mkdir(parents=True)
        self.build(home, np.random.default_rng(zlib.crc32(self.name.encode())))
        return home / self.path if self.path else home

    def arguments(self, folder: Path) -> dict[str, Any]:
        """Return its options in Python, with bounds if there are none."""
        bounds = {} if self.unit == "public" else {"at_most": 1000}
        bounds |= {"subjects_at_most": 500} if self.unit == "subject" else {}
        home = str(folder / self.name)
        return bounds | {
            name: value.replace("{folder}", home) if isinstance(value, str) else value
            for name, value in self.options.items()
        }

    def flags(self, folder: Path) -> list[str]:
        """Return its options on the command line."""
        words = []
        for name, value in self.arguments(folder).items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                words.append(flag)
            elif value is not False and value is not None:
                words += [flag, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
        return words


def grey(rng: np.random.Generator, height: int = 16, width: int = 16) -> Pixels:
    """Return random grey pixels, uint8 (height, width)."""
    return rng.integers(0, 256, (height, width), dtype=np.uint8)


def colour(rng: np.random.Generator, height: int = 16, width: int = 16) -> Pixels:
    """Return random colour pixels, uint8 (height, width, 3)."""
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def put(folder: Path, rng: np.random.Generator, *paths: str) -> None:
    """Write a random grey image at each of these paths below a folder."""
    for path in paths:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grey(rng)).save(file)


def numbered(folder: str, count: int, suffix: str = ".png") -> list[str]:
    """Return paths of so many images in a folder: 000.png, 001.png, ..."""
    return [f"{folder}/{number:03d}{suffix}" if folder else f"{number:03d}{suffix}" for number in range(count)]


def filled(*folders: str, count: int = 3) -> list[str]:
    """Return paths of so many images in each folder."""
    return [path for folder in folders for path in numbered(folder, count)]


def files(*paths: str) -> Build:
    """Build random images at these paths; "normal*3" is three numbered ones in a folder."""
    split = [path.rpartition("*") for path in paths]
    whole = [one for folder, _, count in split for one in (numbered(folder, int(count)) if _ else [count])]
    return lambda home, rng: put(home, rng, *whole)


def zipped_files(*paths: str) -> Build:
    """Build a zip of random images."""

    def build(home: Path, rng: np.random.Generator) -> None:
        files(*paths)(home / "inside", rng)
        shutil.make_archive(str(home / "a"), "zip", home / "inside")

    return build


def table(
    head: str,
    line: str,
    labels: Sequence[str] = WORDS,
    *,
    file: str = "labels.csv",
    folder: str = "",
    encoding: str = "utf-8",
) -> Build:
    """Build images 000.png, 001.png, ... and a table; `line` may name n, file, stem, label, subject and other."""

    def build(place: Path, rng: np.random.Generator) -> None:
        put(place, rng, *numbered(folder, COUNT))
        lines = [
            line.format(
                n=n,
                stem=f"{n:03d}",
                file=f"{n:03d}.png",
                label=labels[n % len(labels)],
                subject=f"P{n // 2}",
                other=n % 3 // 2,
            )
            for n in range(COUNT)
        ]
        (place / file).write_bytes("\n".join([*([head] if head else []), *lines, ""]).encode(encoding))

    return build


def table_of_subjects(*ids: str) -> Build:
    """Build images of two classes and a table of their subjects, two images of each, one after the other."""

    def build(home: Path, rng: np.random.Generator) -> None:
        paths = numbered("", 2 * len(ids))
        put(home, rng, *paths)
        rows = [f"{path},{WORDS[number % 2]},{ids[number % len(ids)]}" for number, path in enumerate(paths)]
        (home / "labels.csv").write_text("\n".join(["file,label,subject", *rows, ""]), encoding="utf-8")

    return build


def _outcome(line: Mapping[str, Any]) -> Any:
    said = line.get("said", "")
    if "read" in line:
        return Read(tuple(line["read"]), line["records"], line.get("subjects"), said)
    return Asked(line["ask"], said) if "ask" in line else Refused(line["refuse"])


def read_lines() -> Iterator[Input]:
    """Yield the inputs of `inputs.jsonl`."""
    for text in LINES.read_text("utf-8").splitlines():
        line = json.loads(text)
        options, browser = line.get("options", {}), line.get("browser")
        if "table" in line:
            build = table(**line["table"])
        elif "ids" in line:
            build, options = table_of_subjects(*line["ids"]), {"labels": "labels.csv", **options}
        else:
            build = zipped_files(*line["zip"]) if "zip" in line else files(*line["files"])
        yield Input(
            line["name"],
            build,
            _outcome(line),
            "a.zip" if "zip" in line else "",
            line.get("unit", "record"),
            options,
            browser and InBrowser(_outcome(browser), browser["fields"]),
        )
