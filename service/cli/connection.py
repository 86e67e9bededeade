"""Where the service is and which key to use: options, environment, or the files of a service on this machine."""

from __future__ import annotations

from pathlib import Path

from service.cli.console import CliError, Exit
from service.client import Client
from service.settings import Settings

URL_FILE = "service.url"  # written by `obscura up` while it runs


def find_url(url: str | None, data_dir: Path) -> str:
    """The option or OBSCURA_URL; else the address that a service on this machine has written down; else the default."""
    if url:
        return url
    try:
        return (data_dir / URL_FILE).read_text("ascii").strip()
    except OSError:
        settings = Settings(data_dir=data_dir)
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
