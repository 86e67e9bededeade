"""Recipes are described by their models alone, and given one object, `workers.recipes.interface.Run`; who trains one is
given `workers.train.orders.Training`. Neither hands on long lists of parameters.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from privacy.plans.registry import RECIPES
from scripts.recipe_tables import PAGES, with_tables
from workers.recipes.registry import TRAINERS

WORKERS = Path(__file__).parents[2] / "workers"
PARAMETERS_MAX = 6


def parameters(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file with the number of its parameters, without self."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef):
            given = node.args
            names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            yield (
                f"{path.parent.name}/{path.name}: {node.name}",
                len([name for name in names if name not in ("self", "cls")]),
            )


@pytest.mark.parametrize("package", ["recipes", "train"])
def test_no_function_takes_more_than_six_parameters(package):
    found = [pair for path in sorted((WORKERS / package).rglob("*.py")) for pair in parameters(path)]
    assert len(found) > 80
    assert {name: count for name, count in found if count > PARAMETERS_MAX} == {}


def test_every_recipe_takes_a_run_and_nothing_else():
    for trainer in TRAINERS.values():
        assert [str(parameter) for parameter in inspect.signature(trainer).parameters.values()] == ["run: 'Run'"]


def test_the_tables_of_options_follow_from_the_models():
    pages = [path.read_text("utf-8") for path in PAGES]
    for page in pages:
        assert with_tables(page) == page, "options changed: run `python -m scripts.recipe_tables`"
        assert with_tables(page.replace("an integer between", "between")) == page
    page = "\n".join(pages)
    for recipe in RECIPES.values():
        assert f"| `{recipe.name}` |" in page
        for option in recipe.config.model_fields:
            assert f"| `{option}` | " in page
