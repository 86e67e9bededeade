"""The `obscura` command: results on stdout, progress on stderr, exit codes by class of failure."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from obscura.cli import (
    accounts,
    admins,
    connection,
    datasets,
    detect,
    help_pages,
    jobs,
    quickstart,
    releases,
    server_side,
)
from obscura.extras import LIBRARY

app = typer.Typer(
    name="obscura",
    cls=help_pages.Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Private synthetic images behind a budget that cannot be overspent.",
    epilog="Exit codes: 2 usage, 3 budget, 4 key, 5 job failed, 1 anything else.",
)
app.command("quickstart")(quickstart.quickstart)
app.command("login")(connection.login)
app.command("logout")(connection.logout)
app.command("open")(connection.open_page)
app.command("doctor")(server_side.doctor)
app.command("recipes")(server_side.recipes)
app.command("plan")(jobs.plan)
app.command("train")(jobs.train)
app.command("sweep")(jobs.sweep)
app.command("evaluate")(releases.evaluate)
app.command("sample")(releases.sample)
app.command("download")(releases.download)
app.command("compare")(releases.compare)
app.command("detect")(detect.detect)
app.add_typer(accounts.accounts, name="accounts")
app.add_typer(datasets.datasets, name="datasets")
app.add_typer(datasets.subjects, name="subjects")
app.add_typer(jobs.jobs, name="jobs")
app.add_typer(jobs.sweeps, name="sweeps")
app.add_typer(releases.releases, name="releases")
app.add_typer(accounts.limits, name="limits")
app.add_typer(accounts.budget, name="budget")
app.add_typer(admins.projects, name="projects")
app.add_typer(admins.people, name="people")
app.add_typer(admins.keys, name="keys")
app.add_typer(admins.admins, name="admins")
app.add_typer(admins.decisions, name="decisions")
app.add_typer(admins.webhooks, name="webhooks")
if (beside := server_side.server_side()) is not None:
    beside.add_commands(app, admins.admins)


def show_version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        typer.echo(f"obscura {version(LIBRARY)}")
        raise typer.Exit


@app.callback()
def choose_target(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(envvar="OBSCURA_URL", help="Address of the service.")] = None,
    token: Annotated[str | None, typer.Option(envvar="OBSCURA_TOKEN", help="API key.")] = None,
    data_dir: Annotated[
        Path, typer.Option(envvar="OBSCURA_DATA_DIR", help="Data folder of a service on this machine.")
    ] = Path("var"),
    profile: Annotated[
        str | None, typer.Option(envvar="OBSCURA_PROFILE", help="Profile saved by `obscura login`.")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Store the options that select the service."""
    # By name, because newer versions of typer contain a click of their own.
    sources = {name: getattr(context.get_parameter_source(name), "name", "") for name in ("url", "profile", "data_dir")}
    ignored = [name for name in ("profile", "url") if sources[name] == "COMMANDLINE"]
    if context.invoked_subcommand in server_side.COMMANDS and ignored:
        raise typer.BadParameter(
            f"`obscura {context.invoked_subcommand}` works on a service of this machine: give --data-dir in place of "
            f"--{ignored[0]}."
        )
    context.obj = connection.Target(url, token, data_dir, profile, names_folder=sources["data_dir"] != "DEFAULT")
