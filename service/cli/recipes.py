"""`obscura recipes`: what can be trained, with which options, read off the registry that plans are made with."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connection import Json
from service.cli.console import CliError, Exit, reporting

if TYPE_CHECKING:
    from privacy.plans.plan import Recipe, RecipeConfig


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Show its options and presets.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes, or the options of one: defaults, presets, and what each is."""
    from privacy.plans.registry import RECIPES

    with reporting(as_json) as output:
        if name is None:
            summaries = [_summary(recipe) for recipe in RECIPES.values()]
            output.rows(summaries, ("name", "title", "publishes", "protects", "presets"), "recipes")
            output.notice("To see the options of one: obscura recipes datalens")
            return
        if name not in RECIPES:
            raise CliError(f"There is no recipe {name!r}. To see those that there are: obscura recipes", Exit.USAGE)
        recipe = RECIPES[name]
        options = options_of(recipe)
        if as_json:
            output.record(_summary(recipe) | {"options": options, "presets": dict(recipe.presets)}, name)
            return
        for option in options:
            output.text(f"{option['name']}={json.dumps(option['default'])}\n    {option['meaning']}")
        for preset, chosen in recipe.presets.items():
            output.text(
                f"--preset {preset}: "
                + (", ".join(f"{key}={json.dumps(value)}" for key, value in chosen.items()) or "the above")
            )
        output.notice(f"To choose: obscura train DATASET --recipe {name} --epsilon 1 --option NAME=VALUE")


def _summary(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "title": recipe.title,
        "publishes": recipe.publishes,
        "protects": sorted(recipe.units),
        "presets": list(recipe.presets),
    }


def options_of(recipe: Recipe) -> list[dict[str, Any]]:
    """Name, default and meaning of each option; a default may follow from the dataset and the budget instead."""
    meanings = meanings_of(recipe.config)
    preset = recipe.presets.get("default", {})
    return [
        {
            "name": field.name,
            "default": preset.get(field.name, field.default),
            "meaning": meanings.get(field.name, ""),
        }
        for field in dataclasses.fields(recipe.config)
    ]


def meanings_of(config: type[RecipeConfig]) -> dict[str, str]:
    """What the docstrings of a configuration and of those it builds on say of each attribute."""
    found: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        _, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
        for entry in re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", attributes, flags=re.MULTILINE):
            found[entry[0]] = " ".join(entry[1].split())
    return found
