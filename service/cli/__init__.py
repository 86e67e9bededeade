"""What the packages of a server add to the `obscura` command; `obscura.cli.server_side` loads it by its entry point."""

from __future__ import annotations

import secrets

import typer

from obscura.wire.recipe_schemas import RecipeRecord
from privacy.mechanisms import noise, record_count
from service.cli import audit, backups, ledger, machine, server
from service.cli.machine import look_around

__all__ = ["add_commands", "installed_recipes", "look_around", "propose_bound"]


def add_commands(app: typer.Typer, admins: typer.Typer) -> None:
    """Add the commands that run a service, or work on what it keeps."""
    app.command("up")(server.up)
    app.command("demo")(server.demo)
    app.command("openapi")(server.openapi)
    app.command("backup")(backups.backup)
    app.command("restore")(backups.restore)
    app.add_typer(ledger.ledger, name="ledger")
    app.add_typer(audit.audit, name="audit")
    admins.command("restore")(machine.restore)


def installed_recipes() -> list[RecipeRecord]:
    """Describe the recipes that are installed."""
    from privacy.plans.registry import RECIPES
    from service.api.routes.recipes import describe

    return [describe(recipe) for recipe in RECIPES.values()]


def propose_bound(private_records: int, stddev: float) -> int:
    """Return a bound that may be declared, from one noisy count, which was paid for before."""
    key = secrets.token_bytes(noise.KEY_BYTES)  # no noise exists before this line
    return record_count.propose_bound(private_records, stddev, noise.SecureNoise(key))
