"""Plan of the DataLens recipe: a warm start and teachers' votes under one budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from models.sizes import TEXTURE_CELL, texture_size
from obscura.wire.budgets import UNITS
from obscura.wire.wording import show_epsilon
from privacy.accounting.calibration import affordable_releases, stddev_for
from privacy.accounting.filter import NANO, Filter
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.errors import InvalidParameter
from privacy.plans.datalens.defaults import FOLLOWING_OPTIONS, UNITS_PER_TEACHER_MIN, config_that_follows
from privacy.plans.datalens.moment_votes import MEANS_ROUNDS, MomentRound, moment_rounds
from privacy.plans.datalens.options import (
    IMAGES_MAX,
    PRESETS,
    TEACHER_PARAMETERS_MAX,
    TEXTURE_MAX,
    DataLensConfig,
    suits_texture,
)
from privacy.plans.moments.detail import share_above_noise
from privacy.plans.moments.warm_start import (
    MEANS,
    POOLED,
    QUANTISATION,
    warm_start_event,
    warm_start_noise,
    warm_start_stages,
)
from privacy.plans.plan import Plan, PublicFacts, Recipe, Stage

ROUND_IMAGES_MAX = 4096  # the student solves one linear system over the images of a round
VISIBLE = 0.4  # of what sets classes apart must be above the noise; below, a plan warns (docs/research/previews.md)
DECLARED = {
    "mirror": "You declare that an image is as likely as its mirror image.",
    "square": "You declare that an image is as likely in all eight symmetries of a square: turned, and mirrored.",
}
VOTES = "votes"  # the stage of votes on latents


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Plan a training from the options of a request; see `config_that_follows` and `plan_datalens`."""
    mu = math.sqrt(max(0, budget_nano) / NANO)  # of one Gaussian release that takes the whole budget
    config = config_that_follows(options, mu, facts)
    plan = plan_datalens(config, privacy_filter, budget_nano, facts)
    if not config.warm_start:
        return plan
    share = share_above_noise(config, facts, plan.noise_stddev[MEANS] / QUANTISATION)
    plan = dataclasses.replace(plan, facts={**plan.facts, "share_above_noise": round(share, 3)})
    if share >= VISIBLE:
        return plan
    return dataclasses.replace(plan, notes=(_drowned(options, plan, privacy_filter, facts), *plan.notes))


def _drowned(options: Mapping[str, Any], plan: Plan, privacy_filter: Filter, facts: PublicFacts) -> str:
    """Return a warning that noise drowns the warm start, with the smallest epsilon or number of units that mends it.

    It follows from the public prior of `privacy.plans.moments.detail`, not from any image.
    """
    sensitivity = warm_start_event(MEANS, 1e9).sensitivity / QUANTISATION

    def visible(budget_nano: int, declared: PublicFacts) -> bool:
        config = config_that_follows(options, math.sqrt(budget_nano / NANO), declared)
        share = (1.0 - config.vote_share) * config.mean_share  # a forecast: the plan's own noise is calibrated exactly
        noise = sensitivity / math.sqrt(share * budget_nano / NANO)
        return share_above_noise(config, declared, noise) >= VISIBLE

    mends = []
    more = _smallest(lambda factor: visible(round(plan.budget_nano * factor), facts))
    if more is not None:
        epsilon = gaussian_epsilon(math.sqrt(plan.budget_nano * more / NANO), privacy_filter.delta)
        mends.append(f"epsilon {show_epsilon(epsilon, up=True)}")
    more = _smallest(lambda factor: visible(plan.budget_nano, _times(facts, factor)))
    if more is not None:
        mends.append(f"{_times(facts, more).units_declared:,} {facts.unit}s")
    says = "Noise drowns most of what sets the classes apart: expect static, or blurs that look alike."
    return f"{says} From about {' or '.join(mends)} on it would not." if mends else says


def _smallest(holds: Callable[[float], bool]) -> float | None:
    """Return the smallest factor, to a tenth, that suffices; None where none up to a million does."""
    return next((1.1**power for power in range(1, 146) if holds(1.1**power)), None)


def _times(facts: PublicFacts, factor: float) -> PublicFacts:
    subjects = None if facts.subjects_declared is None else math.ceil(facts.subjects_declared * factor)
    records = math.ceil(facts.records_declared * factor)
    return dataclasses.replace(facts, records_declared=records, subjects_declared=subjects)


def plan_datalens(config: DataLensConfig, privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Turn a budget into noise for the warm start and into a number of votes, or their noise.

    Args:
        config: public parameters.
        privacy_filter: of the account.
        budget_nano: what the job may cost at most.
        facts: what the owner declared.

    Raises:
        InvalidParameter: k > d, more teachers than the declared units support or than fit in memory, or a budget that
            buys nothing.
    """
    _check_facts(config, facts)
    vote_nano = int(budget_nano * config.vote_share) if config.has_start else budget_nano
    noise: dict[str, float] = {}
    rounds: tuple[MomentRound, ...] = ()
    if config.warm_start:
        noise |= warm_start_noise(config, budget_nano - vote_nano)
    elif config.moment_votes:
        rounds = moment_rounds(config.moments(facts), budget_nano - vote_nano, len(facts.classes))
        noise |= {current.name: current.aggregation.stddev for current in rounds}
    iterations = 0
    if config.vote_share > 0:
        noise[VOTES], iterations = _vote_noise(config, vote_nano, facts)
    images = iterations * config.images_per_iteration
    together_max = ROUND_IMAGES_MAX // config.images_per_iteration  # iterations whose votes are fitted together
    if iterations // config.rounds > together_max:
        raise InvalidParameter(
            "rounds",
            config.rounds,
            f"votes on {images} images are fitted at most {ROUND_IMAGES_MAX} at a time: ask for at least "
            f"{iterations // (together_max + 1) + 1} rounds",
        )
    stages = warm_start_stages(noise, privacy_filter)
    events = {current.name: current.event for current in rounds}
    if VOTES in noise:
        events[VOTES] = config.topagg(facts, noise[VOTES]).event(images)
    stages += [Stage(name, event, privacy_filter.price_nano(event), noise[name]) for name, event in events.items()]
    images += sum(current.images for current in rounds)
    return Plan(
        recipe="datalens",
        config=config,
        stages=tuple(stages),
        budget_nano=budget_nano,
        notes=_notes(config, facts, images),
        facts={
            "protects": facts.protects,
            "units_declared": facts.units_declared,
            **_votes_in_words(config, images, iterations),
            "warm_start": config.warm_start,
            "noise_stddev": noise,  # parameter of the discrete Gaussian, by stage
        },
    )


def _votes_in_words(config: DataLensConfig, images: int, iterations: int) -> dict[str, Any]:
    """Return what a plan says of its votes, of any kind; nothing where no teacher is trained."""
    if not images:
        return {}
    said: dict[str, Any] = {"teachers": config.teachers, "images_to_aggregate": images}
    said |= {"iterations": iterations} if iterations else {}
    return said | {"vote_share": config.vote_share if config.warm_start else 1.0}  # of the budget


def planned_iterations(plan: Plan) -> int:
    """Return how many times the teachers vote on images; 0 for a plan without such votes."""
    votes = plan.stage(VOTES)
    return 0 if votes is None else votes.event.count // plan.config_of(DataLensConfig).images_per_iteration


def start_releases(plan: Plan) -> Mapping[str, int]:
    """Return the releases, by stage, without which there is no generator worth publishing."""
    if plan.config_of(DataLensConfig).warm_start:
        # Where the classes' own covariances are missing, the pooled one stands in.
        return {name: 1 for name in (MEANS, POOLED) if plan.stage(name) is not None}
    means = {stage.name: stage.event.count for stage in plan.stages if stage.name.startswith(MEANS_ROUNDS)}
    return means or {VOTES: 1}


def _check_facts(config: DataLensConfig, facts: PublicFacts) -> None:
    if config.texture and not suits_texture(facts):
        raise InvalidParameter(
            "texture",
            True,
            f"it needs sides that are multiples of {TEXTURE_CELL} and at most {TEXTURE_MAX} numbers; images of "
            f"{facts.width} x {facts.height} have {texture_size(facts.height, facts.width):,}",
        )
    if config.symmetry == "square" and facts.height != facts.width:
        raise InvalidParameter(
            "symmetry",
            config.symmetry,
            f"its rows and columns can be swapped: images of {facts.width} x {facts.height} have other sides; declare "
            "mirror, or none",
        )
    latent = config.latent_size(facts)
    if config.vote_share > 0 and config.top_k > latent:
        raise InvalidParameter(
            "top_k", config.top_k, f"a teacher votes on the {latent} numbers of a latent, so k is at most {latent}"
        )
    teachers_max = facts.units_declared // UNITS_PER_TEACHER_MIN
    if (config.vote_share > 0 or config.moment_votes) and config.teachers > teachers_max:
        raise InvalidParameter(
            "teachers",
            config.teachers,
            f"{facts.units_declared} declared {facts.unit}s support at most {teachers_max} teachers "
            f"({UNITS_PER_TEACHER_MIN} {facts.unit}s each)",
        )
    if config.vote_share > 0:
        _check_teachers_memory(config, facts)


def _check_teachers_memory(config: DataLensConfig, facts: PublicFacts) -> None:
    each = config.parameters_per_teacher(facts)
    if config.teachers * each <= TEACHER_PARAMETERS_MAX:
        return
    fewer = ["teachers", *(["teacher_hidden"] if config.teacher_hidden else [])]
    fewer += [] if config.moment_votes else ["components"]
    raise InvalidParameter(
        "teachers",
        config.teachers,
        f"with {each:,} parameters each they have {config.teachers * each:,} together, above "
        f"{TEACHER_PARAMETERS_MAX:,}: lower {' or '.join(fewer)}; of this size "
        f"{TEACHER_PARAMETERS_MAX // each:,} teachers would fit",
    )


def _vote_noise(config: DataLensConfig, budget_nano: int, facts: PublicFacts) -> tuple[float, int]:
    """Return sigma and the number of iterations."""
    m = config.images_per_iteration
    if config.images is not None:
        iterations = max(1, config.images // m)
        sensitivity = config.topagg(facts, 1e6).sensitivity
        return stddev_for(sensitivity, budget_nano, iterations * m, discrete=True), iterations
    if config.stddev is None:
        raise InvalidParameter("stddev", None, "give either the number of images or the noise stddev")
    single = config.topagg(facts, config.stddev).event(1)
    iterations = min(affordable_releases(single, budget_nano), IMAGES_MAX) // m
    if iterations < 1:
        raise InvalidParameter(
            "stddev", config.stddev, f"the budget does not pay for {m} images at this noise: add noise or budget"
        )
    return config.stddev, iterations


def _notes(config: DataLensConfig, facts: PublicFacts, images: int) -> tuple[str, ...]:
    notes = []
    if facts.unit == "subject":
        notes.append("The guarantee hides all records of one subject, however many there are.")
    if config.warm_start:
        what = "means and covariances" if config.pooled_share + config.class_share > 0 else "means"
        what += " of pixels and texture" if config.texture else ""
        notes.append(f"Noisy class {what} are released first; the generator starts from them.")
        if config.symmetry != "none":
            notes.append(f"{DECLARED[config.symmetry]} If that is false, images are worse, and no less private.")
        if config.clusters > 1:
            notes.append(f"Each class is a mixture of {config.clusters} clusters, found by noisy k-means.")
        if facts.unit == "subject":
            notes.append(
                "They are taken over one record of each subject, so that nobody adds more than one record does."
            )
    if images:
        shards = "disjoint shards" if facts.unit == "record" else "shards that share no subject"
        notes.append(f"{config.teachers} teachers on {shards} vote on {images} synthetic images.")
    notes.append("Labels of synthetic images are uniform over the declared classes.")
    notes.append("If a classifier is all that is wanted, dp_classifier buys a better one (docs/choosing.md).")
    return tuple(notes)


RECIPE = Recipe(
    name="datalens",
    title="DataLens",
    publishes="generator",
    releases="A generator of labelled images; drawing from it is free.",
    config=DataLensConfig,
    plan=plan_from_options,
    units=frozenset(UNITS),
    presets=PRESETS,
    follows=FOLLOWING_OPTIONS,
    start=start_releases,
)
