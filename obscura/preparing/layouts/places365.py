"""Places365: folders of 365 categories, as three classes: indoor, outdoor-natural and outdoor-man-made.

Which class a category belongs to stands in the category hierarchy, a table that the makers of Places365 hand out beside
the pictures ("Scene hierarchy - Places365.csv"). Categories that are in none or in several of the classes are left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from obscura.preparing.choices import Choices
from obscura.preparing.errors import PackingError
from obscura.preparing.layouts.parts import choose_part, no_subjects, title_of
from obscura.preparing.sources import Record, Source, Tally
from obscura.preparing.trees import FolderTree, below, folders, pictures

_CLASSES = ("indoor", "outdoor-natural", "outdoor-man-made")
_TRAIN = ("data_256", "data_large", "data_256_standard", "data_large_standard", "train")
_VAL = ("val_256", "val_large", "val")
_CATEGORIES, _VAL_LIST = "categories_places365.txt", "places365_val.txt"
NOT_ONE = "picture of a category in none or several of the classes"


def find(folder: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise the folder.

    Raises:
        PackingError: A list that is needed is missing or damaged.
    """
    hierarchy = next(iter(sorted(p for p in folder.glob("*.csv") if "hierarchy" in p.name.casefold())), None)
    train = next((name for name in _TRAIN if (folder / name).is_dir()), None)
    official = train is not None and train != "train"
    if hierarchy is None and (official or (folder / _CATEGORIES).is_file()):
        raise PackingError(
            f"{folder.name} looks like Places365, whose three classes stand in its category hierarchy: put "
            "'Scene hierarchy - Places365.csv' into the folder."
        )
    val = next((name for name in _VAL if (folder / name).is_dir()), None)
    if hierarchy is None or (train is None and val is None):
        return None
    no_subjects("Places365", subjects)
    parts = {part: name for part, name in (("train", train), ("val", val)) if name is not None}
    chosen = choose_part("Places365", list(parts), choices.split)
    classes, tree = _read_hierarchy(hierarchy), FolderTree(folder)
    flat = chosen == "val" and not folders(tree, parts[chosen])
    walk = (
        partial(_walk_list, tree, folder, parts[chosen], classes)
        if flat
        else partial(_walk_folders, tree, parts[chosen], "", classes)
    )
    return Source(title_of("Places365", list(parts), chosen), walk, _CLASSES)


def _walk_folders(tree: FolderTree, base: str, inner: str, classes: dict[str, str], tally: Tally) -> Iterator[Record]:
    """Categories are folders, some inside others: /a/apartment_building/outdoor."""
    at = below(base, inner)
    label = classes.get(_key(inner))
    for file in pictures(tree, at, tally):
        if label is None:
            tally.left_out[NOT_ONE] += 1
        else:
            yield Record(label, None, below(inner, file), partial(tree.read, below(at, file)))
    for name in folders(tree, at, tally):
        yield from _walk_folders(tree, base, below(inner, name), classes, tally)


def _walk_list(tree: FolderTree, folder: Path, base: str, classes: dict[str, str], tally: Tally) -> Iterator[Record]:
    """Pictures lie in one folder, and a list gives the number of the category of each."""
    numbers = {number: category for category, number in _pairs(folder / _CATEGORIES)}
    for file, number in _pairs(folder / _VAL_LIST):
        label = classes.get(_key(numbers.get(number, "")))
        if label is None:
            tally.left_out[NOT_ONE] += 1
        else:
            yield Record(label, None, file, partial(tree.read, below(base, file)))


def _key(category: str) -> str:
    """What is the same of a category however it is written: /a/arena/hockey, 'a/arena/hockey', arena-hockey."""
    return re.sub(r"^/?[a-z]/", "", category.strip("' ").strip("/") + "/").strip("/").replace("/", "-")


def _read_hierarchy(path: Path) -> dict[str, str]:
    """Return the class of each category that is in just one."""
    found: dict[str, str] = {}
    columns: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.reader(file):
                if not columns:  # rows of titles come before the names of the columns
                    heads = [re.sub(r"[^a-z]+", "-", cell.casefold()).strip("-") for cell in row]
                    if heads and heads[0] == "category" and set(_CLASSES) <= set(heads):
                        columns = {name: heads.index(name) for name in _CLASSES}
                elif row and row[0].strip():
                    inside = [name for name, at in columns.items() if row[at : at + 1] and row[at].strip() == "1"]
                    if len(inside) == 1:
                        found[_key(row[0])] = inside[0]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PackingError(f"{path.name} cannot be read: {type(error).__name__}.") from error
    if not found:
        raise PackingError(
            f"{path.name} must have the columns category, 'indoor', 'outdoor, natural' and 'outdoor, man-made'."
        )
    return found


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PackingError(
            f"{path.name}, which Places365 needs here, cannot be read: {type(error).__name__}."
        ) from error
    for words in map(str.split, lines):
        if len(words) != 2:
            raise PackingError(f"{path.name} is damaged: a line is not a name and a number.")
        yield words[0], words[1]
