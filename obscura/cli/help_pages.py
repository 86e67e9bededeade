"""Help pages: the panels of the list of commands, types in capitals, and paragraphs that wrap."""

from __future__ import annotations

import re
from typing import Any

from typer import Context
from typer.core import TyperGroup

from obscura.cli.server_side import COMMANDS
from obscura.extras import MissingExtra

PANELS = {
    "Start": ("quickstart", "demo", "up", "open", "login", "logout", "doctor"),
    "Data": ("datasets", "subjects"),
    "Train": ("recipes", "plan", "train", "sweep", "jobs", "sweeps"),
    "Releases": ("releases", "sample", "download", "compare", "evaluate", "detect"),
    "Budget": ("accounts", "budget", "limits"),
    "People": ("people", "keys", "admins", "decisions", "projects", "webhooks"),
    "Operate": ("ledger", "backup", "restore", "openapi"),
}
TYPES = {"<str>": "TEXT", "<int>": "NUMBER", "<float>": "NUMBER", "<path>": "PATH", "<bool>": ""}


class Commands(TyperGroup):
    """All commands, by panel. The error for a command of a server that is not installed explains the installation."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for panel, names in PANELS.items():
            for name in names:
                if name in self.commands:
                    command: Any = self.commands.pop(name)
                    command.rich_help_panel = panel
                    self.commands[name] = command

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        """Start a command line, after the options for completion have been added."""
        _simplify(self)
        return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An unknown option that is an option of `obscura` itself is explained."""
        try:
            return super().invoke(ctx)
        except Exception as error:  # click's NoSuchOption, which newer versions of typer contain
            option = next((each for each in self.params if getattr(error, "option_name", "") in each.opts), None)
            if option is not None:
                value = "" if getattr(option, "is_flag", False) else f" {option.name.removeprefix('data_')}".upper()
                before = f"obscura {option.opts[0]}{value} {ctx.invoked_subcommand} ..."
                error.message = f"{option.opts[0]} goes before the command: {before}"  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]
            raise

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; raise MissingExtra if it needs a server that is not installed."""
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in COMMANDS:
            raise MissingExtra(f"`obscura {cmd_name}`", "a server", COMMANDS[cmd_name])
        return command


def _simplify(command: Any) -> None:
    """Join the lines of each paragraph, and show types in capitals, in the help of a command and its subcommands."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "")
    for parameter in command.get_params(Context(command)):
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or parameter.name.upper()
            parameter.display_type_rich = lambda **_: ""  # its name says enough
        else:
            shown = getattr(parameter, "display_type", lambda _context: "")(None)
            shown = shown.replace(" range", "")
            parameter.metavar = parameter.metavar or TYPES.get(shown, shown.strip("<>") or None)
    for child in getattr(command, "commands", {}).values():
        _simplify(child)
