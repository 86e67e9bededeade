"""`obscura people`: whom the sign-in provider knows."""

from __future__ import annotations

import typer

from obscura.cli.connection import add_list
from obscura.client import Client

people = typer.Typer(no_args_is_help=True, help="People whom the sign-in provider knows (admins only).")

COLUMNS = ("name", "id", "email", "scopes", "project=project_id", "key=key_id", "confirmed_at", "lapsed=lapsed_at")

add_list(
    people,
    "list",
    "List people with the roles that their groups give them: one line for each project.",
    Client.people,
    COLUMNS,
    "people",
)
