"""The recipes a runner can train, by the name that plans and jobs use: the modules that `privacy.plans` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES
from workers.recipes.interface import Piece, Trainer

_MODULES = {name: import_module(recipe.module) for name, recipe in RECIPES.items()}

TRAINERS: Mapping[str, Trainer] = {name: module.train for name, module in _MODULES.items()}
WORK: Mapping[str, Callable[[Plan, PublicFacts], tuple[Piece, ...]]] = {
    name: module.work for name, module in _MODULES.items()
}

# Those that several processes train faster than one (`workers.recipes.ranks`).
TOGETHER: frozenset[Trainer] = frozenset(TRAINERS[name] for name, recipe in RECIPES.items() if recipe.together)
