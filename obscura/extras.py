"""Packages that only some commands need, and which extra of the installation brings them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires

from obscura.errors import ObscuraClientError


class MissingExtra(ObscuraClientError):
    """A package is not installed that an extra of the installation brings; the message names the command."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"This needs {module}, which is not installed here. Run: pip install 'obscura[{extra}]'")


@contextmanager
def extras() -> Iterator[None]:
    """Name the extra where the block imports something that one would bring.

    Raises:
        MissingExtra: The block imports a package of an extra, and it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = extra_with(module)
        if extra is None:
            raise
        raise MissingExtra(module, extra) from None


def extra_with(module: str) -> str | None:
    """The first extra whose packages include the one of a module; None where no extra does."""
    wanted = re.sub(r"[_.-]+", "-", module).lower()
    return next((extra for extra, names in packages_of_extras().items() if wanted in names), None)


def packages_of_extras() -> dict[str, list[str]]:
    """The names of the packages that each extra of the installation brings."""
    found: dict[str, list[str]] = {}
    for line in requires("obscura") or ():
        if parts := re.match(r"([\w.-]+)[^;]*;.*extra == ['\"]([\w-]+)['\"]", line):
            found.setdefault(parts[2], []).append(re.sub(r"[_.-]+", "-", parts[1]).lower())
    return found
