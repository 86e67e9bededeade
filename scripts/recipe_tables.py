"""Write the tables of options into docs from the recipes' models: `python -m scripts.recipe_tables`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from obscura.wire.wording import values_in_words
from privacy.plans.plan import Recipe
from privacy.plans.private_steps import StepsConfig
from privacy.plans.registry import RECIPES

PAGES = [
    Path(__file__).parents[1] / "docs" / f"{name}.md"
    for name in ("recipes", "moments", "datalens", "classifiers", "generators")
]
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """Return the page with each table, between its marks, as it follows from the models."""
    return _MARKED.sub(lambda found: f"{found[1]}{_table_named(found[2])}\n{found[3]}", page)


def _table_named(name: str) -> str:
    if name == "recipes":
        return _overview(RECIPES.values())
    if name == "private_steps":
        return _options(StepsConfig.model_fields, [each for each in RECIPES.values() if _by_steps(each)])
    recipe = RECIPES[name]
    elsewhere = StepsConfig.model_fields if _by_steps(recipe) else {}
    return _options([option for option in recipe.config.model_fields if option not in elsewhere], [recipe])


def _by_steps(recipe: Recipe) -> bool:
    return issubclass(recipe.config, StepsConfig)


def _overview(recipes: Iterable[Recipe]) -> str:
    rows = [
        [f"`{each.name}`", each.releases, _codes(each.presets), ", ".join(f"{unit}s" for unit in sorted(each.units))]
        for each in recipes
    ]
    return _table(["recipe", "releases", "presets", "units"], rows)


def _options(names: Iterable[str], recipes: Sequence[Recipe]) -> str:
    """One row for each option, with its default in each of the recipes: * where it follows from something else."""
    rows = []
    for name in names:
        schemas = [recipe.options["properties"][name] for recipe in recipes]
        defaults = [_default(recipe, name) for recipe in recipes]
        rows.append([f"`{name}`", _values(schemas[0]), *defaults, schemas[0]["description"]])
    heads = ["default"] if len(recipes) == 1 else [f"`{recipe.name}`" for recipe in recipes]
    return _table(["option", "values", *heads, ""], rows)


def _default(recipe: Recipe, name: str) -> str:
    value = recipe.defaults[name]
    return "*" if name in recipe.follows else f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


def _values(schema: dict[str, Any]) -> str:
    return _codes(schema["enum"]) if "enum" in schema else values_in_words(schema)


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(line) for line in (heads, *rows)]
    ruled = [lines[0], "---|" * (len(heads) - 1) + "---", *lines[1:]]
    return "\n".join(f"|{line}|" if line.startswith("---") else f"| {line.rstrip()} |" for line in ruled)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_tables(path.read_text("utf-8")), "utf-8")
