"""The pieces of a job and what each costs relative to the others, from the plan and what was declared alone.

Numbers are seconds on two cores for images of 28 x 28 grey pixels, measured roughly: only their ratios matter, and only
to how evenly an estimate of the time left falls (`workers.train.progress`).
"""

from __future__ import annotations

from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.interface import Piece
from workers.recipes.registry import WORK

DRAWING = "draw_images"  # for the evaluation, and those that a release shows
EVALUATION = "evaluate"
# How the work of one evaluation is divided, in hundredths: its steps.
EVALUATION_SHARES = {"logistic_regression": 10, "mlp": 10, "cnn": 80}

_SECONDS_OF_EVALUATION = 400.0


def training_work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    """Return the pieces of what a recipe reports."""
    return WORK[plan.recipe](plan, facts)


def drawing_work(plan: Plan, facts: PublicFacts, count: int) -> Piece:
    """Return the piece of drawing so many images from what the plan trains."""
    return Piece(DRAWING, count, count * plan.config.drawing_seconds * facts.size)


def evaluation_work(plan: Plan, facts: PublicFacts, count: int) -> tuple[Piece, ...]:
    """Return the pieces of measuring a generator on so many images, and its warm start alone where it has one."""
    each = (drawing_work(plan, facts, count), Piece(EVALUATION, 100, _SECONDS_OF_EVALUATION * facts.size))
    return each * (2 if plan.config.warm_start else 1)
