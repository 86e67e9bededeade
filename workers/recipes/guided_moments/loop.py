"""Guided moments: class moments, and a private classifier that moves what they draw.

First the moments, as `workers.recipes.moments` makes them; then the classifier's private steps, on scattering
coefficients that are computed once. All that is drawn afterwards is computed from these releases.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from models.portable.guided import GuidedConfig, GuidedGenerator
from models.private_classifier import ClassifierConfig, PrivateClassifier
from privacy.plans.guided_moments.plan import GuidedMomentsConfig
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.dp_classifier.loop import classifier_task, classifier_work
from workers.recipes.interface import Piece, Run, save_checkpoint
from workers.recipes.moments.loop import empty_generator, started
from workers.recipes.moments.warm_start import noisy_gaussians, warm_start_work
from workers.recipes.private_steps import planned_steps


def train(run: Run) -> GuidedGenerator:
    """Train and return the released generator; see `workers.recipes.interface.Trainer`.

    Privacy:
        Add or remove one unit. The moments are released as in `workers.recipes.moments.loop`, the classifier's steps as
        in `workers.recipes.dp_classifier.loop`; images are moved by what is released alone.

    Raises:
        BudgetExceeded: the moments could not be paid for. Where it is the guide's first step that cannot be paid for,
            the generator has no guide.
        ContributionUnbounded: a unit could change a release by more than was priced; raised before it is charged.
    """
    config, facts = run.plan.config_of(GuidedMomentsConfig), run.facts
    first = empty_generator(config, facts)
    state = started(run, first, lambda released, keep: noisy_gaussians(run, config, released, keep))
    shape = ClassifierConfig(config.guide.architecture, facts.classes, facts.channels, facts.height, facts.width)
    classifier = PrivateClassifier(shape, config.guide.initial_seed).to(run.device)
    guides = _train_guide(run, classifier, state, {"generator": first.state_dict()})
    generator = GuidedGenerator(
        GuidedConfig(
            **dataclasses.asdict(first.config),
            textured=config.texture,
            guide_steps=config.guide_steps if guides else 0,
            guide_logit=config.guide_logit,
        )
    )
    generator.first.load_state_dict(first.state_dict())
    generator.guide.load_state_dict(classifier.cpu().head.state_dict())
    return generator.eval()


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    """Return the pieces of a training."""
    guide = plan.config_of(GuidedMomentsConfig).guide
    return warm_start_work(plan, facts), *classifier_work(plan, guide.architecture, facts)


def _train_guide(run: Run, classifier: PrivateClassifier, state: dict[str, Any], done: dict[str, Any]) -> bool:
    """Train the classifier, and return whether it has learned anything.

    Args:
        run: the training.
        classifier: is given its weights.
        state: of an earlier attempt's last checkpoint.
        done: what stands in every checkpoint.
    """
    config = run.plan.config_of(GuidedMomentsConfig).guide
    steps = planned_steps(run, config, classifier_task(run, config, classifier))
    if "steps" in state:
        steps.restore(state["steps"])

    def checkpoint() -> None:
        save_checkpoint(run.checkpoints, step=steps.state.step, state={**done, "steps": steps.checkpoint_state()})

    steps.make(checkpoint)
    return steps.state.step > 0
