"""Find a table's columns for image, class and subject, and the class of each row.

Columns are recognised by the names that public collections use. If several match, or none, the owner is asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from obscura.errors import ChoiceNeeded, PackingError, some
from obscura.preparing.choices import Choices
from obscura.preparing.labels import is_missing, label_text, list_separator
from obscura.preparing.subjects import by_subject, require_plain_ids
from obscura.preparing.tables import SEVERAL, Table, usual_columns
from obscura.wire.meanings import owner_in
from obscura.wire.uploads import SubjectId

_ANSWERS = dict.fromkeys(("1", "1.0", "true", "yes", "t", "y"), True) | dict.fromkeys(
    ("0", "0.0", "false", "no", "f", "n"), False
)
# Cells of a yes/no column. Single letters do not count, because a column of F and M may contain only F. -1 is
# unsure in CheXpert.
_BINARY = _ANSWERS.keys() - set("tfyn") | {"-1", "-1.0"}
COMBINATIONS_MAX = 32
_CELLS_TRIED = 50
_NAME_ONE = (
    "Either make every combination of labels a class (--combinations). Or name labels: one label makes two classes, "
    "with and without it; several, separated by commas, make one class each."
)
NOT_ONE = "image with none or several of the attributes"


@dataclass(frozen=True)
class Row:
    """A row of a table. The label is "" if it is missing, and None if the image is left out."""

    file: str
    label: str | None
    subject: str | None


@dataclass(frozen=True)
class Contents:
    """Contents of a table, one row per image.

    Attributes:
        classes: In label order, if the table or the owner defines that order.
        owned: Noun phrase for the source of the subject ids, capitalised for messages; None without subject ids.
        grouped: Sentence about a column whose values several images share, such as lesion_id; or "".
    """

    rows: list[Row]
    classes: tuple[str, ...] | None
    owned: str | None
    grouped: str = ""
    file_column: str = ""


def read_columns(table: Table, choices: Choices, exists: Callable[[str], bool], *, subjects: bool | None) -> Contents:
    """Read the rows of a table and their classes.

    Args:
        exists: Returns whether a cell may name an image.
        subjects: True requires subject ids, False refuses them, None ignores them.
    """
    files = _file_column(table, choices.file_column, exists)
    folders = [owner_in(cell) for cell in table.cells(files)]
    known = usual_columns("subject", table.columns)
    owners = known[0] if known else None
    if choices.subject_column is not None:
        owners = _column(table, choices.subject_column, "--subject-column")
    elif subjects and not all(folders) and len(known) != 1:
        raise ChoiceNeeded(
            f"It is unclear which column of {table.name} contains the subject ids. The account needs them to protect "
            f"all records of a subject together. {_columns(table)}",
            ["--subject-column NAME"],
        )
    if owners == files and subjects is False:
        owners = None  # the column identifies images, so no value can identify a person with several
    example = next(filter(None, folders), None)
    in_paths = None if example is None else f"A folder in the paths of {table.name}, such as {example}/,"
    owned = in_paths if owners is None else f"The column {owners!r} of {table.name}"
    if owned is not None and subjects is False:
        raise by_subject(f"{owned} identifies subjects")
    if owners is not None and subjects:
        places: dict[SubjectId, str] = {}
        for row, cell in enumerate(table.cells(owners)):
            places.setdefault(cell, f"{table.place(row)}, column {owners!r}")
        require_plain_ids(places, join=choices.join_subjects)
    grouped = shared_column(table, {files, owners})
    table = _joined(table, choices, files, owners)
    folders = [owner_in(cell) for cell in table.cells(files)]
    labels, classes = _labels(table, choices, {files, owners})
    whose = folders if owners is None else table.cells(owners)
    return Contents(
        [Row(*cells) for cells in zip(table.cells(files), labels, whose, strict=True)], classes, owned, grouped, files
    )


def labels_of(table: Table, choices: Choices) -> tuple[tuple[str | None, ...], tuple[str, ...] | None]:
    """Return the class of each row, and the classes as `Contents` has them. The first column numbers the rows."""
    stated = {"file_column": table.columns[0], "label_column": None, "subject_column": None}
    contents = read_columns(table, choices.model_copy(update=stated), lambda _: True, subjects=False)
    return tuple(row.label for row in contents.rows), contents.classes


def shared_column(table: Table, taken: Collection[str | None]) -> str:
    """Return a sentence about a column whose values several images share, such as lesion_id; or ""."""
    for column in usual_columns("group", table.columns):
        values = [cell for cell in table.cells(column) if not is_missing(cell)]
        if column not in taken and 1 < len(set(values)) < len(values):
            return f"The column {column!r} of {table.name} has {len(set(values)):,} values in {len(values):,} rows."
    return ""


def _joined(table: Table, choices: Choices, files: str, owners: str | None) -> Table:
    known = [choices.label_column] if choices.label_column else usual_columns("label", table.columns)
    column = next((name for name in table.columns if name in known and name not in (files, owners)), None)
    rows: dict[tuple[str, ...], dict[str, None]] = {}
    if column is None or set(choices.attribute) & set(table.columns) or len({*table.cells(files)}) == len(table.rows):
        return table
    whose = table.cells(owners) if owners else itertools.repeat("")
    for file, owner, label in zip(table.cells(files), whose, table.cells(column), strict=False):
        rows.setdefault((file, owner), {})[label] = None
    kept = [*dict.fromkeys((files, *([owners] if owners else []), column))]
    joined = [(*(key if owners else key[:1]), SEVERAL.join(labels)) for key, labels in rows.items()]
    return Table(table.name, tuple(kept), joined, table.named)


def _file_column(table: Table, stated: str | None, exists: Callable[[str], bool]) -> str:
    if stated is not None:
        return _column(table, stated, "--file-column")
    known = usual_columns("file", table.columns)
    named = [column for column in known or table.columns if all(map(exists, list(table.cells(column))[:_CELLS_TRIED]))]
    known = (named if len(named) == 1 else []) or known
    counts = {name: sum(map(exists, list(table.cells(name))[:_CELLS_TRIED])) for name in table.columns}
    most = max(counts.values())
    best = [name for name, count in counts.items() if most and count == most]
    if len(known) == 1 and (counts[known[0]] or not best):
        return known[0]
    if not known or (best and not any(counts[name] for name in known)):
        labelled = [] if usual_columns("label", table.columns) else ["--label-column NAME"]
        names = f" Column {best[0]!r} matches image files." if len(best) == 1 else ""
        raise ChoiceNeeded(
            f"It is unclear which column of {table.name} contains the image names.{names} {_columns(table)}",
            [f"--file-column {best[0] if len(best) == 1 else 'NAME'}", *labelled],
        )
    raise ChoiceNeeded(
        f"Several columns of {table.name} may contain the image names: {', '.join(known)}. Choose one.",
        [f"--file-column {known[0]}"],
    )


def _labels(
    table: Table, choices: Choices, taken: set[str | None]
) -> tuple[Iterable[str | None], tuple[str, ...] | None]:
    attributes = choices.attribute
    classes = (f"not {attributes[0]}", attributes[0]) if len(attributes) == 1 else attributes or None
    if attributes and set(attributes) <= set(table.columns):
        columns = [[_ANSWERS.get(cell.casefold()) for cell in table.cells(name)] for name in attributes]
        rows = zip(*columns, strict=True)
        return [_chosen(attributes, row) for row in rows], classes
    known = [column for column in usual_columns("label", table.columns) if column not in taken]
    order = None if choices.label_column or attributes else _numbered(table, known)
    if order is not None:
        column = order[0]
    elif choices.label_column is not None:
        column = _column(table, choices.label_column, "--label-column")
    elif len(known) > 1:
        raise ChoiceNeeded(
            f"Several columns of {table.name} may contain the classes: {', '.join(known)}. Choose one.",
            [f"--label-column {known[0]}"],
        )
    elif known:
        column = known[0]
    else:
        return _of_binary(table, choices, taken), None

    cells = list(map(label_text, table.cells(column)))
    stated = {*(choices.classes or ()), *(choices.rename_classes or ())}
    joined = [part for cell in cells if SEVERAL in cell for part in cell.split(SEVERAL)]
    separator = None if set(cells) <= stated else list_separator([*cells, *joined])
    parts = [[label_text(part) for part in (separator.split(cell) if separator else [cell])] for cell in cells]
    members = [[name for name in names if not is_missing(name)] for names in parts]
    every = list(dict.fromkeys(name for names in members for name in names))
    if attributes:
        unknown = sorted(set(attributes) - set(every))
        if unknown:
            raise PackingError(
                f"No image of {table.name} has the label {unknown[0]!r}. The labels are {some(sorted(every))}."
            )
        has = [[name in names if names else None for name in attributes] for names in members]
        return [_chosen(attributes, row) for row in has], classes
    if separator is None:
        return cells, order[1] if order is not None else None
    if choices.combinations:
        return _bounded(table, [SEVERAL.join(sorted(set(names))) for names in members]), None
    example = next(cell for cell, names in zip(cells, members, strict=True) if len(names) > 1)
    raise ChoiceNeeded(
        f"Images of {table.name} have several labels in {column!r}, such as {example!r}, but each image needs exactly "
        f"one class. The labels are {some(list(map(repr, every)))}. If such a text is the name of one class, state the "
        f"classes (--classes classes.txt, one per line). {_NAME_ONE}",
        [f"--attribute {every[0]}"],
    )


def _of_binary(table: Table, choices: Choices, taken: set[str | None]) -> Iterable[str | None]:
    if choices.attribute:
        unknown = sorted(set(choices.attribute) - set(table.columns))
        raise PackingError(f"{table.name} has no column {unknown[0]!r}. {_columns(table)}")
    binary = []
    for column in table.columns:
        values = {cell.casefold() for cell in table.cells(column) if not is_missing(cell.casefold())}
        if column and column not in taken and values and values <= _BINARY:
            binary.append(column)
    if len(binary) < 2:
        raise ChoiceNeeded(
            f"It is unclear which column of {table.name} has the classes. {_columns(table)}",
            ["--label-column NAME"],
        )
    if not choices.combinations:
        raise ChoiceNeeded(
            f"{table.name} has no column of classes, but columns of 0 and 1: {some(binary)}. {_NAME_ONE}",
            [f"--attribute {binary[0]}"],
        )
    rows = zip(*([_ANSWERS.get(cell.casefold()) for cell in table.cells(column)] for column in binary), strict=True)
    labels = [SEVERAL.join(name for name, value in zip(binary, row, strict=True) if value) or "none" for row in rows]
    return _bounded(table, labels)


def _numbered(table: Table, known: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    for numbers, names in itertools.permutations(known, 2) if len(known) == 2 else ():
        pairs = set(zip(table.cells(numbers), table.cells(names), strict=True))
        unique = len(dict(pairs)) == len({name for _, name in pairs}) == len(pairs)
        if unique and all(number.isdecimal() for number, _ in pairs):
            return names, tuple(label_text(name) for _, name in sorted(pairs, key=lambda pair: int(pair[0])))
    return None


def _chosen(names: tuple[str, ...], has: Sequence[bool | None]) -> str | None:
    if None in has:
        return ""  # missing or unsure
    if len(names) == 1:
        return names[0] if has[0] else f"not {names[0]}"
    return names[has.index(True)] if sum(map(bool, has)) == 1 else None


def _bounded(table: Table, labels: list[str]) -> list[str]:
    if len(set(labels)) > COMBINATIONS_MAX:
        raise PackingError(
            f"{table.name} has {len(set(labels)):,} combinations of labels, more than {COMBINATIONS_MAX}, and rare "
            "combinations identify people. Select labels with --attribute instead."
        )
    return labels


def _column(table: Table, stated: str, flag: str) -> str:
    found = [column for column in table.columns if column == stated] or [
        column for column in table.columns if column.casefold() == stated.strip().casefold()
    ]
    if len(found) != 1:
        raise PackingError(f"{flag}: {table.name} has no column {stated!r}. {_columns(table)}")
    return found[0]


def _columns(table: Table) -> str:
    if not table.named:
        return f"The table has no header: its columns are 1 to {len(table.columns)}."
    return f"The columns are {', '.join(column or '(without a name)' for column in table.columns)}."
