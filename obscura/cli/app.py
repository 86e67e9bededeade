"""The `obscura` command: results on stdout, progress on stderr, exit codes by class of failure."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from obscura.cli import accounts, admins, connection, datasets, detect, jobs, quickstart, releases, server_side
from obscura.extras import LIBRARY, MissingExtra

PANELS = {
    "Start": ("quickstart", "demo", "up", "open", "login", "logout", "doctor"),
    "Data": ("datasets", "subjects"),
    "Train": ("recipes", "plan", "train", "sweep", "jobs", "sweeps"),
    "Releases": ("releases", "sample", "download", "compare", "evaluate", "detect"),
    "Budget": ("accounts", "budget", "limits"),
    "People": ("people", "keys", "admins", "decisions", "projects", "webhooks"),
    "Operate": ("ledger", "backup", "restore", "openapi"),
}
TYPES = {"<str>": "TEXT", "<int>": "NUMBER", "<float>": "NUMBER", "<path>": "PATH", "<bool>": ""}


class Commands(TyperGroup):
    """All commands, by panel. The error for a command of a server that is not installed explains the installation."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for panel, names in PANELS.items():
            for name in names:
                if name in self.commands:
                    command: Any = self.commands.pop(name)
                    command.rich_help_panel = panel
                    self.commands[name] = command

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        _simplify(self)
        return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An unknown option that is an option of `obscura` itself is explained."""
        try:
            return super().invoke(ctx)
        except Exception as error:  # click's NoSuchOption, which newer versions of typer contain
            option = next((each for each in self.params if getattr(error, "option_name", "") in each.opts), None)
            if option is not None:
                value = "" if getattr(option, "is_flag", False) else f" {option.name.removeprefix('data_')}".upper()
                before = f"obscura {option.opts[0]}{value} {ctx.invoked_subcommand} ..."
                error.message = f"{option.opts[0]} goes before the command: {before}"  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]
            raise

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; raise MissingExtra if it needs a server that is not installed."""
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in server_side.COMMANDS:
            raise MissingExtra(f"`obscura {cmd_name}`", "a server", server_side.COMMANDS[cmd_name])
        return command


def _simplify(command: Any) -> None:
    """Join the lines of each paragraph, and show types in capitals, in the help of a command and its subcommands."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "")
    for parameter in command.get_params(typer.Context(command)):
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or parameter.name.upper()
            parameter.display_type_rich = lambda **_: ""  # its name says enough
        else:
            shown = getattr(parameter, "display_type", lambda _context: "")(None)
            shown = shown.replace(" range", "")
            parameter.metavar = parameter.metavar or TYPES.get(shown, shown.strip("<>") or None)
    for child in getattr(command, "commands", {}).values():
        _simplify(child)


app = typer.Typer(
    name="obscura",
    cls=Commands,
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
