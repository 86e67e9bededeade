"""Commands of the `obscura` command line that run or repair a service on its own machine.

Start at `add_commands`, which `obscura.cli.server_side` loads by entry point. Other commands go through the HTTP API,
and nothing in the service imports this package.
"""

from __future__ import annotations

import typer

from obscura.wire.job_schemas import RecipeRecord
from service.cli import ledger, machine
from service.cli.machine import look_around

__all__ = ["add_commands", "installed_recipes", "look_around"]


def add_commands(app: typer.Typer, admins: typer.Typer) -> None:
    app.command("up")(machine.up)
    app.command("demo")(machine.demo)
    app.command("openapi")(machine.openapi)
    app.command("backup")(ledger.backup)
    app.command("restore")(ledger.restore)
    app.add_typer(ledger.ledger, name="ledger")
    admins.command("restore")(machine.restore)


def installed_recipes() -> list[RecipeRecord]:
    from privacy.plans.registry import RECIPES
    from service.views.plans import describe_recipe

    return [describe_recipe(recipe) for recipe in RECIPES.values()]
