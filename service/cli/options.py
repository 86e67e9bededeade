"""Options that several commands share, and the connection that they open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.connection import find_token, find_url
from service.cli.console import CliError, Exit, Output, reporting
from service.client import Client

Json = Annotated[bool, typer.Option("--json", help="Write the result as JSON to stdout.")]
Epsilon = Annotated[float, typer.Option("--epsilon", "-e", help="Privacy budget that this job may spend.")]
Recipe = Annotated[str, typer.Option("--recipe", "-r", help="Training recipe.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the recipe; the value is read as JSON."),
]
Preset = Annotated[str | None, typer.Option("--preset", help="A named set of the recipe's options.")]


@dataclass(frozen=True)
class Target:
    """Which service the command line talks to; None means: find out."""

    url: str | None
    token: str | None
    data_dir: Path


@contextmanager
def connected(context: typer.Context, as_json: bool) -> Iterator[tuple[Client, Output]]:
    """Open the connection for one command and turn its errors into exit codes."""
    target: Target = context.obj
    with reporting(as_json) as output:
        token = find_token(target.token, target.data_dir)
        with Client(find_url(target.url, target.data_dir), token) as client:
            yield client, output


def recipe_options(settings: Sequence[str] | None, preset: str | None) -> dict[str, Any]:
    """Read `name=value` pairs; values are JSON, or text when they are not.

    Raises:
        CliError: A pair has no `=`.
    """
    options: dict[str, Any] = {} if preset is None else {"preset": preset}
    for setting in settings or []:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise CliError(f"--option takes NAME=VALUE, not {setting!r}.", Exit.USAGE)
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options
