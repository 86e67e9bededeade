"""Commands that server packages add, and two commands that also work without a service: `doctor` and `recipes`.

The server's commands are found through a package entry point, never in a folder `service` in the current directory.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points, version
from types import ModuleType
from typing import Annotated, Literal

import typer

from obscura.cli.connection import Json, Target, connection
from obscura.cli.console import CliError, Exit, Output, reporting
from obscura.client import AuthError, ConnectionFailed, ObscuraClientError
from obscura.extras import LIBRARY, SERVER, WORKER, is_installed, packages_of_parts
from obscura.wire.wording import values_in_words

DISK_BYTES_MIN = 2 * 2**30
SLOW_SECONDS_MAX = 30.0
# The installable part that contains each command.
COMMANDS = {"up": WORKER, "demo": WORKER, **dict.fromkeys(("openapi", "ledger", "backup", "restore"), SERVER)}


@dataclass(frozen=True)
class Finding:
    what: str
    state: Literal["ok", "missing", "bad"]
    said: str


def server_side() -> ModuleType | None:
    """Load `service.cli`. Return None without a server; raise ImportError if another package is named `service`.

    The module has `add_commands`, `look_around` for `obscura doctor`, and `installed_recipes` for `obscura recipes`.
    """
    for found in entry_points(group="obscura.commands"):
        try:
            joined: ModuleType = found.load()
        except ModuleNotFoundError as error:
            name = found.module.partition(".")[0]
            if error.name is None or error.name.partition(".")[0] != name:
                raise
            raise ImportError(
                f"Python found another package {name!r} instead of Obscura's: start the command in another folder, or "
                "without -m"
            ) from error
        return joined
    return None


def doctor(context: typer.Context, as_json: Json = False) -> None:
    """Check Python, packages, service, database, workers and disk. Exit code 1 if a check fails."""
    target: Target = context.obj
    with reporting(as_json) as output:
        findings = [Finding("python", "ok", f"{sys.version.split()[0]}, obscura {version(LIBRARY)}")]
        parts = packages_of_parts()
        if SERVER not in parts:
            findings.append(Finding("service here", "missing", f"to install it: pip install '{WORKER}'"))
        for part, names in parts.items():
            if not part.endswith("[dev]"):
                missing = [name for name in names if not is_installed(name)]
                how = f"{', '.join(missing)}; to install: pip install '{part}'" if missing else f"{len(names)} packages"
                findings.append(Finding(f"packages of {part}", "missing" if missing else "ok", how))
        findings.append(_service(target, output))
        if (beside := server_side()) is not None:
            findings += beside.look_around(target.data_dir)
        folder = target.data_dir.resolve()
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(existing).free
        full = f"{free / 2**30:.1f} GiB left at {existing}: free some, or choose another --data-dir"
        enough = Finding("disk", "ok", f"{free / 2**30:.0f} GiB left")
        findings.append(Finding("disk", "bad", full) if free < DISK_BYTES_MIN else enough)
        if as_json:
            output.rows([asdict(finding) for finding in findings], (), "doctor")
        for finding in findings:
            output.text(f"{finding.state:8} {finding.what}: {finding.said}")
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)


def _service(target: Target, output: Output) -> Finding:
    try:
        with connection(target, output) as client:
            url = client.transport.route
            try:
                health = client.wait_ready(SLOW_SECONDS_MAX)
            except ConnectionFailed as error:
                absent = f"no service answers at {url}; to start one: obscura up"
                return Finding("service", "bad", absent if error.refused else f"{url} is too slow: {error}")
            try:
                next(iter(client.accounts.list()), None)
            except AuthError as error:
                if error.status == 401:
                    return Finding("service", "bad", f"{url} rejects the key; to save another: obscura login {url}")
            if health.trainings == "stopped":
                return Finding("service", "bad", f"{url} has stopped trainings; to see why: obscura ledger status")
            return Finding("service", "ok", f"{url}, version {health.version}")
    except (CliError, ObscuraClientError) as error:
        return Finding("service", "bad", str(error))


def recipes(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Show its options and presets.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes of the service, or the options of one recipe: values, defaults and presets.

    If no service is named and none runs here, describes the recipes of the installed package.
    """
    target: Target = context.obj
    with reporting(as_json) as output:
        try:
            with connection(target, output) as client:
                listed = client.recipes.list()
        except (CliError, ConnectionFailed):
            if target.url is not None or target.profile is not None or (beside := server_side()) is None:
                raise
            output.notice("No service answers, so these are the recipes of the package that is installed here.")
            listed = beside.installed_recipes()
        known = {recipe.name: recipe for recipe in listed}
        if name is None:
            output.rows(listed, ("name", "title", "publishes", "units", "releases"), "recipes")
            output.notice("To see the options of a recipe: obscura recipes moments")
        elif name not in known:
            raise CliError(f"There is no recipe {name!r}. To list the recipes: obscura recipes", Exit.USAGE)
        elif as_json:
            output.record(known[name], name)
        else:
            recipe = known[name]
            output.text(recipe.releases)
            for group, options in recipe.groups.items():
                output.text(f"\n{group}")
                for option in options:
                    schema, default = recipe.options["properties"][option], recipe.defaults.get(option)
                    shown = "auto" if option in recipe.follows else json.dumps(default)
                    if option != "preset":
                        output.text(f"  {option}={shown}  ({values_in_words(schema)})")
                        output.text(f"    {schema.get('description', '')}")
            for preset, chosen in recipe.presets.items():
                pairs = ", ".join(f"{key}={json.dumps(value)}" for key, value in chosen.items())
                output.text(f"--preset {preset}: {pairs or 'the defaults above'}")
            if recipe.follows:
                output.notice("auto: computed from declared numbers and budget; a plan shows the values.")
            output.notice(f"To train: obscura train DATASET --recipe {recipe.name} --epsilon 1 --option NAME=VALUE")
