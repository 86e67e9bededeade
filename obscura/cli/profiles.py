"""`obscura login` and `obscura logout`: addresses and keys that are kept for their owner, each under a name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from obscura.cli.console import CliError, Exit, reporting
from obscura.client import AuthError, Client
from obscura.occupant import is_own
from obscura.private_files import make_private, replace_file

DEFAULT = "default"


class Profile(BaseModel):
    """Address of a service and a key."""

    model_config = ConfigDict(frozen=True)

    url: str
    token: str


_PROFILES = TypeAdapter(dict[str, Profile])
Name = Annotated[
    str | None, typer.Option("--profile", help="Name of the profile, also before the command; `default` by default.")
]


def profiles_path() -> Path:
    """Return the path of the profiles, which only their owner can read."""
    return Path(typer.get_app_dir("obscura")) / "profiles.json"


def read_profiles() -> dict[str, Profile]:
    """Return the profiles by name; raise CliError if the file is damaged or another user's."""
    path = profiles_path()
    try:
        if not is_own(path):
            raise CliError(f"{path} belongs to another user, so it is not used. Remove it, or correct its owner.")
        make_private(path)
        return _PROFILES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        raise CliError(
            f"{path} cannot be read ({type(error).__name__}). Remove it, and run: obscura login URL"
        ) from None


def write_profiles(profiles: dict[str, Profile]) -> Path:
    """Replace the profiles atomically."""
    path = profiles_path()
    replace_file(path, json.dumps({name: each.model_dump() for name, each in profiles.items()}).encode())
    return path


def login(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="Address of the service, for example https://obscura.example.org.")],
    profile: Name = None,
) -> None:
    """Save the address of a service and a key, so that commands need neither.

    Asks for the key, or reads it from standard input: obscura login URL < key.txt
    """
    profile = profile or context.obj.profile or DEFAULT
    with reporting(as_json=False) as output:
        token = typer.prompt("API key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
        if not url.startswith(("http://", "https://")):
            raise CliError(f"An address begins with https://: obscura login https://{url}", Exit.USAGE)
        with Client(url, token.strip()) as client:
            if client.transport.proxy is not None:
                output.notice(f"Connecting to {client.transport.route}.")
            try:
                next(iter(client.accounts()), None)
            except AuthError as error:
                if error.status == 401:
                    raise
        path = write_profiles(read_profiles() | {profile: Profile(url=url.rstrip("/"), token=token.strip())})
        output.notice(f"Kept in {path}, which you alone can read. Commands use it{_when(profile)}.")


def logout(context: typer.Context, profile: Name = None) -> None:
    """Delete a saved address and key. The key remains valid until an admin revokes it."""
    profile = profile or context.obj.profile or DEFAULT
    with reporting(as_json=False) as output:
        kept = read_profiles()
        if profile not in kept:
            raise CliError(
                f"There is no profile {profile!r}. To make one: obscura login URL --profile {profile}", Exit.USAGE
            )
        write_profiles({name: each for name, each in kept.items() if name != profile})
        output.notice(f"Forgotten: {profile}.")


def _when(profile: str) -> str:
    return " where no service of this machine has its key" if profile == DEFAULT else f" with --profile {profile}"
