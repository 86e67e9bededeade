"""Tables with the images inside, as Hugging Face's `datasets` writes them: Parquet, and what `save_to_disk` makes.

Images stand in a column of structs (`bytes`, `path`) or of bytes. A column of ClassLabel names its classes in the
schema's metadata. A folder or an archive may hold several files and several parts, such as data/train-00000-of-00002.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from obscura.extras import extras
from obscura.preparing.choices import Choices
from obscura.preparing.columns import NOT_ONE, read_columns, shared_column
from obscura.preparing.errors import ChoiceNeeded, PackingError, Unreadable
from obscura.preparing.labels import UNLABELLED, call_classes, label_text, read_labels
from obscura.preparing.sources import PARTS, Record, Source, Tally, choose_part, title_of
from obscura.preparing.tables import Table, known_groups, known_labels, known_subjects
from obscura.preparing.trees import FolderTree, Tree, all_files, suffix_of

_SUFFIXES = (".parquet", ".arrow")
_PART = re.compile(rf"(?<![a-z])({'|'.join(PARTS)})(?=[-._/]|$)", re.IGNORECASE)
_ROWS_AT_ONCE = 64
_ARROW_FILE = b"ARROW1"  # how files of Arrow begin; its streams do not


@dataclass(frozen=True)
class _Columns:
    image: str
    label: str
    subject: str | None
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Rows:
    tree: Tree
    files: tuple[str, ...]
    columns: _Columns
    labels: tuple[str | None, ...]
    attributes: bool

    def walk(self, tally: Tally) -> Iterator[Record]:
        tally.left_out[NOT_ONE if self.attributes else UNLABELLED] += self.labels.count(None)
        wanted = [self.columns.image, *([self.columns.subject] if self.columns.subject else [])]
        number = 0
        for file in self.files:
            for batch in _batches(self.tree, file, wanted):
                for row in batch.to_pylist():
                    label, shown = self.labels[number], f"{file} row {number}"
                    number += 1
                    if label is not None:
                        owner = row.get(self.columns.subject) if self.columns.subject else None
                        if self.columns.subject and not isinstance(owner, str | int):
                            owner = ""  # refused, as any id that stands for nobody
                        yield Record(label, owner, shown, partial(_image, row[self.columns.image]))


def find_tree(tree: Tree, choices: Choices, subjects: bool) -> Source | None:
    """Recognise a tree with Parquet or Arrow files."""
    files = [path for path in all_files(tree) if suffix_of(path) in _SUFFIXES]
    if not files:
        return None
    parts: dict[str, list[str]] = {}
    for path in files:
        found = _PART.search(path)
        parts.setdefault(found[1].casefold() if found else "", []).append(path)
    chosen = choose_part(tree.name, list(parts), choices.split)
    taken = tuple(sorted(parts[chosen]))
    columns = _columns_of(tree, taken[0], choices, subjects=subjects)
    for file in taken[1:]:
        if _columns_of(tree, file, choices, subjects=subjects) != columns:
            raise PackingError(
                f"{taken[0]} and {file} are of one part, and their columns or the names of their classes differ: push "
                "them as datasets of their own."
            )
    labels, classes = _labels_of(tree, taken, columns, choices)
    owned = None if columns.subject is None else f"The column {columns.subject!r} of {taken[0]}"
    title = title_of("Hugging Face table", list(parts), chosen) if chosen else "Hugging Face table"
    walk = _Rows(tree, taken, columns, labels, bool(choices.attributes)).walk
    return Source(title, walk, classes, owned=owned, grouped=_grouped(tree, taken, columns))


def find_file(path: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise one Parquet or Arrow file."""
    if suffix_of(path.name) not in _SUFFIXES:
        return None
    return find_tree(_OneFile(path), choices, subjects)


class _OneFile(FolderTree):
    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self.name, self._only = path.name, path.name

    def folders(self, at: str) -> list[str]:
        del at
        return []

    def files(self, at: str) -> list[str]:
        del at
        return [self._only]


def _columns_of(tree: Tree, file: str, choices: Choices, *, subjects: bool) -> _Columns:
    with _opened(tree, file) as (schema, _):
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        types = {field.name: str(field.type) for field in schema}
    named = [
        name for name, kind in types.items() if re.match(r"struct<.*\bbytes: (large_)?binary\b|(large_)?binary$", kind)
    ]
    images = [name for name in types if _kind(features, name) == "Image"] or named
    labels = [name for name in types if _kind(features, name) == "ClassLabel"] or known_labels(list(types))
    owners = known_subjects(list(types))
    image = _one(file, types, choices.file_column, images, "--file-column", "images")
    label = _one(file, types, choices.label_column, labels, "--label-column", "classes")
    subject: str | None = choices.subject_column or (owners[0] if owners else None)
    if subjects:
        subject = _one(file, types, choices.subject_column, owners, "--subject-column", "subjects")
    feature = features.get(label, {})
    names = feature.get("names") or (feature.get("feature") or {}).get("names") or ()
    return _Columns(image, label, subject, tuple(map(label_text, names)))


def _kind(features: Mapping[str, Any], column: str) -> str | None:
    feature = features.get(column)
    return feature.get("_type") if isinstance(feature, dict) else None


def _one(file: str, types: Mapping[str, str], stated: str | None, known: list[str], flag: str, what: str) -> str:
    if stated is not None and stated not in types:
        raise PackingError(f"{flag}: {file} has no column {stated!r}. Its columns are {', '.join(types)}.")
    found = [stated] if stated is not None else known
    if len(found) != 1:
        raise ChoiceNeeded(
            f"Nothing says which column of {file} holds the {what}. Its columns are "
            f"{', '.join(f'{name} ({kind})' for name, kind in types.items())}.",
            [f"{flag} NAME"],
        )
    return found[0]


def _grouped(tree: Tree, files: tuple[str, ...], known: _Columns) -> str:
    with _opened(tree, files[0]) as (schema, _):
        plain = [field.name for field in schema if re.match(r"(large_)?string|u?int", str(field.type))]
        columns = tuple(name for name in known_groups(plain) if name not in (known.image, known.label))
    batches = [batch for file in files for batch in _batches(tree, file, list(columns))] if columns else []
    rows = [tuple(str(row[name]) for name in columns) for batch in batches for row in batch.to_pylist()]
    return shared_column(Table(files[0], columns, rows), ())


def _labels_of(
    tree: Tree, files: tuple[str, ...], columns: _Columns, choices: Choices
) -> tuple[tuple[str | None, ...], tuple[str, ...] | None]:
    values = [
        value
        for file in files
        for batch in _batches(tree, file, [columns.label])
        for value in batch.column(0).to_pylist()
    ]
    names = columns.names
    if any(isinstance(value, list) for value in values):
        return _of_lists(files[0], values, names, choices)
    if choices.attributes:
        raise PackingError("--attribute is for labels in several columns, or for several labels of an image.")
    values = [int(value) if isinstance(value, bool) else value for value in values]
    absent = "" if any(isinstance(value, str) for value in values) else -1
    told = [absent if value is None else value for value in values]
    return call_classes(read_labels(told, len(told), files[0], choices), names, choices, files[0])


def _of_lists(
    file: str, values: list[Any], names: tuple[str, ...], choices: Choices
) -> tuple[tuple[str | None, ...], tuple[str, ...] | None]:
    rows: list[tuple[str, ...]] = [
        (str(number), "|".join(names[each] if names and isinstance(each, int) else str(each) for each in value or []))
        for number, value in enumerate(values)
    ]
    here = choices.replace(file_column="row", label_column="labels", subject_column=None)
    said = read_columns(Table(file, ("row", "labels"), rows), here, lambda _: True, subjects=False)
    return tuple(row.label for row in said.rows), said.classes


def _batches(tree: Tree, file: str, columns: list[str]) -> Iterator[Any]:
    with _opened(tree, file) as (_, read):
        yield from read(columns)


@contextmanager
def _opened(tree: Tree, file: str) -> Iterator[tuple[Any, Callable[[list[str]], Iterator[Any]]]]:
    with extras():
        import pyarrow  # slow to import, and wanted for this layout alone
        from pyarrow import ipc, parquet

    try:
        with tree.open(file) as content:
            if suffix_of(file) == ".parquet":
                whole = parquet.ParquetFile(content)
                yield whole.schema_arrow, lambda columns: whole.iter_batches(_ROWS_AT_ONCE, columns=columns)
                return
            as_file = content.read(len(_ARROW_FILE)) == _ARROW_FILE
            content.seek(0)
            if as_file:
                opened = ipc.open_file(content)
                numbers = range(opened.num_record_batches)
                yield opened.schema, lambda columns: (opened.get_batch(number).select(columns) for number in numbers)
            else:
                stream = ipc.open_stream(content)
                yield stream.schema, lambda columns: (batch.select(columns) for batch in stream)
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise PackingError(f"{file} cannot be read as a table of images: {error}.") from None


def _image(value: object) -> bytes:
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise Unreadable("the table holds only its path, and not the image")
    return content
