"""The recipes a runner can train, by the name that plans and jobs use: the modules that their entries name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from privacy.plans.plan import Plan, PublicFacts, Recipe
from privacy.plans.registry import RECIPES
from workers.recipes.interface import Piece, Trainer

Work = Callable[[Plan, PublicFacts], tuple[Piece, ...]]


def trainer_and_work(recipe: Recipe) -> tuple[Trainer, Work]:
    """Return a recipe's `train` and `work`, from the module that its entry names."""
    module = import_module(recipe.module)
    return module.train, module.work


TRAINERS: Mapping[str, Trainer] = {name: trainer_and_work(recipe)[0] for name, recipe in RECIPES.items()}
WORK: Mapping[str, Work] = {name: trainer_and_work(recipe)[1] for name, recipe in RECIPES.items()}
# Those that several processes train faster than one (`workers.recipes.ranks`).
TOGETHER: frozenset[Trainer] = frozenset(TRAINERS[name] for name, recipe in RECIPES.items() if recipe.together)
