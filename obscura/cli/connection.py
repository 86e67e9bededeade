"""Select the service and the key for a command, read saved profiles, and define parts that several commands share."""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from obscura import private_files
from obscura.cli.console import CliError, Exit, Output, reporting
from obscura.client import AuthError, Client
from obscura.client.collections import Collection, Projects
from obscura.client.datasets import Datasets
from obscura.client.local_service import START_SECONDS_MAX
from obscura.client.transport import is_here

Shown = BaseModel | dict[str, Any] | Iterable[BaseModel] | None  # the result of a command
DEFAULT = "default"  # profile
PAGES = {"acc": "accounts", "ds": "datasets", "job": "jobs", "swp": "sweeps", "rel": "releases"}  # by prefix of the id
ID = re.compile(rf"({'|'.join(PAGES)})_[a-z2-7]{{20}}")
APPROVE = "Another admin runs: obscura decisions approve {0.id}"  # the hint after a request


Json = Annotated[bool, typer.Option("--json", help="Write the result as JSON to stdout.")]
Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="Name or id.")]
DatasetId = Annotated[Dataset, Datasets]
ProjectId = Annotated[
    str | None, typer.Option("--project", help="Name or id of the project, if there are several."), Projects
]
Key = Annotated[str | None, typer.Option(help="Idempotency key: repeating the command starts nothing new.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the job until it ends.")]
Reason = Annotated[str, typer.Option("--reason", help="The reason, kept in the records forever.")]


@dataclass(frozen=True)
class Target:
    """Settings that select the service. Fields that are None are looked up."""

    url: str | None
    token: str | None
    data_dir: Path
    profile: str | None = None
    names_folder: bool = True  # False for the default, which another user may have created in the current folder

    @property
    def is_foreign(self) -> bool:
        return not self.names_folder and self.data_dir.exists() and not private_files.is_own(self.data_dir)

    @property
    def folder(self) -> Path:
        """Return the data folder of a service on this machine; raise CliError if it is foreign (see `is_foreign`)."""
        if self.is_foreign:
            raise CliError(
                f"{self.data_dir} belongs to another user, so its service is not used. To use another service: "
                "obscura login URL. To start your own: obscura --data-dir FOLDER up",
                Exit.AUTH,
            )
        return self.data_dir


class Profile(BaseModel):
    model_config = ConfigDict(frozen=True)

    url: str
    token: str


_PROFILES = TypeAdapter(dict[str, Profile])
ProfileName = Annotated[str | None, typer.Option("--profile", help="Name of the profile; default: `default`.")]


def profiles_path() -> Path:
    return Path(typer.get_app_dir("obscura")) / "profiles.json"


def read_profiles() -> dict[str, Profile]:
    """Return the profiles by name; raise CliError if the file is damaged or belongs to another user."""
    path = profiles_path()
    try:
        if not private_files.is_own(path):
            raise CliError(f"{path} belongs to another user, so it is not used. Remove it, or correct its owner.")
        private_files.make_private(path)
        return _PROFILES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        raise CliError(
            f"{path} cannot be read ({type(error).__name__}). Remove it, and run: obscura login URL"
        ) from None


def _address_here(folder: Path, say: Callable[[str], None]) -> str:
    deadline = None
    while (url := private_files.address_of(folder)) is None and private_files.is_occupied(folder):
        if deadline is None:
            say(f"The service on {folder} is starting. Waiting for it.")
            deadline = time.monotonic() + START_SECONDS_MAX
        if time.monotonic() > deadline:
            raise CliError(f"The service on {folder} is still starting after {START_SECONDS_MAX / 60:.0f} minutes.")
        time.sleep(0.2)
    if url is not None:
        return url
    host, port = os.environ.get("OBSCURA_HOST"), os.environ.get("OBSCURA_PORT")
    # The folder's admin key must not be sent to another service at the default address.
    if host is None and port is None and private_files.admin_key_path(folder).exists():
        raise CliError(f"No service runs on {folder}. To start one: obscura --data-dir {folder} up")
    return f"http://{host or '127.0.0.1'}:{port or '8420'}"


def address(target: Target, say: Callable[[str], None]) -> tuple[str, str]:
    """Return the address and key for a command, and print which service is used, unless that is obvious.

    Precedence: command line and environment, the named profile, a service on this machine whose data folder belongs to
    the caller, the default profile. A key is sent only to the service that it was saved for.
    """
    profiles, folder = read_profiles(), target.data_dir
    default = chosen = profiles.get(DEFAULT)
    if target.profile is not None:
        chosen = profiles.get(target.profile)
        if chosen is None:
            make = f"obscura login URL --profile {target.profile}"
            raise CliError(f"There is no profile {target.profile!r}. To create it: {make}", Exit.USAGE)
    elif target.url is not None:
        chosen = next((profile for profile in profiles.values() if profile.url == target.url.rstrip("/")), None)
    elif target.is_foreign:
        if default is not None:
            say(f"Using profile {DEFAULT!r} ({default.url}): {folder} belongs to another user.")
    elif private_files.admin_key_path(folder).exists():
        chosen = None
        if default is not None and not target.names_folder:
            say(f"Using the service on {folder}. For {default.url}, add --profile {DEFAULT}.")
    elif default is not None and target.names_folder:
        say(f"Using profile {DEFAULT!r} ({default.url}): {folder} contains no admin key.")
    url = target.url or (chosen.url if chosen else _address_here(target.folder, say))
    if target.token:
        return url, target.token
    if chosen is not None and chosen.url == url.rstrip("/"):
        return url, chosen.token
    if not is_here(url):
        raise CliError(f"There is no key for {url}. To store one: obscura login {url}", Exit.AUTH)
    folder = target.folder
    try:
        return url, private_files.read_admin_key(folder)
    except OSError:
        raise CliError(
            f"No API key: OBSCURA_TOKEN is not set, and {private_files.admin_key_path(folder)} cannot be read. To "
            "start a service here: obscura up. To use another service: obscura login URL",
            Exit.AUTH,
        ) from None


@contextmanager
def connection(target: Target, output: Output) -> Iterator[Client]:
    """Connect to the service. If a proxy is used, print its address."""
    with Client(*address(target, output.notice)) as client:
        if client.transport.proxy is not None:
            output.notice(f"Connecting to {client.transport.route}.")
        output.names = partial(names_in, client)
        yield client


def names_in(client: Client, records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the names of the accounts, datasets and projects in records, by id, as far as the key may read them."""
    ids = {str(each) for record in records for name, each in record.items() if name.endswith("_id")}
    named: dict[str, str] = {}
    nouns: dict[str, Collection[Any]] = {"acc_": client.accounts, "ds_": client.datasets, "prj_": client.projects}
    for prefix, items in nouns.items():
        if any(each.startswith(prefix) for each in ids):
            with suppress(AuthError):
                named |= {each.id: each.name for each in items.list()}
    return named


def shown(
    title: str, columns: Sequence[str] = (), hint: str = ""
) -> Callable[[Callable[..., Shown]], Callable[..., None]]:
    """Turn a function into a command: connect, run it, and show the result (a list as rows of `columns`).

    The function's parameters `client` and `output` are filled in; its other parameters become options of the command. A
    function that returns None has already shown its result.

    If an annotation contains a collection, such as `Projects`, the user names a record of it, and the parameter
    receives that record's id. `hint` is printed after a record; `{0.id}` inserts a field.
    """

    def decorate(function: Callable[..., Shown]) -> Callable[..., None]:
        parameters = inspect.signature(function, eval_str=True).parameters
        found_in: dict[str, type[Collection[Any]]] = {
            name: part
            for name, each in parameters.items()
            for part in get_args(each.annotation)
            if isinstance(part, type) and issubclass(part, Collection)
        }

        def run(context: typer.Context, as_json: bool, **values: Any) -> None:
            with reporting(as_json) as output, connection(context.obj, output) as client:
                for name, kind in found_in.items():
                    if values[name] or parameters[name].default is not None:
                        values[name] = kind(client.transport).get(values[name]).id
                given = {"client": client, "output": output}
                result = function(**values, **{name: given[name] for name in given if name in parameters})
                if isinstance(result, BaseModel | dict):
                    output.record(result, title)
                    if hint:
                        output.notice(hint.format(result))
                elif result is not None:
                    output.rows(list(result), columns, title)

        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        options = [each for each in parameters.values() if each.name not in ("client", "output")]
        as_json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
        return with_parameters(run, [context, *options, as_json], function.__doc__)

    return decorate


def with_parameters(
    command: Callable[..., Any], parameters: Iterable[inspect.Parameter], description: str | None
) -> Callable[..., Any]:
    """Set the parameters and the description of a command, as typer reads them."""
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in keywords}
    command.__doc__ = description
    return command


def command(
    group: typer.Typer, name: str, title: str, columns: Sequence[str] = (), hint: str = ""
) -> Callable[[Callable[..., Shown]], Callable[..., None]]:
    return lambda function: group.command(name)(shown(title, columns, hint)(function))


def add_command(
    group: typer.Typer,
    name: str,
    title: str,
    path: str,
    description: str | None = None,
    columns: Sequence[str] = (),
    /,
    hint: str = "",
    **arguments: Any,
) -> None:
    """Add a command that shows the result of a method of the client, such as `accounts.list`; see `shown`.

    If the records of the collection have the method, as in `accounts.freeze`, the first argument names the record.

    Args:
        description: Text for --help. By default the docstring of the method.
        arguments: Annotations of the command's arguments, by name.
    """
    noun, verb = path.split(".")
    kind = get_type_hints(Client)[noun]
    of_record = not hasattr(kind, verb)
    method = getattr(kind.record if of_record else kind, verb)
    _, *taken = inspect.signature(method).parameters.values()
    named = {each.name: each for each in taken if each.kind == each.KEYWORD_ONLY}
    subject = None if arguments.keys() <= named.keys() else next(iter(arguments))

    def run(client: Client, **values: Any) -> Shown:
        collection = getattr(client, noun)
        first = [values.pop(subject)] if subject else []
        act: Callable[..., Shown] = getattr(collection.get(*first) if of_record else collection, verb)
        return act(**values) if of_record else act(*first, **values)

    client = inspect.signature(run).parameters["client"]
    plain = inspect.Parameter("_", inspect.Parameter.KEYWORD_ONLY)
    parameters = [named.get(name, plain).replace(name=name, annotation=each) for name, each in arguments.items()]
    command(group, name, title, columns, hint)(
        with_parameters(run, [client, *parameters], description or method.__doc__)
    )


@shown("page")
def open_page(
    client: Client,
    output: Output,
    name_or_id: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|ID]", help="An account, dataset, job, sweep or release; default: the overview."),
    ] = None,
) -> Shown:
    """Open the dashboard in a browser, or the page of one account, dataset, job, sweep or release. Prints the URL."""
    path = name_or_id or ""
    if identity := ID.fullmatch(path):
        path = f"{PAGES[identity[1]]}/{path}"
    elif path:
        listed: dict[str, Collection[Any]] = {"accounts": client.accounts, "datasets": client.datasets}
        listed["releases"] = client.releases
        found = [f"{page}/{each.id}" for page, items in listed.items() for each in items.list() if each.name == path]
        if not found:
            raise CliError(f"No account, dataset or release is named {name_or_id!r}.", Exit.USAGE)
        if len({each.partition("/")[0] for each in found}) < len(found):
            ids = ", ".join(each.partition("/")[2] for each in found)
            raise CliError(f"Several share the name {name_or_id!r}. Give an id instead: {ids}.", Exit.USAGE)
        path = found[0]
    url = f"{client.transport.base_url}/{path}"
    if not output.as_json:
        webbrowser.open(url)
    return {"url": url}


def login(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="Address of the service, for example https://obscura.example.org.")],
    profile: ProfileName = None,
) -> None:
    """Save the address of a service and a key, so that you need not give them to every command.

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
                client.accounts.list(limit=1)
            except AuthError as error:
                if error.status == 401:
                    raise
        path, kept = profiles_path(), read_profiles() | {profile: Profile(url=url.rstrip("/"), token=token.strip())}
        private_files.replace_file(path, _PROFILES.dump_json(kept))
        when = "unless the data folder has an admin key" if profile == DEFAULT else f"with --profile {profile}"
        output.notice(f"Saved in {path}, which only you can read. Commands use this profile {when}.")


def logout(context: typer.Context, profile: ProfileName = None) -> None:
    """Delete a saved address and key. The key remains valid until an admin revokes it."""
    profile = profile or context.obj.profile or DEFAULT
    with reporting(as_json=False) as output:
        kept = read_profiles()
        if profile not in kept:
            raise CliError(
                f"There is no profile {profile!r}. To create one: obscura login URL --profile {profile}", Exit.USAGE
            )
        del kept[profile]
        private_files.replace_file(profiles_path(), _PROFILES.dump_json(kept))
        output.notice(f"Deleted profile {profile}.")
