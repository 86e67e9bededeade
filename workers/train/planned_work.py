"""The pieces of a job and what each costs relative to the others, from the plan and what was declared alone.

Numbers are seconds on two cores for images of 28 x 28 grey pixels, measured roughly: only their ratios matter, and only
to how evenly an estimate of the time left falls (`workers.train.progress`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from privacy.plans.class_histogram import COUNTS
from privacy.plans.datalens import VOTES
from privacy.plans.datalens_config import DataLensConfig
from privacy.plans.dp_diffusion import CENTRAL
from privacy.plans.moment_votes import planned_rounds
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import STEPS, poisson_event
from workers.recipes.datalens import WARM_START
from workers.recipes.dp_classifier import FEATURES, feature_blocks
from workers.recipes.dp_diffusion import WARM_UP, WARM_UP_BATCH
from workers.train.progress import Piece

DRAWING = "draw_images"  # for the evaluation, and those that a release shows
EVALUATION = "evaluate"
# How the work of one evaluation is divided, in hundredths: its steps.
EVALUATION_SHARES = {"logistic_regression": 10, "mlp": 10, "cnn": 80}

_SECONDS_OF_STEP = {  # of one row of a private step: forward, backward and clipping
    "dp_classifier": 5e-4,
    "dp_diffusion": 3e-3,
    "dpgan": 3e-3,
}
_HEAD = 2e-5  # in their place, for a linear head on fixed features
_SECONDS_OF_FEATURES = 1e-3  # fixed features of one image
_SECONDS_OF_IMAGE = {"datalens": 8e-4, "dpgan": 4e-4, "dp_diffusion": 5e-3}  # drawn; diffusion: in each of its steps
_SECONDS_OF_EVALUATION = 400.0


def training_work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    """Return the pieces of what a recipe reports, none where its plan has none of them."""
    return _TRAINING[plan.recipe](plan, facts) if plan.recipe in _TRAINING else ()


def drawing_work(plan: Plan, facts: PublicFacts, count: int) -> Piece:
    """Return the piece of drawing so many images from what the plan trains."""
    seconds = _SECONDS_OF_IMAGE.get(plan.recipe, 1e-3) * int(plan.config.get("sampling_steps", 1))
    return Piece(DRAWING, count, count * seconds * _size(facts))


def evaluation_work(plan: Plan, facts: PublicFacts, count: int) -> tuple[Piece, ...]:
    """Return the pieces of measuring a generator on so many images, and its warm start alone where it has one."""
    each = (drawing_work(plan, facts, count), Piece(EVALUATION, 100, _SECONDS_OF_EVALUATION * _size(facts)))
    return each * (2 if plan.config.get("warm_start") is True else 1)


def _size(facts: PublicFacts) -> float:
    return facts.pixels / 784


def _histogram(_plan: Plan, _facts: PublicFacts) -> tuple[Piece, ...]:
    return (Piece(COUNTS, 1, 1.0),)


def _datalens(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    config = DataLensConfig(**plan.config)
    pieces = []
    if config.warm_start:
        pieces.append(Piece(WARM_START, 3, 4e-5 * facts.records_declared * _size(facts)))
    elif config.moment_votes:
        rounds = len(planned_rounds(config.moments(facts), len(facts.classes), plan.facts["noise_stddev"]))
        pieces.append(Piece("votes", rounds, 1e-4 * facts.records_declared * _size(facts)))
    if plan.stage(VOTES) is not None:
        iterations = plan.facts["iterations"]
        votes = config.teachers * config.images_per_iteration * (1 + config.teacher_steps)
        pieces.append(Piece(VOTES, iterations, 2e-6 * votes * iterations))
    return tuple(pieces)


def _steps(plan: Plan, facts: PublicFacts, seconds: float, rows_each: float = 1) -> Piece:
    event = poisson_event(plan)
    rows = event.count * event.sampling_probability * facts.units_declared * rows_each
    return Piece(STEPS, event.count, seconds * rows * _size(facts))


def _classifier(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    architecture: str = plan.config["architecture"]
    if not (architecture.startswith("scatter") or architecture == "pretrained_linear"):
        return (_steps(plan, facts, _SECONDS_OF_STEP["dp_classifier"]),)
    seconds = _SECONDS_OF_FEATURES * facts.records_declared * _size(facts)
    head = _SECONDS_OF_STEP["dp_classifier"] if architecture == "scatter_cnn" else _HEAD
    return Piece(FEATURES, feature_blocks(facts), seconds), _steps(plan, facts, head)


def _diffusion(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    each = _SECONDS_OF_STEP["dp_diffusion"]
    pieces = [_steps(plan, facts, each, plan.config["multiplicity"])]
    if plan.stage(CENTRAL) is not None:
        central, steps = poisson_event(plan, CENTRAL), plan.config["central_steps"]
        drawn = central.count * central.sampling_probability * facts.units_declared
        warm_up = Piece(WARM_UP, steps, 0.5 * each * WARM_UP_BATCH * steps * _size(facts))
        pieces[:0] = [Piece(CENTRAL, central.count, 1e-5 * drawn * _size(facts)), warm_up]
    return tuple(pieces)


def _gan(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    return (_steps(plan, facts, _SECONDS_OF_STEP["dpgan"], 2),)  # generated images join those that were drawn


_TRAINING: Mapping[str, Callable[[Plan, PublicFacts], tuple[Piece, ...]]] = {
    "class_histogram": _histogram,
    "datalens": _datalens,
    "dp_classifier": _classifier,
    "dp_diffusion": _diffusion,
    "dpgan": _gan,
}
