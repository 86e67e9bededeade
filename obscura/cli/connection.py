"""Which service a command talks to, with which key, and the options that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from obscura.cli.console import CliError, Exit, Output, reporting
from obscura.cli.hints import is_here
from obscura.cli.profiles import DEFAULT, read_profiles
from obscura.client import Client
from obscura.occupant import address_of, admin_key_path


def _address_here(folder: Path) -> str:
    """The address that a service on this machine has written down; else the default."""
    host, port = os.environ.get("OBSCURA_HOST", "127.0.0.1"), os.environ.get("OBSCURA_PORT", "8420")
    return address_of(folder) or f"http://{host}:{port}"


def _first_key(path: Path) -> str:
    """The first admin key of a service on this machine.

    Raises:
        CliError: No such key can be read.
    """
    try:
        return path.read_text("ascii").strip()
    except OSError:
        raise CliError(
            f"No API key: OBSCURA_TOKEN is not set, and {path} cannot be read. To start a service here: obscura "
            "up. To use one elsewhere: obscura login URL",
            Exit.AUTH,
        ) from None


def address(target: Target) -> tuple[str, str]:
    """The address and the key that a command uses.

    What is given on the command line or in the environment comes first, then the profile that is named, then a service
    on this machine, then the default profile. A key goes only where it belongs: that of a profile to its address, and
    that of a service on this machine nowhere else.

    Raises:
        CliError: There is no such profile, or no key for the address.
    """
    kept = read_profiles()
    chosen = None
    if target.profile is not None:
        chosen = kept.get(target.profile)
        if chosen is None:
            make = f"obscura login URL --profile {target.profile}"
            raise CliError(f"There is no profile {target.profile!r}. To make it: {make}", Exit.USAGE)
    elif target.url is not None:
        chosen = next((profile for profile in kept.values() if profile.url == target.url.rstrip("/")), None)
    elif not admin_key_path(target.folder).exists():
        chosen = kept.get(DEFAULT)
    url = target.url or (chosen.url if chosen else _address_here(target.folder))
    if target.token:
        return url, target.token
    if chosen is not None and chosen.url == url.rstrip("/"):
        return url, chosen.token
    if not is_here(url):
        raise CliError(f"There is no key for {url}. To give one: obscura login {url}", Exit.AUTH)
    return url, _first_key(admin_key_path(target.folder))


def resolve_account(client: Client, name_or_id: str) -> str:
    """The id of an account given by id or name; NoSuchName where no account has it."""
    return client.find_account(name_or_id).id


def resolve_project(client: Client, name_or_id: str | None) -> str | None:
    """The id of a project given by id or name, if one is given; NoSuchName where no project has it."""
    return None if name_or_id is None else client.find_project(name_or_id).id


def resolve_dataset(client: Client, name_or_id: str) -> str:
    """The id of a dataset given by id or name; NoSuchName where no dataset has it, or several."""
    return client.datasets.find(name_or_id).id


Json = Annotated[bool, typer.Option("--json", help="Write the result as JSON to stdout.")]
Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="Name or id.")]
Datasets = Annotated[
    list[str],
    typer.Argument(metavar="DATASET...", help="Name or id of one dataset; several are rejected."),
]
Project = Annotated[
    str | None, typer.Option("--project", help="Name or id of the department. Left out where there is one project.")
]
Key = Annotated[str | None, typer.Option(help="Idempotency key: repeating the command starts nothing new.")]
Discard = Annotated[bool, typer.Option("--discard", help="Publish nothing of what was paid for.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="key_...")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="lim_..., adr_... or shq_...")]
Epsilon = Annotated[float, typer.Option("--epsilon", "-e", help="Privacy budget that this job may spend.")]
Recipe = Annotated[str, typer.Option("--recipe", "-r", help="Training recipe.")]
OptionPairs = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the recipe; the value is read as JSON."),
]
ClassShares = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS=NUMBER,...",
        help="How many records each class is likely to have, stated without looking: normal=2000,sick=20, or shares in "
        "label order. The recipe's option class_shares.",
    ),
]
Preset = Annotated[str | None, typer.Option("--preset", help="A named set of the recipe's options.")]


@dataclass(frozen=True)
class Target:
    """Which service the command line talks to; None means: find out."""

    url: str | None
    token: str | None
    folder: Path
    profile: str | None = None


@contextmanager
def connected(context: typer.Context, as_json: bool) -> Iterator[tuple[Client, Output]]:
    """Open the connection for one command and turn its errors into exit codes."""
    target: Target = context.obj
    with reporting(as_json) as output, Client(*address(target)) as client:
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


def recipe_options(
    settings: Sequence[str] | None, preset: str | None, class_shares: str | None = None
) -> dict[str, Any]:
    """Read `name=value` pairs; values are JSON, or text when they are not. Two options have flags of their own.

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
    return options if class_shares is None else {**options, "class_shares": class_shares}
