"""Moments: one Gaussian per class, or a few, over pixels and texture, fitted to releases; nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from models.portable.generator import Generator, GeneratorConfig
from models.portable.textured import RATE, STEPS, new_generator
from privacy.plans.moments.options import MomentsConfig
from privacy.plans.moments.symmetry import ORDER
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.interface import Piece, Run, load_checkpoint, save_checkpoint
from workers.recipes.moments.warm_start import ClassGaussians, noisy_gaussians, put_into, warm_start_work

Keep = Callable[[Mapping[str, Any]], None]


def train(run: Run) -> Generator:
    """Train and return the released generator; see `workers.recipes.interface.Trainer`.

    Privacy:
        Add or remove one unit: a record, or all records of a subject. The releases are those of the plan's stages, each
        charged before its noise is drawn, and the generator is computed from them and public parameters alone. One
        record stands for a subject, so every sensitivity is that of a record (`privacy.plans.moments.warm_start`).

    Raises:
        BudgetExceeded: the budget ended before means and pooled covariance were paid for, or one was paid for and lost
            in a crash before it was kept, more often than the rest of the hold can make up for.
        ContributionUnbounded: a unit could change a release by more than was priced; raised before it is charged.
    """
    config = run.plan.config_of(MomentsConfig)
    generator = empty_generator(config, run.facts)
    started(run, generator, lambda released, keep: noisy_gaussians(run, config, released, keep))
    return generator.eval()


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    """Return the pieces of a training."""
    return (warm_start_work(plan, facts),)


def empty_generator(config: MomentsConfig, facts: PublicFacts) -> Generator:
    """Return a generator of zeros for what the moments will be."""
    sizes = (len(facts.classes), facts.channels, facts.height, facts.width, config.latent_size(facts))
    clusters = config.clusters * ORDER[config.symmetry] if config.clusters > 1 else 1  # each has twins
    return new_generator(GeneratorConfig(*sizes, features=0, clusters=clusters), config.texture, STEPS, RATE)


def started(run: Run, generator: Generator, fit: Callable[[Mapping[str, Any], Keep], ClassGaussians]) -> dict[str, Any]:
    """Put into a generator what it starts from, once: later attempts find it in their checkpoint.

    Args:
        run: whose checkpoints they are.
        generator: gets what was released, or what later steps had made of it by the last checkpoint.
        fit: makes the releases, from what an earlier attempt has kept of them, and is given what keeps each.

    Returns:
        The state of the last checkpoint; what came after the start goes on from it.

    Raises:
        BudgetExceeded: from `fit`.
    """
    saved = load_checkpoint(run.checkpoints)
    state = {} if saved is None else saved.state
    if "generator" in state:
        generator.load_state_dict(state["generator"])
        return state

    def keep(reached: Mapping[str, Any]) -> None:
        save_checkpoint(run.checkpoints, step=0, state={"start": dict(reached)})

    put_into(generator, run.on_first(lambda: fit(state.get("start", {}), keep)))  # seconds of work
    save_checkpoint(run.checkpoints, step=0, state={"generator": generator.state_dict()})
    return {}
