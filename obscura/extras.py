"""Optional packages, and the part of Obscura that installs each, such as `obscura-images-server[worker]`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution, requires

from obscura.errors import ObscuraClientError

LIBRARY = "obscura-images"
SERVER = "obscura-images-server"
WORKER = f"{SERVER}[worker]"


class MissingExtra(ObscuraClientError):
    """A package of an optional part is not installed; the message names the command that installs it."""

    def __init__(self, what: str, needed: str, part: str) -> None:
        super().__init__(f"{what} needs {needed}, which must be installed first. Run: pip install '{part}'")


@contextmanager
def extras(what: str = "This") -> Iterator[None]:
    """Raise MissingExtra if the block imports a package that is not installed. `what` is the subject of its message."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        wanted = re.sub(r"[_.-]+", "-", module).lower()
        part = next((part for part, names in packages_of_parts().items() if wanted in names), None)
        if part is None:
            raise
        raise MissingExtra(what, module, part) from None


def packages_of_parts() -> dict[str, list[str]]:
    """Return the packages of each installable part, keyed by the part's name for `pip install`."""
    found: dict[str, list[str]] = {}
    for library in (LIBRARY, SERVER):
        with suppress(PackageNotFoundError):
            for line in requires(library) or ():
                if package := re.match(r"[\w.-]+", line):
                    extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
                    part = f"{library}[{extra[1]}]" if extra else library
                    found.setdefault(part, []).append(re.sub(r"[_.-]+", "-", package[0]).lower())
    return found


def is_installed(package: str) -> bool:
    """Return whether a package is installed; `package` is its name for `pip install`."""
    with suppress(PackageNotFoundError):
        return bool(distribution(package))
    return False
