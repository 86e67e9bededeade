"""WebDataset: tars in which consecutive files with the same name and different suffixes form one record.

`0001.png` is the image, and `0001.cls` its class, a number or a name. Alternatively, `0001.json` has `label`, `class`
or `cls`, and optionally `subject`. Names that begin and end with two underscores are not records; Obscura's
`__classes.json__` contains the class names. A folder may contain many tars, whose names state their parts:
train-000000.tar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from obscura.errors import PackingError, Unreadable
from obscura.image_types import image_suffixes
from obscura.preparing.choices import Choices
from obscura.preparing.labels import UNLABELLED, label_text, read_labels
from obscura.preparing.sources import Record, Source, Tally, choose_part, part_in
from obscura.preparing.trees import TAR, TarTree, all_files
from obscura.wire.uploads import SubjectId

_CLASSES = "__classes.json__"
_TEXTS = (".cls", ".cls.txt", ".label", ".label.txt")
_LABEL_KEYS, _SUBJECT_KEYS = ("label", "class", "cls"), ("subject", "subject_id", "patient", "patient_id")


def find(path: Path, choices: Choices, subjects: bool) -> Source | None:
    name, found = path.name, [path]
    if path.is_dir():
        found = [tar for place in ("*.tar*", "*/*.tar*") for tar in path.glob(place) if tar.is_file()]
    tars = sorted(tar for tar in found if TAR.search(tar.name))
    if not tars:
        return None
    parts: dict[str, list[Path]] = {}
    for tar in tars:
        part = part_in(f"{tar.parent.name}/{tar.name}" if name != tar.name else name)
        parts.setdefault(part, []).append(tar)
    chosen, title = choose_part(name, list(parts), choices.split, title="WebDataset")
    trees = [TarTree(tar) for tar in parts[chosen]]
    samples = [sample for tree in trees for sample in _samples(tree)]
    labels = [label for label, _, _, _ in samples]
    if not any(labels):
        return None
    has_subjects = any(subject is not None for _, subject, _, _ in samples)
    if subjects and not has_subjects:
        raise PackingError(
            f"{name} has no subject ids, but the account protects all records of a subject together: give every record "
            "a .json with its label and its subject."
        )
    names: tuple[str, ...] = ()
    for tree in trees:
        if not names and _CLASSES in tree.files(""):
            listed = _json(tree, _CLASSES)
            if not isinstance(listed, list):
                raise PackingError(f"{tree.name}: {_CLASSES} is not a list of names.")
            names = tuple(map(label_text, listed))
    numbers = [int(label or "-1") for label in labels if re.fullmatch(r"|-?(0|[1-9]\d*)", label)]
    values = numbers if len(numbers) == len(labels) else labels
    called, classes = read_labels(values, len(labels), name, choices, names)
    owned = f"The .json of a record of {name}" if has_subjects else None

    def walk(tally: Tally) -> Iterator[Record]:
        tally.left_out[UNLABELLED] += called.count(None)
        for label, (_, subject, tree, image) in zip(called, samples, strict=True):
            if label is not None:
                yield Record(label, subject, image, partial(tree.read, image))

    return Source(title, walk, classes, owned=owned)


def _samples(tree: TarTree) -> Iterator[tuple[str, SubjectId | None, TarTree, str]]:
    # The label, subject, tar and path of each image; "" is a missing label.
    records: dict[str, dict[str, str]] = {}
    for path in all_files(tree):
        at, _, name = path.rpartition("/")
        if not (name.startswith("__") and name.endswith("__")):
            stem, _, ending = name.partition(".")
            records.setdefault(f"{at}/{stem}", {})["." + ending.casefold()] = path
    suffixes = image_suffixes()
    for files in records.values():
        image = next((path for end, path in files.items() if PurePosixPath("x" + end).suffix in suffixes), None)
        text = next((files[ending] for ending in _TEXTS if ending in files), None)
        if image is None:
            continue
        facts: dict[str, Any] = {}
        if ".json" in files:
            facts = _json(tree, files[".json"])
            if not isinstance(facts, dict):
                raise PackingError(f"{tree.name}: {files['.json']} is not a JSON object.")
        label = next((facts[key] for key in _LABEL_KEYS if isinstance(facts.get(key), str | int)), None)
        subject = next((facts[key] for key in _SUBJECT_KEYS if isinstance(facts.get(key), str | int)), None)
        if text is not None:
            label = _read(tree, text)
        elif ".json" in files and label is None:
            raise PackingError(f"{tree.name}: {files['.json']} has no label, class or cls that is a number or a name.")
        yield "" if label is None else label_text(label), subject, tree, image


def _json(tree: TarTree, path: str) -> Any:
    try:
        return json.loads(_read(tree, path))
    except ValueError:
        return None


def _read(tree: TarTree, path: str) -> bytes:
    try:
        return tree.read(path)
    except Unreadable as error:
        raise PackingError(f"{tree.name}: {path} cannot be read: {error}.") from None
