"""Plan of the moments recipe: class means and covariances with noise, of pixels and texture; no teacher, no network.

What recipes that start from class moments say of them in a plan stands here as well.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from models.sizes import TEXTURE_CELL, texture_size
from obscura.wire.budgets import UNITS
from obscura.wire.wording import show_epsilon
from privacy.accounting.filter import NANO, Filter
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.errors import InvalidParameter
from privacy.plans.moments.appearance import SEEN, what_people_see
from privacy.plans.moments.defaults import FOLLOWING_OPTIONS, config_that_follows
from privacy.plans.moments.detail import coefficients_of, share_above_noise, signal, smallest_above_noise
from privacy.plans.moments.options import TEXTURE_MAX, MomentsConfig, suits_texture
from privacy.plans.moments.warm_start import (
    MEANS,
    POOLED,
    QUANTISATION,
    warm_start_event,
    warm_start_noise,
    warm_start_stages,
)
from privacy.plans.plan import Plan, PublicFacts, Recipe

DECLARED = {
    "mirror": "You declare that an image is as likely as its mirror image.",
    "square": "You declare that an image is as likely in all eight symmetries of a square: turned, and mirrored.",
}
COARSE_PIXELS = 6.0  # a plan tells how wide the finest detail is from here on
GENERATOR_NUMBERS_MAX = 2**28  # 1 GiB in a release, and several times that while it is made
VISIBLE = 0.4  # of what sets classes apart must be above the noise; below, a plan warns (measured in docs/research)
LAST_NOTES = (
    "Labels of synthetic images are uniform over the declared classes.",
    "If a classifier is all that is wanted, dp_classifier buys a better one (docs/choosing.md).",
)


def mu_of(budget_nano: float) -> float:
    """Return mu of one Gaussian release that takes a whole budget."""
    return math.sqrt(max(0.0, budget_nano) / NANO)


def plan_from_options(options: Mapping[str, Any], privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Plan a training from the options of a request; see `config_that_follows` and `plan_moments`."""

    def config_at(mu: float, declared: PublicFacts) -> MomentsConfig:
        return config_that_follows(options, mu, declared)

    plan = plan_moments(config_at(mu_of(budget_nano), facts), privacy_filter, budget_nano, facts)
    return with_share_above_noise(plan, config_at, privacy_filter, facts)


def plan_moments(config: MomentsConfig, privacy_filter: Filter, budget_nano: int, facts: PublicFacts) -> Plan:
    """Turn a budget into noise for each of the class moments.

    Args:
        config: public parameters.
        privacy_filter: of the account.
        budget_nano: what the job may cost at most.
        facts: what the owner declared.

    Raises:
        InvalidParameter: images that have no texture, or a budget that buys nothing.
    """
    check_images(config, facts)
    check_generator(config, facts)
    noise = warm_start_noise(config, budget_nano)
    return Plan(
        recipe="moments",
        config=config,
        stages=tuple(warm_start_stages(noise, privacy_filter)),
        budget_nano=budget_nano,
        notes=(*unit_notes(facts), *moment_notes(config, facts), *LAST_NOTES),
        facts={"protects": facts.protects, "units_declared": facts.units_declared, "noise_stddev": noise},
    )


def check_images(config: MomentsConfig, facts: PublicFacts) -> None:
    """Refuse texture of images that are not whole cells, or too many, and symmetries of a square of others.

    Raises:
        InvalidParameter: they are.
    """
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
            f"images of {facts.width} x {facts.height} are no squares, of which rows and columns could be swapped: "
            "declare mirror, or none",
        )


def check_generator(config: MomentsConfig, facts: PublicFacts) -> None:
    """Refuse generators that are too large.

    Raises:
        InvalidParameter: it is.
    """
    numbers = len(facts.classes) * facts.pixels * config.latent_size(facts)
    if numbers > GENERATOR_NUMBERS_MAX:
        raise InvalidParameter(
            "components",
            config.components,
            f"{len(facts.classes)} classes of {facts.width} x {facts.height} pixels in {facts.channels} channels make "
            f"a generator of {numbers:,} numbers, and it may have {GENERATOR_NUMBERS_MAX:,}: declare smaller images, "
            f"or ask for at most {GENERATOR_NUMBERS_MAX // (len(facts.classes) * facts.pixels)} components",
        )


def unit_notes(facts: PublicFacts) -> list[str]:
    """Return what a plan says of whom it protects, where that is not one record."""
    return (
        ["The guarantee hides all records of one subject, however many there are."] if facts.unit == "subject" else []
    )


def moment_notes(config: MomentsConfig, facts: PublicFacts) -> list[str]:
    """Return what a plan says of class moments."""
    what = "means and covariances" if config.pooled_share + config.class_share > 0 else "means"
    what += " of pixels and texture" if config.texture else ""
    notes = [f"Noisy class {what} are released first; the generator starts from them."]
    if config.symmetry != "none":
        notes.append(f"{DECLARED[config.symmetry]} If that is false, images are worse, and no less private.")
    if config.clusters > 1:
        notes.append(f"Each class is a mixture of {config.clusters} clusters, found by noisy k-means.")
    if facts.unit == "subject":
        notes.append("They are taken over one record of each subject, so that nobody adds more than one record does.")
    return notes


def finest_detail(config: MomentsConfig, facts: PublicFacts) -> float:
    """Return how many pixels wide the finest detail is that is released: from light to dark in the shortest wave."""
    seen = coefficients_of(config, facts)
    found = (facts.height / max(1, seen.row.max()), facts.width / max(1, seen.column.max()))
    return float(min(found))


def detail_notes(config: MomentsConfig, facts: PublicFacts) -> tuple[str, ...]:
    """Return what a plan says of detail where the images are larger than what is released of them."""
    pixels = finest_detail(config, facts)
    if config.texture or pixels < COARSE_PIXELS:
        return ()
    part = COARSE_PIXELS / pixels / 2
    width, height = (8 * math.ceil(side * part / 8) for side in (facts.width, facts.height))
    return (
        f"The finest detail that is released is about {pixels:.0f} pixels wide at this epsilon, whatever the images "
        f"show. Images of {width} x {height} pixels would show as much, and train faster.",
    )


def with_share_above_noise(
    plan: Plan,
    config_at: Callable[[float, PublicFacts], MomentsConfig],
    privacy_filter: Filter,
    facts: PublicFacts,
) -> Plan:
    """Tell how much of what sets classes apart survives the noise, and what people will see; warn where that is little.

    Args:
        plan: with class moments.
        config_at: what the same request would be at another mu, or of other facts.
        privacy_filter: of the account.
        facts: what the owner declared.
    """
    config = plan.config_of(MomentsConfig)
    share = share_above_noise(config, facts, plan.noise_stddev[MEANS] / QUANTISATION)
    plan = dataclasses.replace(plan, facts={**plan.facts, "share_above_noise": round(share, 3)})
    if share >= VISIBLE:
        plan = dataclasses.replace(plan, notes=(*detail_notes(config, facts), *plan.notes))
        seen = what_people_see(facts, signal(facts, mu_of(plan.budget_nano * config.start_share)))
        return dataclasses.replace(plan, facts={**plan.facts, "what_people_see": seen}, notes=(SEEN[seen], *plan.notes))
    return dataclasses.replace(plan, notes=(_drowned(config_at, plan, privacy_filter, facts), *plan.notes))


def smallest_class(plan: Plan, facts: PublicFacts) -> int | None:
    """Return how many units a class must have for noise not to drown it; None where no number suffices.

    A class of n units has a mean whose noise is that of the sum over n, so what survives of it grows with n alone, and
    the number is where `share_above_noise` reaches VISIBLE. docs/research/uneven_classes.md has what was measured.
    """
    config, stddev = plan.config_of(MomentsConfig), plan.noise_stddev[MEANS] / QUANTISATION
    return smallest_above_noise(config, facts, stddev, VISIBLE)


def _drowned(
    config_at: Callable[[float, PublicFacts], MomentsConfig], plan: Plan, privacy_filter: Filter, facts: PublicFacts
) -> str:
    """Return a warning that noise drowns the warm start, with the smallest epsilon or number of units that mends it.

    It follows from the public prior of `privacy.plans.moments.detail`, not from any image.
    """
    sensitivity = warm_start_event(MEANS, 1e9).sensitivity / QUANTISATION

    def visible(budget_nano: int, declared: PublicFacts) -> bool:
        config = config_at(mu_of(budget_nano), declared)
        share = config.start_share * config.mean_share  # a forecast: the plan's own noise is calibrated exactly
        noise = sensitivity / math.sqrt(share * budget_nano / NANO)
        return share_above_noise(config, declared, noise) >= VISIBLE

    mends = []
    more = _smallest(lambda factor: visible(round(plan.budget_nano * factor), facts))
    if more is not None:
        epsilon = gaussian_epsilon(mu_of(plan.budget_nano * more), privacy_filter.delta)
        mends.append(f"epsilon {show_epsilon(epsilon, up=True)}")
    more = _smallest(lambda factor: visible(plan.budget_nano, _times(facts, factor)))
    if more is not None:
        mends.append(f"{_times(facts, more).units_declared:,} {facts.unit}s")
    says = "Noise drowns most of what sets the classes apart: expect static, or blurs that look alike."
    return f"{says} From about {' or '.join(mends)} on it would not." if mends else says


def _smallest(holds: Callable[[float], bool]) -> float | None:
    """Return the smallest factor, to a tenth, that suffices as all larger ones do; None where no million does."""
    factors = [1.1**power for power in range(1, 146)]
    found = bisect.bisect_left(factors, True, key=holds)
    return factors[found] if found < len(factors) else None


def _times(facts: PublicFacts, factor: float) -> PublicFacts:
    subjects = None if facts.subjects_declared is None else math.ceil(facts.subjects_declared * factor)
    records = math.ceil(facts.records_declared * factor)
    return dataclasses.replace(facts, records_declared=records, subjects_declared=subjects)


def start_releases(plan: Plan) -> Mapping[str, int]:
    """Return the releases, by stage, without which there is no generator worth publishing.

    Where the classes' own covariances are missing, the pooled one stands in.
    """
    return {name: 1 for name in (MEANS, POOLED) if plan.stage(name) is not None}


RECIPE = Recipe(
    name="moments",
    title="Class moments",
    publishes="generator",
    releases="A generator of labelled images; drawing from it is free.",
    config=MomentsConfig,
    plan=plan_from_options,
    units=frozenset(UNITS),
    follows=FOLLOWING_OPTIONS,
    start=start_releases,
    smallest_class=smallest_class,
)
