"""Class folders (`class/picture.png`, or `class/subject/picture.png`), also inside `train/`."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import partial

from obscura.pictures.types import picture_suffixes
from obscura.preparing.choices import Choices
from obscura.preparing.errors import ChoiceNeeded, PackingError
from obscura.preparing.sources import Record, Source, Tally
from obscura.preparing.trees import Tree, all_pictures, below, folders, pictures

_TRAIN = ("train", "training")
_SPLITS = frozenset({*_TRAIN, "test", "testing", "val", "valid", "validation"})
EMPTY = "empty class folder"
DEEP = "picture below the folders of subjects"
LOOSE = "picture outside of the class folders"


def class_folders(tree: Tree, choices: Choices, *, subjects: bool) -> Source:
    """Read a folder of class folders.

    Raises:
        PackingError: It has none, or another depth than the account's unit asks for.
        ChoiceNeeded: It has pictures, and nothing says of which class they are.
    """
    base, title = _split(tree, choices)
    walk = _walk_subjects if subjects else _walk_classes
    found = folders(tree, base)
    direct = any(pictures(tree, below(base, name)) for name in found)
    if not direct:
        if not subjects and pictures(tree, base):
            raise ChoiceNeeded(
                f"{tree.name} holds pictures and no class folders. Put them into one folder for each class, or name a "
                "table with the columns file and label.",
                ["--labels labels.csv"],
            )
        if not any(pictures(tree, at) for at in _inner(tree, base, found)):
            kinds = ", ".join(sorted(picture_suffixes()))
            raise PackingError(f"{tree.name} holds no class folders with pictures ({kinds}).")
    return Source(title, partial(walk, tree, base))


def _split(tree: Tree, choices: Choices) -> tuple[str, str]:
    """Return (folder of the class folders, title) where the top is train/ and test/."""
    top = folders(tree, "")
    names = {name.casefold(): name for name in top}
    parts = len(names) > 1 and set(names) <= _SPLITS and any(folders(tree, name) for name in top)
    if not parts:
        if choices.split is not None:
            raise PackingError(f"{tree.name} does not come in parts such as train/ and test/: leave --split out.")
        return "", ""
    wanted = choices.split or next((name for name in _TRAIN if name in names), None)
    if wanted is None or wanted.casefold() not in names:
        raise PackingError(f"{tree.name} comes in parts: choose one with --split ({', '.join(top)}).")
    chosen = names[wanted.casefold()]
    others = " and ".join(f"{name}/" for name in top if name != chosen)
    return chosen, f"{chosen}/ (not {others}; --split chooses)"


def _walk_classes(tree: Tree, base: str, tally: Tally) -> Iterator[Record]:
    tally.left_out[LOOSE] += len(pictures(tree, base, tally))
    for name in folders(tree, base, tally):
        at = below(base, name)
        if any(True for inner in _inner(tree, base, [name]) for _ in all_pictures(tree, inner, Tally())):
            raise PackingError(
                f"{tree.name} has folders inside its class folders, as for subjects, and the account protects single "
                "records. Put the pictures into the class folders themselves, name a table with --labels, or use an "
                "account whose unit is the subject."
            )
        found = pictures(tree, at, tally)
        tally.left_out[EMPTY] += not found
        for file in found:
            yield Record(_class(name), None, below(name, file), partial(tree.read, below(at, file)))


def _walk_subjects(tree: Tree, base: str, tally: Tally) -> Iterator[Record]:
    tally.left_out[LOOSE] += len(pictures(tree, base, tally))
    for name in folders(tree, base, tally):
        at = below(base, name)
        if pictures(tree, at, tally):
            raise PackingError(
                f"{tree.name} has pictures outside of the folders of subjects. The account protects all records of a "
                "subject together: put them into one folder for each subject inside the class folders "
                "(class/subject/picture.png)."
            )
        empty = True
        for owner in folders(tree, at, tally):
            for file in pictures(tree, below(at, owner), tally):
                empty = False
                path = below(below(at, owner), file)
                yield Record(_class(name), owner, f"{name}/{owner}/{file}", partial(tree.read, path))
            for deeper in folders(tree, below(at, owner), tally):
                tally.left_out[DEEP] += sum(1 for _ in all_pictures(tree, f"{at}/{owner}/{deeper}", tally))
        tally.left_out[EMPTY] += empty


def _class(name: str) -> str:
    """The name of a class in the one spelling that the service compares: systems write accents in two ways."""
    return unicodedata.normalize("NFC", name)


def _inner(tree: Tree, base: str, names: list[str]) -> Iterator[str]:
    for name in names:
        at = below(base, name)
        yield from (below(at, inner) for inner in folders(tree, at))
