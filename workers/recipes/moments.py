"""Moments: one or a few Gaussians per class over pixels and texture, fitted to noisy releases.

With the option `guide`, a private classifier is trained on scattering coefficients afterwards and moves the generated
images.
"""

from __future__ import annotations

import dataclasses

from models.portable.generator import Generator, GeneratorConfig
from models.portable.guided import GuidedConfig, GuidedGenerator
from models.portable.textured import new_generator
from models.private_classifier import ClassifierConfig, PrivateClassifier
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.symmetry import ORDER
from workers.recipes.dp_classifier import classifier_task, classifier_work
from workers.recipes.interface import Piece, Run, load_checkpoint, save_checkpoint
from workers.recipes.private_steps import planned_steps
from workers.recipes.warm_start import noisy_gaussians, put_into, warm_start_work


def train(run: Run) -> Generator | GuidedGenerator:
    """Train and return the released generator.

    Raise BudgetExceeded if the budget ends before means and pooled covariance are paid for. A release lost in a crash
    is paid for again, as long as the rest of the hold allows it. The generator has no guide if the guide's first step
    cannot be paid for.

    Privacy:
        Adjacency: add or remove one unit (a record, or all records of a subject). The moments are the plan's stages of
        the warm start, each charged before its noise is drawn. One record represents a subject, so every sensitivity is
        that of a record (`privacy.plans.warm_start`). The guide's steps are those of `workers.recipes.dp_classifier`.
        The generator is computed from these releases and public parameters alone.
    """
    config, facts = run.plan.config_of(MomentsConfig), run.facts
    moments = empty_generator(config, facts)
    state = load_checkpoint(run.checkpoints)
    if "generator" in state:
        moments.load_state_dict(state["generator"])
    else:
        put_into(moments, run.on_first(lambda: noisy_gaussians(run, config, state.get("start", {}))))
        save_checkpoint(run.checkpoints, {"generator": moments.state_dict()})
    if not config.guide:
        return moments.eval()

    guide, released = config.classifier, moments.state_dict()
    shape = ClassifierConfig(guide.architecture, facts.classes, facts.channels, facts.height, facts.width)
    classifier = PrivateClassifier(shape, guide.initial_seed).to(run.device)
    steps = planned_steps(run, guide, classifier_task(run, guide, classifier))
    if "steps" in state:
        steps.restore(state["steps"])
    steps.make(lambda: save_checkpoint(run.checkpoints, {"generator": released, "steps": steps.checkpoint_state()}))
    generator = GuidedGenerator(
        GuidedConfig(
            **dataclasses.asdict(moments.config),
            textured=config.texture,
            guide_steps=config.guide_steps if steps.done else 0,
            guide_logit=config.guide_logit,
        )
    )
    generator.first.load_state_dict(released)
    generator.guide.load_state_dict(classifier.cpu().head.state_dict())
    return generator.eval()


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    config = plan.config_of(MomentsConfig)
    guide = classifier_work(plan, config.classifier.architecture, facts) if config.guide else ()
    return warm_start_work(plan, facts), *guide


def empty_generator(config: MomentsConfig, facts: PublicFacts) -> Generator:
    """Return a generator whose buffers for means and factors are zero."""
    sizes = (len(facts.classes), facts.channels, facts.height, facts.width, config.latent_size(facts))
    clusters = config.clusters * ORDER[config.symmetry] if config.clusters > 1 else 1  # each has its twins
    return new_generator(GeneratorConfig(*sizes, clusters=clusters), config.texture)
