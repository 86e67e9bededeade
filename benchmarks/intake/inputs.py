"""Inputs, read from the lines of `inputs.jsonl`: the steps that build one, how it is pushed, and the expected outcome.

A line has `kind`, `name`, `build` and `read`, `ask` or `refuse`. `build` maps the name of a step, a function of
`builders/`, to its arguments. A word after the name tells two uses of a step apart: `cut again`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

Pixels = np.ndarray[Any, Any]
ImageInput = Sequence[tuple[str, Pixels]]  # class, or class/subject, and pixels of each image that is sent
COUNT, WORDS, SIDE = 12, ("normal", "sick"), 32
STEPS: dict[str, Callable[..., None]] = {}


def step(build: Callable[..., None]) -> Callable[..., None]:
    """Register a function `(folder, rng, *arguments)` that writes files into a folder, by its name."""
    STEPS[build.__name__] = build
    return build


def run_steps(steps: Mapping[str, Any], folder: Path, rng: np.random.Generator) -> None:
    """Build an input, or a part of one, in a folder."""
    for name, arguments in steps.items():
        build = STEPS[name.partition(" ")[0]]
        if isinstance(arguments, Mapping):
            build(folder, rng, **arguments)
        else:
            build(folder, rng, *(arguments if isinstance(arguments, list) else [arguments]))


@dataclass(frozen=True)
class Read:
    """The input is declared and sent. `said` is printed; `looks` returns a fault of the images that are sent, or ""."""

    classes: tuple[str, ...]  # in label order
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
    """The outcome in the browser, which prepares nothing, and the fields that the page does not fill in."""

    expected: Read | Refused
    fields: Mapping[str, str]


@dataclass(frozen=True)
class Input:
    """A folder or file that people have.

    Attributes:
        name: also of its folder, and the seed of its random numbers: no two inputs share an image.
        kind: group of inputs.
        build: see `run_steps`.
        expected: outcome.
        path: the part of the folder that is pushed; empty is all of it.
        unit: of the account it is pushed to.
        options: of `client.datasets.push`, from which the command line's flags follow; {folder} is the folder.
        browser: if it is also tried in the browser.
    """

    name: str
    kind: str
    build: Mapping[str, Any]
    expected: Outcome
    path: str = ""
    unit: Literal["record", "subject", "public"] = "record"
    options: Mapping[str, Any] = field(default_factory=dict)
    browser: InBrowser | None = None

    def write(self, folder: Path) -> Path:
        """Build it in a new folder below this one; return the path to push."""
        home = folder / self.name
        home.mkdir(parents=True)
        run_steps(self.build, home, np.random.default_rng(zlib.crc32(self.name.encode())))
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
            elif name == "grey" and value is False:
                words.append("--colour")
            elif value is not False and value is not None:
                words += [flag, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
        return words


def all_inputs() -> list[Input]:
    """Read the inputs."""
    from benchmarks.intake.builders import images  # registers all steps

    def outcome(line: Mapping[str, Any]) -> Any:
        said = line.get("said", "")
        if "read" not in line:
            return Asked(line["ask"], said) if "ask" in line else Refused(line["refuse"])
        looks = images.LOOKS[line["looks"]] if "looks" in line else None
        return Read(tuple(line["read"]), line["records"], line.get("subjects"), said, looks)

    inputs = []
    for text in Path(__file__).with_name("inputs.jsonl").read_text("utf-8").splitlines():
        line = json.loads(text)
        plain = {name: line[name] for name in ("name", "kind", "build", "path", "unit", "options") if name in line}
        browser = line.get("browser")
        browser = browser and InBrowser(outcome(browser), browser["fields"])
        inputs.append(Input(**plain, expected=outcome(line), browser=browser))
    return inputs
