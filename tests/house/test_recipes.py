"""Recipes are described by their models alone, and given one object, `workers.recipes.interface.Run`; who trains one is
given `workers.train.orders.Training`. Neither hands on long lists of parameters.
"""

import inspect

from privacy.plans.registry import RECIPES
from scripts.recipe_tables import PAGES, with_tables
from workers.recipes.registry import TRAINERS


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
