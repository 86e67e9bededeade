"""`obscura projects`: departments, none of which sees what another one has."""

from __future__ import annotations

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
NONE = "none"


@projects.command("create")
def create_project(context: typer.Context, name: Name, yes: Yes = False, as_json: Json = False) -> None:
    """Create a project. Create accounts and keys in it with --project NAME.

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
    """Rename a project."""
    with connected(context, as_json) as (client, output):
        output.record(client.rename_project(client.find_project(project).id, name=name), "project")


@projects.command("show")
def show_project(context: typer.Context, project: Named, as_json: Json = False) -> None:
    """Show a project's job quota and number of unfinished jobs."""
    with connected(context, as_json) as (client, output):
        output.record(client.project(client.find_project(project).id), "project")


@projects.command("quota")
def set_quota(
    context: typer.Context,
    project: Named,
    jobs: Annotated[str, typer.Option(help="Jobs waiting or running at a time, or none.")],
    as_json: Json = False,
) -> None:
    """Limit the jobs of a project; none removes the limit (installation admins only)."""
    with connected(context, as_json) as (client, output):
        if jobs != NONE and not jobs.isdecimal():
            raise CliError(f"--jobs takes a whole number, or none, not {jobs!r}.", Exit.USAGE)
        jobs_max = None if jobs == NONE else int(jobs)
        output.record(client.set_quota(client.find_project(project).id, jobs_max=jobs_max), "project")
