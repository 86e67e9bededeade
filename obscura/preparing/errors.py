"""Errors that stop a push. Their messages stay on the owner's machine, so they may name files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from obscura.errors import ObscuraClientError

NAMES_SHOWN_MAX = 5


class PackingError(ObscuraClientError):
    """The folder or file cannot be pushed; the message states what is accepted."""


class ChoiceNeeded(PackingError):
    """Only the owner can decide something about the images. Nothing was declared or sent.

    Attributes:
        flags: Flags to add to the command, for example `("--skip-broken",)`.
    """

    def __init__(self, why: str, flags: Sequence[str]) -> None:
        self.flags = tuple(flags)
        shell, python = [], []
        for flag in flags:
            name, _, value = flag.partition(" ")
            shell.append(f"{name} {shlex.quote(value)}" if value else name)
            argument = name.removeprefix("--").replace("-", "_")
            python.append(f'{argument}="{value}"' if value else f"{argument}=True")
        super().__init__(f"{why} Add {' '.join(shell)} (in Python: {', '.join(python)}).")


class MoreThanStated(PackingError):
    """There are more records or subjects than stated. Nothing was declared or sent."""


class BrokenImages(ChoiceNeeded):
    """Some images cannot be read, and --skip-broken was not set.

    Attributes:
        count: Number of unreadable images.
        names: The first few file names, each with the reason.
    """

    def __init__(self, why: str, count: int, names: Sequence[str]) -> None:
        self.count, self.names = count, tuple(names)
        super().__init__(f"{why}. Repair them, or leave them out.", ["--skip-broken"])


class Unreadable(Exception):
    """One image cannot be read; the message states the reason in a few words."""


def some(names: Sequence[str], count: int | None = None) -> str:
    """Return the first names and the number of others. `count` is the total if `names` lacks some of them."""
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    more = (len(names) if count is None else count) - min(len(names), NAMES_SHOWN_MAX)
    return f"{shown} and {more:,} more" if more > 0 else shown
