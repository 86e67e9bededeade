"""The training loops, found by name: `workers.recipes.NAME` has `train(run)` and `work(plan, facts)`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES
from workers.recipes.interface import Piece, Trainer


def work_of(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    """Return the pieces of a plan's training, from which the time left is estimated."""
    pieces: tuple[Piece, ...] = import_module(f"workers.recipes.{plan.recipe}").work(plan, facts)
    return pieces


TRAINERS: Mapping[str, Trainer] = {name: import_module(f"workers.recipes.{name}").train for name in RECIPES}
