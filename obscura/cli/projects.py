"""`obscura projects`: departments, none of which sees what another one has."""

from __future__ import annotations

import re
from itertools import islice
from typing import Annotated

import typer

from obscura.cli.connection import Json, Yes, add_list, connected
from obscura.cli.console import CliError, Exit
from obscura.cli.jobs import confirm
from obscura.client import Client

projects = typer.Typer(no_args_is_help=True, help="Departments that do not see each other (admins only).")

Name = Annotated[str, typer.Argument(help="For people.")]
Named = Annotated[str, typer.Argument(metavar="PROJECT", help="Name or id.")]
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kMGT]?)B?")
NONE = "none"


@projects.command("create")
def create_project(context: typer.Context, name: Name, yes: Yes = False, as_json: Json = False) -> None:
    """Create a project. Accounts and keys are made in it by naming it: --project NAME.

    The second project hides the datasets, jobs and releases of every project from keys without a project.
    """
    with connected(context, as_json) as (client, output):
        existing = list(islice(client.projects(), 2))
        if len(existing) == 1 and not yes:
            confirm(
                "With a second project, datasets, jobs and releases are visible only with a key of their project. Your "
                f"key has none: to see those of today, create one with: obscura keys create NAME --role owner "
                f"--project {existing[0].id}. Nothing is deleted. Create the project?",
                "No project was created.",
            )
        output.record(client.create_project(name=name), "project")


add_list(
    projects,
    "list",
    "List the projects that your key opens, newest first.",
    Client.projects,
    ("name", "id", "created_at"),
    "projects",
)


@projects.command("rename")
def rename_project(
    context: typer.Context,
    project: Named,
    name: Name,
    as_json: Json = False,
) -> None:
    """Give a project another name. What belongs to it stays as it is."""
    with connected(context, as_json) as (client, output):
        output.record(client.rename_project(client.find_project(project).id, name=name), "project")


@projects.command("show")
def show_project(context: typer.Context, project: Named, as_json: Json = False) -> None:
    """Show a project's quota and what it takes: bytes as declared, jobs, and hours of workers this month."""
    with connected(context, as_json) as (client, output):
        output.record(client.project(client.find_project(project).id), "project")


@projects.command("quota")
def set_quota(
    context: typer.Context,
    project: Named,
    disk: Annotated[str | None, typer.Option(help="Bytes it may declare, like 100GB, or none.")] = None,
    jobs: Annotated[str | None, typer.Option(help="Jobs waiting or running at a time, or none.")] = None,
    worker_hours: Annotated[str | None, typer.Option(help="Hours of workers in a month (UTC), or none.")] = None,
    as_json: Json = False,
) -> None:
    """Say how much a project may take; what is left out stays, and none lifts a limit (installation admins only)."""
    with connected(context, as_json) as (client, output):
        limits = {} if disk is None else {"disk_bytes_max": _bytes(disk)}
        limits |= {} if jobs is None else {"jobs_max": _whole(jobs)}
        limits |= {} if worker_hours is None else {"worker_hours_max": _whole(worker_hours)}
        if not limits:
            raise CliError("Give at least one of --disk, --jobs and --worker-hours.", Exit.USAGE)
        output.record(client.set_quota(client.find_project(project).id, limits), "project")


def _bytes(text: str) -> int | None:
    if text == NONE:
        return None
    read = _BYTES.fullmatch(text)
    if read is None:
        raise CliError(f"--disk takes a size like 100GB or 1.5TB, or none, not {text!r}.", Exit.USAGE)
    return round(float(read[1]) * 1000.0 ** " kMGT".index(read[2] or " "))


def _whole(text: str) -> int | None:
    if text == NONE:
        return None
    if not text.isdecimal():
        raise CliError(f"This takes a whole number, or none, not {text!r}.", Exit.USAGE)
    return int(text)
