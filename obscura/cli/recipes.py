"""`obscura recipes`: what the service can train, and with which options."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from obscura.cli.connection import Json, Target, connection
from obscura.cli.console import CliError, Exit, Output, reporting
from obscura.cli.server_side import server_side
from obscura.client import ConnectionFailed
from obscura.wire.recipe_schemas import RecipeRecord
from obscura.wire.wording import values_in_words


def recipes(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Show its options and presets.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes of the service, or the options of one: values, defaults and presets."""
    with reporting(as_json) as output:
        known = {recipe.name: recipe for recipe in _ask(context.obj, output)}
        if name is None:
            output.rows(list(known.values()), ("name", "title", "publishes", "units", "releases"), "recipes")
            output.notice("To see the options of one: obscura recipes moments")
        elif name not in known:
            raise CliError(f"There is no recipe {name!r}. To see those that there are: obscura recipes", Exit.USAGE)
        elif as_json:
            output.record(known[name], name)
        else:
            _show(known[name], output)


def _ask(target: Target, output: Output) -> list[RecipeRecord]:
    """Ask the service. Where none was named, and none runs here, describe what is installed, and say so.

    Raises:
        CliError: there is no key for the service that was named.
        ConnectionFailed: the service that was named does not answer.
    """
    try:
        with connection(target, output) as client:
            return client.recipes()
    except (CliError, ConnectionFailed):
        if target.url is not None or target.profile is not None or (beside := server_side()) is None:
            raise
    output.notice("No service answers, so these are the recipes of the package that is installed here.")
    return beside.installed_recipes()


def _show(recipe: RecipeRecord, output: Output) -> None:
    output.text(recipe.releases)
    for option, schema in recipe.options["properties"].items():
        if option == "preset":
            continue
        default = json.dumps(recipe.defaults[option])
        follows = "; follows from declared numbers and budget" if option in recipe.follows else ""
        output.text(f"{option}={default}  ({values_in_words(schema)}{follows})\n    {schema.get('description', '')}")
    for preset, chosen in recipe.presets.items():
        values = ", ".join(f"{key}={json.dumps(value)}" for key, value in chosen.items())
        output.text(f"--preset {preset}: {values or 'the above'}")
    output.notice(f"To choose: obscura train DATASET --recipe {recipe.name} --epsilon 1 --option NAME=VALUE")
