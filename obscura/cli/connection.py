"""Which service a command talks to, with which key, and the options that several commands share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from obscura.cli.console import CliError, Exit, Output, reporting
from obscura.cli.profiles import DEFAULT, Profile, read_profiles
from obscura.client import Client
from obscura.client.local_service import START_SECONDS_MAX
from obscura.client.transport import is_here
from obscura.occupant import address_of, admin_key_path, is_occupied, is_own, read_admin_key
from obscura.wire.admin_schemas import DecisionRecord

Say = Callable[[str], None]


def _address_here(folder: Path, say: Say) -> str:
    """Return the address of the service on a data folder, and wait for it while it starts.

    Raises:
        CliError: No service runs there, and the environment names no address.
    """
    deadline = None
    while (url := address_of(folder)) is None and is_occupied(folder):
        if deadline is None:
            say(f"The service on {folder} is starting. Waiting for it.")
            deadline = time.monotonic() + START_SECONDS_MAX
        if time.monotonic() > deadline:
            raise CliError(f"The service on {folder} is still starting after {START_SECONDS_MAX / 60:.0f} minutes.")
        time.sleep(0.2)
    if url is not None:
        return url
    host, port = os.environ.get("OBSCURA_HOST"), os.environ.get("OBSCURA_PORT")
    if host is None and port is None and admin_key_path(folder).exists():  # the key must not go to another service
        raise CliError(f"No service runs on {folder}. To start it: obscura --data-dir {folder} up")
    return f"http://{host or '127.0.0.1'}:{port or '8420'}"


def _first_key(folder: Path) -> str:
    """Return the first admin key of a service on this machine.

    Raises:
        CliError: No such key can be read.
    """
    try:
        return read_admin_key(folder)
    except OSError:
        raise CliError(
            f"No API key: OBSCURA_TOKEN is not set, and {admin_key_path(folder)} cannot be read. To start a service "
            "here: obscura up. To use one elsewhere: obscura login URL",
            Exit.AUTH,
        ) from None


def address(target: Target, say: Say) -> tuple[str, str]:
    """Return the address and key for a command, and report the service unless it is obvious.

    Precedence: command line and environment, the named profile, a service on this machine whose data folder belongs to
    the caller, the default profile. A key is only sent to its own service.

    Raises:
        CliError: There is no such profile, or no key for the address.
        NotOwned: The named data folder belongs to another user.
    """
    profiles = read_profiles()
    chosen = None
    if target.profile is not None:
        chosen = profiles.get(target.profile)
        if chosen is None:
            make = f"obscura login URL --profile {target.profile}"
            raise CliError(f"There is no profile {target.profile!r}. To make it: {make}", Exit.USAGE)
    elif target.url is not None:
        chosen = next((profile for profile in profiles.values() if profile.url == target.url.rstrip("/")), None)
    else:
        chosen = _implied(target, profiles.get(DEFAULT), say)
    url = target.url or (chosen.url if chosen else _address_here(target.folder, say))
    if target.token:
        return url, target.token
    if chosen is not None and chosen.url == url.rstrip("/"):
        return url, chosen.token
    if not is_here(url):
        raise CliError(f"There is no key for {url}. To give one: obscura login {url}", Exit.AUTH)
    return url, _first_key(target.folder)


def _implied(target: Target, default: Profile | None, say: Say) -> Profile | None:
    folder = target.data_dir
    if target.is_foreign:
        if default is not None:
            say(f"Using profile {DEFAULT!r} ({default.url}): {folder} belongs to another user.")
        return default
    if admin_key_path(folder).exists():
        if default is not None and not target.names_folder:
            say(f"Using the service on {folder}. For {default.url}, add --profile {DEFAULT}.")
        return None
    if default is not None and target.names_folder:
        say(f"Using profile {DEFAULT!r} ({default.url}): {folder} contains no admin key.")
    return default


def resolve_account(client: Client, name_or_id: str) -> str:
    """Return the id of an account given by id or name."""
    return client.find_account(name_or_id).id


def resolve_project(client: Client, name_or_id: str | None) -> str | None:
    """Return the id of a project given by id or name, or None."""
    return None if name_or_id is None else client.find_project(name_or_id).id


def resolve_dataset(client: Client, name_or_id: str) -> str:
    """Return the id of a dataset given by id or name."""
    return client.datasets.find(name_or_id).id


Json = Annotated[bool, typer.Option("--json", help="Write the result as JSON to stdout.")]
Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="Name or id.")]
Project = Annotated[
    str | None, typer.Option("--project", help="Name or id of the department. Left out where there is one project.")
]
Key = Annotated[str | None, typer.Option(help="Idempotency key: repeating the command starts nothing new.")]
Discard = Annotated[bool, typer.Option("--discard", help="Publish nothing of what was paid for.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="key_...")]
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
    """The service that the command line uses; None fields are looked up."""

    url: str | None
    token: str | None
    data_dir: Path
    profile: str | None = None
    names_folder: bool = True  # False for the default, which another user may have created in the current folder

    @property
    def is_foreign(self) -> bool:
        """Return whether the default data folder belongs to another user."""
        return not self.names_folder and self.data_dir.exists() and not is_own(self.data_dir)

    @property
    def folder(self) -> Path:
        """Return the data folder of a service on this machine; raise CliError if it is foreign and was not named."""
        if self.is_foreign:
            raise CliError(
                f"{self.data_dir} belongs to another user, so its service is not used. To use one elsewhere: obscura "
                "login URL. To start your own: obscura --data-dir FOLDER up",
                Exit.AUTH,
            )
        return self.data_dir


@contextmanager
def connection(target: Target, output: Output) -> Iterator[Client]:
    """Connect to the service, and report the proxy if there is one."""
    with Client(*address(target, output.notice)) as client:
        if client.transport.proxy is not None:
            output.notice(f"Connecting to {client.transport.route}.")
        yield client


@contextmanager
def connected(context: typer.Context, as_json: bool) -> Iterator[tuple[Client, Output]]:
    """Connect for one command, and convert its errors to exit codes."""
    target: Target = context.obj
    with reporting(as_json) as output, connection(target, output) as client:
        yield client, output


def add_list(
    group: typer.Typer,
    command: str,
    help: str,
    read: Callable[[Client], Iterable[BaseModel]],
    columns: Sequence[str],
    title: str,
) -> None:
    """Add a command that lists records."""

    @group.command(command, help=help)
    def listed(context: typer.Context, as_json: Json = False) -> None:
        with connected(context, as_json) as (client, output):
            output.rows(list(read(client)), columns, title)


def show_asked(output: Output, made: DecisionRecord) -> None:
    """Show a request that another admin must approve, and the command that does."""
    output.record(made, "request")
    output.notice(f"Another admin runs: obscura decisions approve {made.id}")


def recipe_options(
    settings: Sequence[str] | None, preset: str | None, class_shares: str | None = None
) -> dict[str, Any]:
    """Parse `name=value` pairs, whose values are JSON or else text; raise CliError for a pair without `=`."""
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
