"""The names of the classes: what their owner states, and whether the files keep to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
