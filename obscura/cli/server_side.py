"""What the packages of a server add to the command line where they are installed, and how they are named elsewhere.

They join by an entry point, so that a folder `service` beside the person's own script is never taken for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Protocol

import typer
from typer.core import TyperGroup

from obscura.extras import SERVER, WORKER, MissingExtra
from obscura.wire.recipe_schemas import RecipeRecord

COMMANDS = {  # which part of the installation brings each
    "up": WORKER,
    "demo": WORKER,
    "openapi": SERVER,
    "ledger": SERVER,
    "audit": SERVER,
    "backup": SERVER,
    "restore": SERVER,
}


@dataclass(frozen=True)
class Finding:
    """One thing that `obscura doctor` has looked at."""

    what: str
    state: Literal["ok", "missing", "bad"]
    said: str


class ServerSide(Protocol):
    """What the entry point names: `service.cli`."""

    def add_commands(self, app: typer.Typer, admins: typer.Typer) -> None:
        """Add the commands that run a service, or work on what it keeps."""

    def look_around(self, data_dir: Path) -> Iterator[Finding]:
        """Look at the service of this machine, for `obscura doctor`."""

    def installed_recipes(self) -> list[RecipeRecord]:
        """Describe the recipes that are installed, for `obscura recipes` where no service answers."""

    def propose_bound(self, private_records: int, stddev: float) -> int:
        """Return a bound that may be declared, from one noisy count, which was paid for before."""


def server_side() -> ServerSide | None:
    """Load it; None where no server is installed.

    Raises:
        ImportError: Python finds another package of its name first.
    """
    for found in entry_points(group="obscura.commands"):
        try:
            joined: ServerSide = found.load()
        except ModuleNotFoundError as error:
            name = found.module.partition(".")[0]
            if error.name is None or error.name.partition(".")[0] != name:
                raise
            raise ImportError(
                f"Python found another {name!r} than Obscura's, which is installed under that name: start the command "
                "elsewhere, or without -m"
            ) from error
        return joined
    return None


def needed_to_count() -> ServerSide:
    """Return what draws the noise of a count.

    Raises:
        MissingExtra: No server is installed here.
    """
    found = server_side()
    if found is None:
        raise MissingExtra("Without --at-most, counting the pictures with noise", "a server", SERVER)
    return found


class Commands(TyperGroup):
    """Names, for a command that only a server has, what brings it."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command.

        Raises:
            MissingExtra: It comes with a server, and none is installed here.
        """
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in COMMANDS:
            raise MissingExtra(f"`obscura {cmd_name}`", "a server", COMMANDS[cmd_name])
        return command
