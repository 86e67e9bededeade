"""Plan of the DataLens recipe: a warm start and teachers' votes under one budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from obscura.wire.budgets import UNITS
from privacy.accounting.calibration import affordable_releases, stddev_for
from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter
from privacy.plans.datalens.defaults import FOLLOWING_OPTIONS, UNITS_PER_TEACHER_MIN, config_that_follows
from privacy.plans.datalens.moment_votes import MEANS_ROUNDS, MomentRound, moment_rounds
from privacy.plans.datalens.options import (
    IMAGES_MAX,
    PRESETS,
    TEACHER_BYTES,
    TEACHER_PARAMETERS_MAX,
    DataLensConfig,
)
from privacy.plans.moments.plan import (
    LAST_NOTES,
    check_generator,
    check_images,
    moment_notes,
    mu_of,
    unit_notes,
    with_share_above_noise,
)
from privacy.plans.moments.plan import smallest_class as moments_smallest
from privacy.plans.moments.plan import start_releases as moments_needed
from privacy.plans.moments.warm_start import warm_start_noise, warm_start_stages
from privacy.plans.plan import Plan, PublicFacts, Recipe, Stage

_TOLD_FROM_BYTES = 16 * 10**9  # of teachers that more than a small machine must hold
ROUND_IMAGES_MAX = 4096  # the student solves one linear system over the images of a round
VOTES = "votes"  # the stage of votes on images, by their latents or their pixels


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Plan a training from the options of a request; see `config_that_follows` and `plan_datalens`."""

    def config_at(mu: float, declared: PublicFacts) -> DataLensConfig:
        return config_that_follows(options, mu, declared)

    plan = plan_datalens(config_at(mu_of(budget_nano), facts), privacy_filter, budget_nano, facts)
    if not plan.config_of(DataLensConfig).warm_start:
        return plan
    return with_share_above_noise(plan, config_at, privacy_filter, facts)


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
    if config.votes_on == "latents" and iterations // config.rounds > together_max:
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
        notes=_notes(config, facts, images, noise.get(VOTES)),
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
        return moments_needed(plan)
    means = {stage.name: stage.event.count for stage in plan.stages if stage.name.startswith(MEANS_ROUNDS)}
    return means or {VOTES: 1}


def _check_facts(config: DataLensConfig, facts: PublicFacts) -> None:
    check_images(config, facts)
    size = config.vote_size(facts)
    if config.vote_share > 0 and config.top_k > size:
        what = "numbers of a latent" if config.votes_on == "latents" else "pixels"
        raise InvalidParameter("top_k", config.top_k, f"a teacher votes on the {size} {what}, so k is at most {size}")
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
    check_generator(config, facts)


def _check_teachers_memory(config: DataLensConfig, facts: PublicFacts) -> None:
    each = config.parameters_per_teacher(facts)
    if config.teachers * each <= TEACHER_PARAMETERS_MAX:
        return
    fewer = ["teachers", *(["teacher_hidden"] if config.teacher_hidden and config.teacher_network != "linear" else [])]
    fewer += ["components"] if config.votes_on == "latents" and not config.moment_votes else []
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


def _notes(config: DataLensConfig, facts: PublicFacts, images: int, stddev: float | None) -> tuple[str, ...]:
    notes = unit_notes(facts)
    notes += moment_notes(config, facts) if config.warm_start else []
    if images:
        shards = "disjoint shards" if facts.unit == "record" else "shards that share no subject"
        notes.append(f"{config.teachers} teachers on {shards} vote on {images} synthetic images.")
    held = TEACHER_BYTES * config.teachers * config.parameters_per_teacher(facts) if images else 0
    if held > _TOLD_FROM_BYTES:
        notes.append(
            f"The teachers take {held / 10**9:.0f} GB of memory, on a GPU or divided among several. Where there is "
            "less, the training fails before anything is charged."
        )
    if config.warm_start and stddev is not None:
        notes.append(f"Moments cost {config.start_share:.0%} of the budget, votes {config.vote_share:.0%}.")
        loudest = config.teachers * config.top_k / config.latent_size(facts)  # mean vote on a number, were all agreed
        if stddev / math.sqrt(images) > loudest:
            notes.append(
                "So few teachers cannot be heard above the noise: `moments` has the whole budget for its start."
            )
    return (*notes, *LAST_NOTES)


def smallest_class(plan: Plan, facts: PublicFacts) -> int | None:
    """Return the same as for the recipe moments where there is a warm start; else it is not known."""
    return moments_smallest(plan, facts) if plan.config_of(DataLensConfig).warm_start else None


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
    smallest_class=smallest_class,
)
