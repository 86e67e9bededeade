"""The command line as a tree: which command a line names, and what is left of the line."""

from typing import Any

import typer.main
from typer.core import TyperCommand, TyperGroup


def command_of(words: list[str]) -> tuple[TyperCommand | TyperGroup, list[str]]:
    from obscura.cli.app import app

    command: Any = typer.main.get_command(app)
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    return command, words
