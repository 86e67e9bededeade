"""WebDataset: tars in which the files of one record follow each other, with one name and several endings.

`0001.png` is the image, `0001.cls` its class, a number or a name; or `0001.json` has `label`, `class` or `cls`, and
perhaps `subject`. Names that begin and end with two underscores are no records; Obscura names the classes in
`__classes.json__`. A folder may hold many tars, whose parts stand in their names: train-000000.tar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from obscura.image_types import image_suffixes
from obscura.preparing.choices import Choices
from obscura.preparing.errors import PackingError, Unreadable
from obscura.preparing.labels import UNLABELLED, call_classes, label_text, read_labels
from obscura.preparing.sources import PARTS, Record, Source, Tally, choose_part, title_of
from obscura.preparing.trees import TAR, TarTree, all_files
from obscura.wire.subjects import SubjectId

_CLASSES = "__classes.json__"
_TEXTS = (".cls", ".cls.txt", ".label", ".label.txt")
_PART = re.compile(rf"(?<![a-z])({'|'.join(PARTS)})(?=[-._/])", re.IGNORECASE)
_LABEL_KEYS, _SUBJECT_KEYS = ("label", "class", "cls"), ("subject", "subject_id", "patient", "patient_id")


@dataclass(frozen=True)
class _Sample:
    tar: TarTree
    image: str
    label: str
    subject: SubjectId | None


def find(folder: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise a folder of WebDataset tars."""
    found = (path for place in ("*.tar*", "*/*.tar*") for path in folder.glob(place))
    tars = sorted(path for path in found if path.is_file() and TAR.search(path.name))
    return _source(folder.name, tars, choices, subjects) if tars else None


def find_file(path: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise one WebDataset tar."""
    return _source(path.name, [path], choices, subjects) if TAR.search(path.name) else None


def _source(name: str, tars: list[Path], choices: Choices, subjects: bool) -> Source | None:
    parts: dict[str, list[Path]] = {}
    for path in tars:
        found = _PART.search(f"{path.parent.name}/{path.name}" if name != path.name else path.name)
        parts.setdefault(found[1].casefold() if found else "", []).append(path)
    chosen = choose_part(name, list(parts), choices.split)
    trees = [TarTree(path) for path in parts[chosen]]
    samples = [sample for tree in trees for sample in _samples(tree)]
    if not any(sample.label for sample in samples):
        return None
    told = any(sample.subject is not None for sample in samples)
    if subjects and not told:
        raise PackingError(
            f"{name} does not tell whose each image is, and the account protects all records of a subject together: "
            "give every record a .json with its label and its subject."
        )
    names = next((names for tree in trees if (names := _names(tree))), ())
    labels = [sample.label for sample in samples]
    numbers = [int(label or "-1") for label in labels if re.fullmatch(r"|-?(0|[1-9]\d*)", label)]
    read = read_labels(numbers if len(numbers) == len(labels) else labels, len(labels), name, choices)
    called, classes = call_classes(read, names, choices, name)
    owned = f"The .json of a record of {name}" if told else None
    title = title_of("WebDataset", list(parts), chosen) if chosen else "WebDataset"
    return Source(title, partial(_walk, samples, called), classes, owned=owned)


def _walk(samples: list[_Sample], called: tuple[str | None, ...], tally: Tally) -> Iterator[Record]:
    tally.left_out[UNLABELLED] += called.count(None)
    for sample, label in zip(samples, called, strict=True):
        if label is not None:
            yield Record(label, sample.subject, sample.image, partial(sample.tar.read, sample.image))


def _samples(tree: TarTree) -> Iterator[_Sample]:
    records: dict[str, dict[str, str]] = {}
    for path in all_files(tree):
        at, _, name = path.rpartition("/")
        if not (name.startswith("__") and name.endswith("__")):
            stem, _, ending = name.partition(".")
            records.setdefault(f"{at}/{stem}", {})["." + ending.casefold()] = path
    for files in records.values():
        suffixes = image_suffixes()
        image = next((path for end, path in files.items() if PurePosixPath("x" + end).suffix in suffixes), None)
        text = next((files[ending] for ending in _TEXTS if ending in files), None)
        if image is not None and text is not None:
            yield _Sample(tree, image, label_text(_read(tree, text)), _subject(tree, files))
        elif image is not None and ".json" in files:
            facts = _json(tree, files[".json"])
            label = next((facts[key] for key in _LABEL_KEYS if isinstance(facts.get(key), str | int)), None)
            if label is None:
                raise PackingError(
                    f"{tree.name}: {files['.json']} has no label, class or cls that is a number or a name."
                )
            yield _Sample(tree, image, label_text(label), _subject(tree, files))
        elif image is not None:
            yield _Sample(tree, image, "", None)


def _subject(tree: TarTree, files: dict[str, str]) -> SubjectId | None:
    facts = _json(tree, files[".json"]) if ".json" in files else {}
    told: SubjectId | None = next((facts[key] for key in _SUBJECT_KEYS if isinstance(facts.get(key), str | int)), None)
    return told


def _json(tree: TarTree, path: str) -> dict[str, Any]:
    try:
        facts = json.loads(_read(tree, path))
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise PackingError(f"{tree.name}: {path} is not a JSON object.")
    return facts


def _names(tree: TarTree) -> tuple[str, ...]:
    if _CLASSES not in tree.files(""):
        return ()
    try:
        names = json.loads(_read(tree, _CLASSES))
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise PackingError(f"{tree.name}: {_CLASSES} is not a list of names.")
    return tuple(map(label_text, names))


def _read(tree: TarTree, path: str) -> bytes:
    try:
        return tree.read(path)
    except Unreadable as error:
        raise PackingError(f"{tree.name}: {path} cannot be read: {error}.") from None
