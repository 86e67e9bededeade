"""`obscura projects`: departments, none of which sees what another one has."""

from __future__ import annotations

from typing import Annotated

import typer

from obscura.cli.connection import Json, add_list, connected
from obscura.client import Client

projects = typer.Typer(no_args_is_help=True, help="Departments that do not see each other (admins only).")

Name = Annotated[str, typer.Argument(help="For people.")]


@projects.command("create")
def create_project(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """Create a project. Accounts and keys are made in it by naming it: --project NAME."""
    with connected(context, as_json) as (client, output):
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
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="Name or id.")],
    name: Name,
    as_json: Json = False,
) -> None:
    """Give a project another name. What belongs to it stays as it is."""
    with connected(context, as_json) as (client, output):
        output.record(client.rename_project(client.find_project(project).id, name=name), "project")
