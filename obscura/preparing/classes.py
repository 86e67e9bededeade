"""The names of the classes: what their owner states, and whether the files keep to it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from obscura.preparing.errors import PackingError, some


def stated_classes(found: tuple[str, ...], stated: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names of classes that a layout numbers: those that were stated, in that order, else its own.

    Raises:
        PackingError: There are more classes than were stated.
    """
    if stated is None:
        return found
    if len(found) > len(stated):
        raise PackingError(
            f"--classes names {len(stated)} classes, and there are labels beyond these: name every class that there "
            "may be, in label order."
        )
    return stated


def require_stated(found: Iterable[str], stated: tuple[str, ...] | None) -> None:
    """Let classes pass that were stated, or of which nothing was.

    Raises:
        PackingError: One was not.
    """
    more = [] if stated is None else sorted(set(found) - set(stated))
    if more:
        raise PackingError(
            f"--classes does not name every class that there is: {some(more, len(more))}. Name it, or leave its "
            "pictures out."
        )


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text file that are not empty.

    Raises:
        PackingError: It cannot be read.
    """
    try:
        return [line for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise PackingError(f"The list of classes {path} cannot be read: {type(error).__name__}.") from error


def read_renames(path: Path) -> dict[str, str]:
    """Read a table with the columns old and new: what each class is called from now on. The new ones are all there are.

    Raises:
        PackingError: It is no such table, or says two things about one name.
    """
    renamed: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            if not {"old", "new"} <= set(table.fieldnames or ()):
                raise PackingError(f"{path.name} must begin with a line that names the columns old and new: old,new.")
            for row in table:
                old, new = (row["old"] or "").strip(), (row["new"] or "").strip()
                if not old or not new or renamed.setdefault(old, new) != new:
                    raise PackingError(f"Line {table.line_num} of {path.name} lacks a name, or contradicts another.")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PackingError(f"The table {path.name} cannot be read: {type(error).__name__}.") from error
    if not renamed:
        raise PackingError(f"{path.name} names no class.")
    return renamed


def require_renamed(found: Iterable[str], renamed: Mapping[str, str]) -> None:
    """Let classes pass that all have a new name.

    Raises:
        PackingError: One has none.
    """
    more = sorted(set(found) - set(renamed))
    if more:
        raise PackingError(
            f"--rename-classes does not rename every class: {some(more, len(more))}. Write a line for each."
        )
