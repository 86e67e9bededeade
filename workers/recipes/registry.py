"""The training loops, found by name: `workers.recipes.NAME.loop` has `train(run)` and `work(plan, facts)`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES
from workers.recipes.interface import Piece, Trainer


def trainer_of(recipe: str) -> Trainer:
    """Return the function that trains a recipe."""
    trainer: Trainer = import_module(f"workers.recipes.{recipe}").train
    return trainer


def work_of(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    """Return the pieces of a plan's training, from which the time left is estimated."""
    pieces: tuple[Piece, ...] = import_module(f"workers.recipes.{plan.recipe}").work(plan, facts)
    return pieces


TRAINERS: Mapping[str, Trainer] = {name: trainer_of(name) for name in RECIPES}
