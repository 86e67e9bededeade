"""Images with a table of their classes: match each row to an image.

Tables name images by paths on another machine, by the file name alone, or without its suffix. A row refers to the only
image whose path ends in the same way.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os.path import splitext
from posixpath import commonpath
from unicodedata import normalize

from obscura.errors import ChoiceNeeded, PackingError, Unreadable, some
from obscura.image_types import image_suffixes
from obscura.preparing.choices import Choices
from obscura.preparing.columns import NOT_ONE, Row, read_columns
from obscura.preparing.labels import UNLABELLED, is_missing
from obscura.preparing.questions import folded
from obscura.preparing.sources import PARTS, Record, Source, Tally, choose_part
from obscura.preparing.tables import TABLE_SUFFIXES, Table, parse_table, read_table, usual_columns
from obscura.preparing.trees import Tree, all_files, all_images, below, folders, images_in, suffix_of
from obscura.wire.meanings import is_part, is_split

_CELLS_COMPARED = 200


class Finder:
    """Match the names in a table to `paths`, the paths of all images."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self._suffixes = image_suffixes()
        self._paths = {normalize("NFC", path): path for path in paths}
        self._by_name: dict[str, list[str]] = defaultdict(list)
        self._by_stem: dict[str, list[str]] = defaultdict(list)
        self._by_form: dict[str, str] = {}
        for path in paths:
            name = normalize("NFC", path.rpartition("/")[2]).casefold()
            self._by_name[name].append(path)
            self._by_stem[splitext(name)[0]].append(path)

    def knows(self, cell: str) -> bool:
        try:
            return self.find(cell) is not None
        except PackingError:
            return True

    def likely(self, cell: str) -> tuple[str, str] | None:
        """Return the image that an unmatched cell probably names, and how cell and path differ; otherwise None."""
        folder, _, name = cell.replace("\\", "/").rpartition("/")
        stem, suffix = splitext(name) if re.fullmatch(r".*\.[A-Za-z]\w{1,4}", name) else (name, "")
        alike = self._by_stem.get(normalize("NFC", stem).casefold(), [])
        if alike and suffix and splitext(alike[0])[1].casefold() != suffix.casefold():
            return alike[0], f"The file endings differ: correct {suffix} in the table."
        if alike:
            return alike[0], f"The folders differ: correct {folder or '(none)'} in the table, or push the outer folder."
        if not self._by_form:
            for path in self.paths:
                self._by_form.setdefault(folded(splitext(path.rpartition("/")[2])[0]), path)
        found = self._by_form.get(folded(stem)) if stem else None
        if found is None:
            return None
        why = "The names differ only in zeros, decimals, spaces or punctuation, as if a spreadsheet had rewritten them."
        return found, f"{why} Save the column as text, or correct the names."

    def find(self, cell: str) -> str | None:
        """Return the image that a cell names, or None; raise PackingError if it names several.

        A cell names an image if the cell ends with the image's path, or that path ends with the cell.
        """
        wanted = normalize("NFC", cell.replace("\\", "/").removeprefix("./"))
        if ".." in wanted.split("/"):
            raise PackingError(f"The table names a file outside the folder: {cell}. Write paths without '..'.")
        if wanted in self._paths:
            return self._paths[wanted]
        name = wanted.rpartition("/")[2].casefold()
        whole = splitext(name)[1] in self._suffixes
        candidates = self._by_name.get(name, []) if whole else self._by_stem.get(name, [])
        found = []
        for path in candidates:
            one = (wanted if whole else wanted + splitext(path)[1]).casefold().split("/")
            two = normalize("NFC", path).casefold().split("/")
            shared = min(len(one), len(two))
            if one[-shared:] == two[-shared:]:
                found.append(path)
        if len(found) > 1:
            raise PackingError(
                f"The table names {cell!r}, which matches several images: {some(sorted(found))}. If the table "
                f"describes only one of their folders, name that folder: --split {min(found).partition('/')[0]}."
            )
        return found[0] if found else None


def labelled_by_table(
    tree: Tree, table: Table, choices: Choices, *, subjects: bool | None, at: str, part: str
) -> Source:
    """Return the images of a tree with their labels from a table.

    If a part was selected, `at` is its folder and `part` its title.
    """
    paths, base = [*all_images(tree, at, Tally())], at
    if not part:
        at, table, part = _part(tree, table, choices, paths)
    everywhere = Finder(paths)
    contents = read_columns(table, choices, everywhere.knows, subjects=subjects)
    if not part:
        at, part = _usual_part(tree, table, contents.rows, everywhere)
    inside = [path for path in paths if not at or path.startswith(f"{at}/")]
    finder, others = Finder(inside), Finder(sorted({*paths} - {*inside}))
    stated = choices.classes or ()
    rows = [
        replace(row, label="") if row.label is not None and is_missing(row.label) and row.label not in stated else row
        for row in contents.rows
    ]
    rows = [row for row in rows if finder.knows(row.file) or not others.knows(row.file)]  # without other parts
    _require_matches(tree, f"column {contents.file_column!r} of {table.name}", rows, finder, choices)
    unlabelled = [row for row in rows if row.label == ""]
    if unlabelled and not choices.skip_unlabelled:
        raise ChoiceNeeded(
            f"{len(unlabelled):,} of {len(rows):,} rows of {table.name} have no class, such as the row of "
            f"{unlabelled[0].file}: the cell is empty, unsure, or a word such as 'nan'. If that word is a class, name "
            "all classes with --classes. Otherwise, leave these images out.",
            ["--skip-unlabelled"],
        )

    row_of: dict[str, Row] = {}  # by path
    for row in rows:
        if not row.file:
            raise PackingError(f"A row of {table.name} names no file. Complete or remove the row.")
        path = finder.find(row.file) or below(base, row.file.replace("\\", "/").removeprefix("./"))
        found = replace(row, file=path)
        if row_of.setdefault(path, found) != found:
            raise PackingError(
                f"The rows of {table.name} for {path} differ: use one row per image, and write several labels as a|b."
            )

    def walk(tally: Tally) -> Iterator[Record]:
        unlisted = sum(path not in row_of for path in all_images(tree, at, tally))
        tally.left_out["image not named in the table"] += unlisted
        for path, row in row_of.items():
            if row.label is None:
                tally.left_out[NOT_ONE] += 1
            elif not row.label:
                tally.left_out[UNLABELLED] += 1
            else:
                yield Record(row.label, row.subject, path, partial(tree.read, path))

    title = f"{part}, labels from {table.name}" if part else f"labels from {table.name}"
    return Source(title, walk, contents.classes, owned=contents.owned, grouped=contents.grouped)


def _tops(paths: list[str]) -> dict[str, str]:
    around = commonpath([path.rpartition("/")[0] for path in paths]) if paths else ""
    inside = [path.removeprefix(f"{around}/" if around else "") for path in paths]
    return {name: below(around, name) for path in inside if (name := path.partition("/")[0]) != path}


def _part(tree: Tree, table: Table, choices: Choices, paths: list[str]) -> tuple[str, Table, str]:
    split = choices.split
    beside = choices.labels.parent.as_posix() if choices.labels is not None and not choices.labels.is_file() else "."
    if beside != "." and split is None and images_in(tree, beside):
        return beside, table, f"{beside}/"
    tops = {name.casefold(): at for name, at in _tops(paths).items()} | {
        name.casefold(): name for name in folders(tree, "")
    }
    called = split or next(
        (name for name in PARTS if re.search(rf"(^|[^a-z]){name}([^a-z]|$)", table.name.casefold())), ""
    )
    if called.casefold() in tops:
        at = tops[called.casefold()]
        return at, table, f"{at}/"
    part_words = ("split", "subset", "partition", "set", "part", "fold")
    column = next((name for name in table.columns if name.casefold() in part_words), None)
    values = [] if column is None else list(table.cells(column))
    if split is None:
        several = len(set(values)) > 1 and all(map(is_split, filter(None, values)))
        return "", table, f"all parts in column {column!r} (choose with --split)" if several else ""
    kept = [row for row, value in enumerate(values) if value.casefold() == split.casefold()]
    if not kept:
        raise PackingError(
            f"{table.name} does not come in parts: leave --split out."
            if not values
            else f"{table.name} has the parts {', '.join(sorted(set(values)))}: choose one with --split."
        )
    lines = tuple(table.lines[row] for row in kept) if table.lines else ()
    return "", replace(table, rows=[table.rows[row] for row in kept], lines=lines), split


def _usual_part(tree: Tree, table: Table, rows: list[Row], finder: Finder) -> tuple[str, str]:
    named = []
    for row in rows:
        with suppress(PackingError):  # outside the folder, or several images: rejected later
            named.append(finder.find(row.file))
    tops = _tops(list(filter(None, named)))
    if len(tops) < 2 or not all(map(is_split, tops)):
        return "", ""
    train = [name for name in tops if name.casefold().startswith("train")]
    if len(train) != 1:
        raise ChoiceNeeded(
            f"{table.name} names images in several parts of {tree.name}: {', '.join(sorted(tops))}. Choose a part.",
            [f"--split {min(train or tops)}"],
        )
    others = " and ".join(f"{name}/" for name in sorted(tops) if name != train[0])
    return tops[train[0]], f"{tops[train[0]]}/ (not {others}; choose with --split)"


def _require_matches(tree: Tree, column: str, rows: list[Row], finder: Finder, choices: Choices) -> None:
    missing = [row.file for row in rows if row.file and not finder.knows(row.file)]
    if not missing or not finder.paths:
        return
    name, cause = next(filter(None, map(finder.likely, missing[:_CELLS_COMPARED])), ("", ""))
    cell = next((cell for cell in missing if cause and finder.likely(cell)), missing[0])
    if len(missing) < len(rows) and (not cause or choices.skip_broken):
        return
    which = (
        f"No name in {column} matches"
        if len(missing) == len(rows)
        else f"{len(missing):,} of {len(rows):,} names in {column} do not match"
    )
    raise PackingError(
        f"{which} an image in {tree.name}. For example, the table says {cell!r}, and an image is called "
        f"{name or finder.paths[0]!r}. "
        + (cause or "Push the folder that the table describes, or name the column of file names (--file-column).")
    )


def find_table(tree: Tree, choices: Choices) -> tuple[Table, str, str] | None:
    """Read the table that --labels names, on this machine or in the tree; otherwise metadata.jsonl or metadata.csv.

    The last two are found as in Hugging Face's ImageFolder: beside the images, or in the folder of a part.

    Returns:
        (table, folder of the selected part, title of that part), or None.
    """
    if choices.labels is not None and choices.labels.is_file():
        return read_table(choices.labels, choices.table_encoding), "", ""
    if choices.labels is not None:
        try:
            data = tree.read(choices.labels.as_posix())
        except (Unreadable, KeyError) as error:
            raise PackingError(f"The table {choices.labels} cannot be read: {error}.") from None
        return parse_table(choices.labels.name, data, choices.table_encoding), "", ""
    names = ("metadata.csv", "metadata.jsonl")  # metadata.jsonl takes precedence
    places = {at: name for at in ("", *folders(tree, "")) for name in names if name in tree.files(at)}
    tables = {at: parse_table(name, tree.read(below(at, name)), choices.table_encoding) for at, name in places.items()}
    stated = {choices.label_column, *choices.attribute}
    described = {
        at: table
        for at, table in tables.items()
        if usual_columns("file", table.columns)
        and (stated & set(table.columns) or usual_columns("label", table.columns))
    }
    if not described:
        return None
    if "" in described:
        return described[""], "", ""
    chosen, title = choose_part(tree.name, list(described), choices.split, title=tree.name)
    return described[chosen], chosen, title


def ask_for_table(tree: Tree, choices: Choices) -> None:
    tops = folders(tree, "")
    if {"images", "labels"} <= {name.casefold() for name in tops}:
        at = next(name for name in tops if name.casefold() == "labels")
        if any(suffix_of(path) == ".txt" for path in all_files(tree, at)):
            raise PackingError(
                f"{tree.name} has YOLO's detection layout: labels/ contains boxes, not classes of "
                "images. Put the images into one folder for each class, or write a table (--labels)."
            )
    inside = [below(at, name) for at in tops for name in tree.files(at)]
    tables = [path for path in inside if suffix_of(path) in (*TABLE_SUFFIXES, ".json")]
    tables += [name for name in tree.files("") if suffix_of(name) in TABLE_SUFFIXES]
    tables = [path for path in tables if not path.rpartition("/")[2].startswith(".")]
    tables.sort(key=lambda name: ("train" not in name.casefold(), name))
    flat = all(is_part(name) and not folders(tree, name) for name in tops)
    if tables and flat and choices.classes is None:
        raise ChoiceNeeded(
            f"{tree.name} has no class folders, but {some(tables)} beside the images. Name the table or annotation "
            "file with the classes of the images.",
            [f"--labels {tables[0]}"],
        )
