"""Which service a command talks to, with which key, and the options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from service.cli.console import CliError, Exit, Output, reporting
from service.client import Client
from service.settings import Settings


def find_url(url: str | None, data_dir: Path) -> str:
    """The option or OBSCURA_URL; else the address that a service on this machine has written down; else the default."""
    if url:
        return url
    settings = Settings(data_dir=data_dir)
    try:
        return settings.url_path.read_text("ascii").strip()
    except OSError:
        return f"http://{settings.host}:{settings.port}"


def find_token(token: str | None, data_dir: Path) -> str:
    """The option or OBSCURA_TOKEN; else the first admin key of a service on this machine.

    Raises:
        CliError: There is none.
    """
    if token:
        return token
    path = Settings(data_dir=data_dir).admin_key_path
    try:
        return path.read_text("ascii").strip()
    except OSError:
        raise CliError(
            f"No API key: set OBSCURA_TOKEN, or run where {path} can be read (see --data-dir).", Exit.AUTH
        ) from None


def resolve_account(client: Client, name_or_id: str) -> str:
    """The id of an account given by id or name.

    Raises:
        CliError: No account has this name.
    """
    if name_or_id.startswith("acc_"):
        return name_or_id
    for account in client.accounts():
        if account.name == name_or_id:
            return account.id
    raise CliError(f"There is no account named {name_or_id!r}.", Exit.USAGE)


def resolve_dataset(client: Client, name_or_id: str) -> str:
    """The id of a dataset given by id or by a name that only one has.

    Raises:
        CliError: None or several have this name.
    """
    if name_or_id.startswith("ds_"):
        return name_or_id
    found = [dataset.id for dataset in client.datasets() if dataset.name == name_or_id]
    if len(found) != 1:
        how_many = "no dataset is" if not found else f"{len(found)} datasets are"
        raise CliError(f"{how_many.capitalize()} named {name_or_id!r}: give an id (ds_...).", Exit.USAGE)
    return found[0]


Json = Annotated[bool, typer.Option("--json", help="Write the result as JSON to stdout.")]
Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="Name or id.")]
Key = Annotated[str | None, typer.Option(help="Idempotency key: repeating the command starts nothing new.")]
Discard = Annotated[bool, typer.Option("--discard", help="Publish nothing of what was paid for.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="lim_... or adr_...")]
Epsilon = Annotated[float, typer.Option("--epsilon", "-e", help="Privacy budget that this job may spend.")]
Recipe = Annotated[str, typer.Option("--recipe", "-r", help="Training recipe.")]
OptionPairs = Annotated[
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


def add_list(
    group: typer.Typer,
    command: str,
    help: str,
    read: Callable[[Client], Iterable[BaseModel]],
    columns: Sequence[str],
    title: str,
) -> None:
    """Give a group a command that lists what the client reads."""

    @group.command(command, help=help)
    def listed(context: typer.Context, as_json: Json = False) -> None:
        with connected(context, as_json) as (client, output):
            output.rows(list(read(client)), columns, title)


def add_decision(
    group: typer.Typer, command: str, help: str, decide: Callable[[Client, str], BaseModel], title: str
) -> None:
    """Give a group a command that approves or declines what another admin has asked for."""

    @group.command(command, help=help)
    def decided(context: typer.Context, request: RequestId, as_json: Json = False) -> None:
        with connected(context, as_json) as (client, output):
            output.record(decide(client, request), title)


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
