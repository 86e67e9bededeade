"""Tables that contain images, as Hugging Face's `datasets` writes them: Parquet files, or Arrow by `save_to_disk`.

Images are in a column of structs (`bytes`, `path`) or of bytes. A ClassLabel column names its classes in the schema's
metadata. A folder or an archive may hold several files and several parts, such as data/train-00000-of-00002.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from obscura.errors import ChoiceNeeded, PackingError, Unreadable
from obscura.extras import extras
from obscura.preparing.choices import Choices
from obscura.preparing.columns import NOT_ONE, labels_of, shared_column
from obscura.preparing.labels import UNLABELLED, label_text, read_labels
from obscura.preparing.sources import Record, Source, Tally, choose_part, part_in
from obscura.preparing.tables import SEVERAL, Table, usual_columns
from obscura.preparing.trees import FolderTree, Tree, all_files, suffix_of

_SUFFIXES = (".parquet", ".arrow")
_ROWS_AT_ONCE = 64
_ARROW_FILE = b"ARROW1"  # the first bytes of Arrow files, but not of Arrow streams


def find(path: Path, choices: Choices, subjects: bool) -> Source | None:
    if path.is_dir() or suffix_of(path.name) not in _SUFFIXES:
        return None
    return _source(FolderTree(path.parent), path.name, [path.name], choices, subjects)


def find_tree(tree: Tree, choices: Choices, subjects: bool) -> Source | None:
    files = [path for path in all_files(tree) if suffix_of(path) in _SUFFIXES]
    return _source(tree, tree.name, files, choices, subjects) if files else None


def _source(tree: Tree, name: str, files: list[str], choices: Choices, subjects: bool) -> Source:
    parts: dict[str, list[str]] = {}
    for path in files:
        parts.setdefault(part_in(path), []).append(path)
    chosen, title = choose_part(name, list(parts), choices.split, title="Hugging Face table")
    taken = tuple(sorted(parts[chosen]))
    columns = _columns_of(tree, taken[0], choices, subjects=subjects)
    for file in taken[1:]:
        if _columns_of(tree, file, choices, subjects=subjects) != columns:
            raise PackingError(
                f"{taken[0]} and {file} belong to one part, but their columns or class names differ: push them as "
                "separate datasets."
            )
    image_column, label_column, subject_column, names = columns
    labels, classes = _labels_of(tree, taken, label_column, names, choices)
    owned = None if subject_column is None else f"The column {subject_column!r} of {taken[0]}"

    def walk(tally: Tally) -> Iterator[Record]:
        tally.left_out[NOT_ONE if choices.attribute else UNLABELLED] += labels.count(None)
        wanted, left = [image_column, *([subject_column] if subject_column else [])], iter(enumerate(labels))
        for file in taken:
            for row in _rows(tree, file, wanted):
                number, label = next(left)
                if label is not None:
                    owner = row.get(subject_column) if subject_column else None
                    if subject_column and not isinstance(owner, str | int):
                        owner = ""  # rejected, like any placeholder
                    yield Record(label, owner, f"{file} row {number}", partial(_image, row[image_column]))

    # Values that several images share, such as those of lesion_id.
    with _opened(tree, taken[0]) as (schema, _):
        plain = [field.name for field in schema if re.match(r"(large_)?string|u?int", str(field.type))]
    groups = tuple(name for name in usual_columns("group", plain) if name not in (image_column, label_column))
    found = [row for file in taken for row in _rows(tree, file, list(groups))] if groups else []
    grouped = shared_column(Table(taken[0], groups, [tuple(str(row[name]) for name in groups) for row in found]), ())
    return Source(title, walk, classes, owned=owned, grouped=grouped)


def _columns_of(
    tree: Tree, file: str, choices: Choices, *, subjects: bool
) -> tuple[str, str, str | None, tuple[str, ...]]:
    # The columns of images, labels and subjects, and the class names in label order.
    with _opened(tree, file) as (schema, _):
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        types = {field.name: str(field.type) for field in schema}
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}
    named = [
        name for name, kind in types.items() if re.match(r"struct<.*\bbytes: (large_)?binary\b|(large_)?binary$", kind)
    ]
    images = [name for name in types if kinds.get(name) == "Image"] or named
    labels = [name for name in types if kinds.get(name) == "ClassLabel"] or usual_columns("label", types)
    owners = usual_columns("subject", types)
    image = _one(file, types, choices.file_column, images, "--file-column", "images")
    label = _one(file, types, choices.label_column, labels, "--label-column", "classes")
    subject: str | None = choices.subject_column or (owners[0] if owners else None)
    if subjects:
        subject = _one(file, types, choices.subject_column, owners, "--subject-column", "subjects")
    feature = features.get(label, {})
    names = feature.get("names") or (feature.get("feature") or {}).get("names") or ()
    return image, label, subject, tuple(map(label_text, names))


def _one(file: str, types: Mapping[str, str], stated: str | None, known: list[str], flag: str, what: str) -> str:
    if stated is not None and stated not in types:
        raise PackingError(f"{flag}: {file} has no column {stated!r}. Its columns are {', '.join(types)}.")
    found = [stated] if stated is not None else known
    if len(found) != 1:
        raise ChoiceNeeded(
            f"It is unclear which column of {file} contains the {what}. The columns are "
            f"{', '.join(f'{name} ({kind})' for name, kind in types.items())}.",
            [f"{flag} NAME"],
        )
    return found[0]


def _labels_of(
    tree: Tree, files: tuple[str, ...], column: str, names: tuple[str, ...], choices: Choices
) -> tuple[tuple[str | None, ...], tuple[str, ...] | None]:
    values = [row[column] for file in files for row in _rows(tree, file, [column])]
    if any(isinstance(value, list) for value in values):
        rows: list[tuple[str, ...]] = []
        for number, value in enumerate(values):
            labels = [names[each] if names and isinstance(each, int) else str(each) for each in value or []]
            rows.append((str(number), SEVERAL.join(labels)))
        return labels_of(Table(files[0], ("number", "labels"), rows), choices)
    if choices.attribute:
        raise PackingError("Leave --attribute out: each image of this table has only one label.")
    absent = "" if any(isinstance(value, str) for value in values) else -1
    values = [absent if value is None else int(value) if isinstance(value, bool) else value for value in values]
    return read_labels(values, len(values), files[0], choices, names)


def _rows(tree: Tree, file: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    with _opened(tree, file) as (_, read):
        for batch in read(columns):
            yield from batch.to_pylist()


@contextmanager
def _opened(tree: Tree, file: str) -> Iterator[tuple[Any, Callable[[list[str]], Iterator[Any]]]]:
    with extras():
        import pyarrow  # slow to import, and needed only for this layout
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
        raise Unreadable("the table contains only the path of the image, not the image")
    return content
