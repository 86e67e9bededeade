"""Plans of moments: they fit their budget, report what will be visible, and choose defaults; given values win."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans.datalens import DataLensConfig
from privacy.plans.moments import SEEN, MomentsConfig, config_that_follows, plan_moments
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES, build_plan
from privacy.plans.warm_start import BY_CLASS, CLUSTERS, LUMA_CHROMA, MEANS, POOLED, coefficients_of, noise_shape
from tests.privacy.plans.test_datalens_plan import ACCOUNT, FACTS, assert_fits


def made(facts: PublicFacts, epsilon: float = 1.0, recipe: str = "moments", **options: Any) -> Plan:
    budget = open_filter(epsilon, 1e-5)
    return build_plan(recipe, options, budget, budget.capacity_nano, facts)


def test_small_budgets_few_records_and_shares_a_hair_above_one_fit() -> None:
    assert_fits(plan_moments(MomentsConfig(), ACCOUNT, 40, dataclasses.replace(FACTS, records_declared=1)), ACCOUNT)
    rich = open_filter(5000.0, 1e-5)
    assert_fits(plan_moments(MomentsConfig(mean_fraction=0.1 + 9e-10), rich, rich.capacity_nano, FACTS), rich)


# --- visible detail ---

TEN, NINE = tuple("abcdefghij"), tuple("abcdefghi")
ROWS = [  # those of docs/research/previews.md
    (TEN, 28, 1, 1437, 1, "outlines"),
    (TEN, 28, 1, 1437, 10, "shapes"),
    (TEN, 28, 1, 3000, 10, "shapes"),
    (TEN, 28, 1, 60_000, 1, "detail"),
    (NINE, 64, 3, 3178, 0.4, "colours"),
    (NINE, 64, 3, 3178, 1, "colours"),
    (NINE, 64, 3, 3178, 2, "outlines"),
    (NINE, 64, 3, 3178, 3, "outlines"),
    (NINE, 64, 3, 3178, 10, "outlines"),
    (NINE, 64, 3, 1903, 4, "outlines"),
    (TEN, 32, 3, 50_000, 10, "outlines"),
]


@pytest.mark.parametrize(("classes", "side", "channels", "records", "epsilon", "seen"), ROWS)
def test_a_plan_says_first_what_was_seen(classes, side, channels, records, epsilon, seen):
    plan = made(PublicFacts(classes, side, side, channels, records, "record"), float(epsilon))
    assert plan.facts["expected_detail"] == seen
    assert plan.notes[0] == SEEN[seen]


def test_what_noise_drowns_is_called_drowned_alone() -> None:
    plan = made(PublicFacts(NINE, 64, 64, 3, 300, "record"), 0.1)
    assert plan.notes[0] == SEEN["noise"]
    assert plan.facts["expected_detail"] == "noise"


def of_size(side: int, classes: int = 2) -> PublicFacts:
    return PublicFacts(tuple(f"class {number}" for number in range(classes)), side, side, 3, 2_000, "record")


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"select_public"}))
def test_every_recipe_plans_for_the_largest_images(recipe: str) -> None:
    assert made(of_size(256), recipe=recipe).recipe == recipe


def test_a_plan_says_how_fine_the_detail_is_where_images_are_larger_than_it() -> None:
    assert any("about 21 pixels wide" in note and "40 x 40" in note for note in made(of_size(256)).notes)
    assert any("about 13 pixels wide" in note for note in made(of_size(256), 8.0).notes)
    assert not any("pixels wide" in note for note in made(of_size(40)).notes)


def test_a_generator_that_is_too_large_is_refused_with_what_would_fit() -> None:
    with pytest.raises(InvalidParameter, match="declare smaller images, or ask for at most 68 components"):
        made(of_size(256, 20), 8.0)
    assert made(of_size(128, 10), 8.0).stages


# --- defaults that follow ---

FEW = dataclasses.replace(FACTS, records_declared=1400)
COLOUR = PublicFacts(tuple("abc"), 64, 48, 3, 3000, "record")


def config(facts: PublicFacts, epsilon: float = 1.0, **options: Any) -> MomentsConfig:
    return made(facts, epsilon, **options).config_of(MomentsConfig)


def voting(facts: PublicFacts, epsilon: float = 1.0, **options: Any) -> DataLensConfig:
    return made(facts, epsilon, "datalens", **options).config_of(DataLensConfig)


@pytest.mark.parametrize("epsilon", [0.1, 10.0])
@pytest.mark.parametrize("n", [4, 1400, 60_000])
@pytest.mark.parametrize("side", [2, 28, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_no_default_is_refused(channels: int, side: int, n: int, epsilon: float) -> None:
    facts = PublicFacts(("a", "b"), side, side, channels, n, "record")
    found = config(facts, epsilon)
    assert found.latent_size(facts) <= facts.pixels + found.texture_size(facts)
    for preset in ("kernel", "published"):
        assert voting(facts, epsilon, preset=preset).teachers <= n // 4


def test_more_budget_or_records_buy_more_detail() -> None:
    small, more, many = config(FEW), config(FEW, 10.0), config(FACTS)
    assert small.coefficients < more.coefficients < many.coefficients == 256
    assert small.mean_clip < more.mean_clip < many.mean_clip
    assert small.mean_fraction > more.mean_fraction > many.mean_fraction


def test_where_noise_is_small_texture_is_released() -> None:
    rich = made(FACTS, 10.0)
    assert [stage.name for stage in rich.stages] == [MEANS, POOLED, CLUSTERS, BY_CLASS]
    found = rich.config_of(MomentsConfig)
    assert (found.texture, found.components) == (True, found.latent_size(FACTS))
    waves = [made.texture_size(FACTS) for made in (config(FACTS, 0.3), config(FACTS), found)]
    assert waves == sorted(set(waves))  # more of them where there is less noise
    assert waves[-1] <= 784
    assert config(FACTS).texture
    assert not config(FEW).texture
    assert not config(FACTS, 10.0, texture=False).texture
    assert not config(dataclasses.replace(FACTS, height=30), 10.0).texture  # cells of four pixels do not fit


def test_a_grid_that_was_given_is_seen_as_a_whole() -> None:
    found = config(FEW, frequencies=5)
    assert len(coefficients_of(found, FEW)) == 25
    assert found.components == found.latent_size(FEW) or found.latent_size(FEW) == 25


def test_without_any_budget_something_is_chosen() -> None:
    assert config_that_follows({}, 0.0, FEW).coefficients == 9


def test_colours_are_an_orthonormal_change_of_the_channels() -> None:
    np.testing.assert_allclose(LUMA_CHROMA @ LUMA_CHROMA.T, np.eye(3), atol=1e-15)


def test_coefficients_are_the_strongest_and_brightness_has_most_of_them() -> None:
    found = config(COLOUR)
    seen, everything = coefficients_of(found, COLOUR), found.with_values(coefficients=None)
    power = coefficients_of(everything, COLOUR).power
    assert len(seen) == found.coefficients
    assert seen.power.min() >= np.sort(power)[-len(seen)]
    in_plane = np.bincount(seen.kind, minlength=3)
    assert in_plane[0] > in_plane[1] > in_plane[2] > 0


@pytest.mark.parametrize("exponent", [0.0, 0.25, 0.5])
def test_the_shape_of_the_noise_keeps_the_priors_norm(exponent: float) -> None:
    power = coefficients_of(config(FEW), FEW).power
    shape = noise_shape(power, exponent)
    assert (power / shape**2).sum() == pytest.approx(power.sum())
    noise = math.sqrt((power / shape**2).sum() * (shape**2).sum())
    best = math.sqrt((power / (least := noise_shape(power, 0.25)) ** 2).sum() * (least**2).sum())
    assert best <= noise * (1 + 1e-12)
