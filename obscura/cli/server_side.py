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
    """Result of one check of `obscura doctor`."""

    what: str
    state: Literal["ok", "missing", "bad"]
    said: str


class ServerSide(Protocol):
    """Interface of `service.cli`, loaded by entry point."""

    def add_commands(self, app: typer.Typer, admins: typer.Typer) -> None:
        """Add the server's commands."""

    def look_around(self, data_dir: Path) -> Iterator[Finding]:
        """Check the service on this machine, for `obscura doctor`."""

    def installed_recipes(self) -> list[RecipeRecord]:
        """Return the installed recipes, for `obscura recipes` without a service."""


def server_side() -> ServerSide | None:
    """Load it; None if no server is installed; raise ImportError if another package has its name."""
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


class Commands(TyperGroup):
    """Explains what to install for a command that only the server has."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; raise MissingExtra if it needs a server that is not installed."""
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in COMMANDS:
            raise MissingExtra(f"`obscura {cmd_name}`", "a server", COMMANDS[cmd_name])
        return command
