"""Declared symmetries: how they act on what is released, what a record can change, and what is drawn."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from privacy.errors import InvalidParameter
from privacy.plans.moments import MomentsConfig
from privacy.plans.symmetry import ORDER, Action, Symmetry
from privacy.plans.warm_start import BY_CLASS, CLUSTERS, MEANS, POOLED, WARM_START, action_of, warm_start_event
from tests.workers.recipes.conftest import change_by_one, noise_images
from tests.workers.small_trainings import CLUSTERED, THREE, Purse, plan_of, secret, train
from workers.recipes.coefficients import LARGE, numbers_of
from workers.recipes.interface import TrainingData
from workers.recipes.released_sums import Kept, KMeans, noisy_clusters
from workers.recipes.shrinkage import principal_components
from workers.recipes.warm_start import ClassGaussians, warm_start

FACTS = dataclasses.replace(THREE, channels=3)
CONFIG = MomentsConfig(frequencies=8, components=12, texture=True, colour="luma_chroma", centre=0.5, **CLUSTERED)
BOTH: list[Symmetry] = ["mirror", "square"]
Numbers = npt.NDArray[np.float64]
pictures = partial(noise_images, channels=3)


def changed(images: Any, number: int) -> Any:
    """Apply a symmetry to images (n, h, w, ...): rows and columns swapped first, then mirrored."""
    images = images.swapaxes(1, 2) if number & 4 else images
    images = images[:, ::-1] if number & 2 else images
    return np.ascontiguousarray(images[:, :, ::-1] if number & 1 else images)


SMALL = [("mirror", 8, 12, None), ("mirror", 8, 12, 101), ("square", 8, 8, None), ("square", 12, 12, 101)]
OF_FACTORS = [("mirror", 72, 65, 101), ("square", 70, 70, 101), ("square", 65, 65, 101)]


@pytest.mark.parametrize(("symmetry", "height", "width", "kept"), [*SMALL, *OF_FACTORS])
def test_the_numbers_of_a_changed_image_are_the_changed_numbers_to_the_last_bit(symmetry, height, width, kept):
    """On images of noise, where nothing is symmetric by itself; of the small ones texture, too."""
    small = height * width <= LARGE
    facts = dataclasses.replace(FACTS, height=height, width=width)
    options = {"frequencies": 64, "coefficients": kept, "texture": small, "texture_waves": kept or 1024}
    numbers = numbers_of(CONFIG.with_values(symmetry=symmetry, **options), facts)
    for basis in (numbers.waves.basis, numbers.texture) if small else ():
        np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-12)
    images, action = pictures(300 if small else 40, height, width), numbers.action
    before = numbers.of(images)
    assert action.order == ORDER[symmetry]
    for number in range(1, action.order):
        after = numbers.of(changed(images, number))
        assert np.array_equal(after, action.turned(before, number))
        assert not np.array_equal(after, before)
        assert np.array_equal(action.turned_back(after, number), before)


@pytest.mark.parametrize("symmetry", BOTH)
def test_what_is_not_released_is_zero_over_all_symmetries_and_nothing_else_is(symmetry):
    """Averaged over the group, the moments of any record are zero outside the blocks: the declaration in numbers."""
    action = action_of(CONFIG.with_values(symmetry=symmetry), FACTS)
    record = np.random.default_rng(1).normal(size=len(action.across))
    orbit = action.orbit(record[None])
    blocks = [places for pair in action.blocks() for places in pair]
    assert sorted(np.concatenate(blocks).tolist()) == list(range(len(record)))
    with_mean = np.isin(np.arange(len(record)), blocks[0])
    np.testing.assert_allclose(orbit.mean(axis=0)[~with_mean], 0, atol=1e-12)
    assert np.abs(orbit.mean(axis=0)[with_mean]).min() > 0
    products = orbit.T @ orbit / len(orbit)
    within = np.zeros(products.shape, dtype=bool)
    for places in blocks:
        within[np.ix_(places, places)] = True
    np.testing.assert_allclose(products[~within], 0, atol=1e-12)
    assert np.abs(products[within]).min() > 0
    for pair in action.blocks():
        np.testing.assert_allclose(*[products[np.ix_(places, places)] for places in (pair[0], pair[-1])])


def test_pairs_of_components_stay_together():
    """Of five numbers two are a pair: where one place is left, a component alone takes it, or nothing does."""
    pair, alone = np.array([1, 0, 2, 3, 4]), np.array([-1.0, 1.0, 1.0, 1.0, 1.0])
    action = Action("square", alone, np.array([1.0, -1.0, 1.0, 1.0, 1.0]), pair, np.ones(5))
    covariance = np.diag([9.0, 9.0, 5.0, 3.0, 1.0])
    found = principal_components(covariance, action, leading=1, size=4)
    assert found.variances.tolist() == [5.0, 9.0, 9.0, 3.0]
    assert len(found.action.across) == 1
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(4), atol=1e-12)
    only = Action("square", alone[:2], action.down[:2], pair[:2], np.ones(2))
    assert principal_components(covariance[:2, :2], only, leading=3, size=3).variances.tolist() == [9.0, 9.0, 0.0]


@pytest.mark.parametrize("stage", [MEANS, POOLED, f"{CLUSTERS} 2", BY_CLASS])
@pytest.mark.parametrize("symmetry", ["none", *BOTH])
def test_a_record_attains_each_sensitivity_and_never_exceeds_it(symmetry, stage):
    """What a declaration says is zero is not summed, and gets no noise."""
    small = dict.fromkeys(("mean_clip", "deviation_clip", "component_clip"), 0.001)  # every record is beyond
    config = CONFIG.with_values(symmetry=symmetry, **small)
    largest = warm_start_event(stage.partition(" ")[0], 9.0).sensitivity
    change, noise = change_by_one(config, FACTS, stage, pictures(2))
    assert 0.98 * largest < change <= largest
    blocks = [places for pair in action_of(config, FACTS).blocks() for places in pair]
    numbers = {MEANS: 3 * (len(blocks[0]) + 1), POOLED: sum(len(each) * (len(each) + 1) // 2 for each in blocks)}
    drawn = sum(count for count, _ in noise.drawn) // 2
    assert drawn == numbers.get(stage, drawn)


def gaussians(symmetry: Symmetry, stddev: float, **options: Any) -> ClassGaussians:
    rng = np.random.default_rng(2)
    images, labels = pictures(300), rng.integers(0, 3, 300)
    config = CONFIG.with_values(symmetry=symmetry, shrink=True, **options)
    return warm_start(images, labels, config, FACTS, dict.fromkeys(WARM_START, stddev), Kept({}, secret))


def moments_of(found: ClassGaussians) -> tuple[Numbers, Numbers]:
    """Return the mean of the images (classes, h, w, c) that are drawn, and their covariance (classes, h, w, c, D)."""
    shares, centres = found.clusters.shares[:, :, None], found.clusters.centres
    middle = (shares * centres).sum(axis=1)
    apart = np.eye(centres.shape[2]) + np.einsum("ckd,cke->cde", shares * centres, centres)
    apart -= middle[:, :, None] * middle[:, None, :]
    factors = np.stack(found.factor)
    mean = found.mean + np.einsum("cpd,cd->cp", factors, middle)
    covariance = factors @ apart @ factors.swapaxes(1, 2)
    pixels = FACTS.pixels
    shape = (3, FACTS.channels, FACTS.height, FACTS.width)
    as_images = covariance[:, :pixels, :pixels].reshape(*shape, pixels)
    return np.moveaxis(mean[:, :pixels].reshape(shape), 1, 3), np.moveaxis(as_images, 1, 3)


@pytest.mark.parametrize("stddev", [10.0, 1e5])
@pytest.mark.parametrize("components", [3, 30])
@pytest.mark.parametrize("symmetry", BOTH)
def test_images_are_as_likely_as_their_mirror_images_whatever_the_noise(symmetry, components, stddev):
    """So that mirroring half of what is drawn would change nothing, and is not done."""
    mean, covariance = moments_of(gaussians(symmetry, stddev, components=components))
    pixel = np.arange(FACTS.pixels).reshape(FACTS.channels, FACTS.height, FACTS.width)
    for number in range(1, ORDER[symmetry]):
        np.testing.assert_allclose(changed(mean, number), mean, atol=1e-9)
        other = np.moveaxis(changed(np.moveaxis(pixel, 0, 2)[None], number), 3, 1).ravel()
        np.testing.assert_allclose(changed(covariance, number), covariance[..., other.argsort()], atol=1e-9)


def test_without_a_declaration_they_are_not():
    """Control of the test above."""
    mean, _ = moments_of(gaussians("none", 1e3))
    assert np.abs(mean[:, :, ::-1] - mean).max() > 1e-3


def test_a_cluster_and_its_twin_are_found_together():
    """Records on both sides: a cluster learns from those that are nearer to its twin, turned back."""
    rng = np.random.default_rng(0)
    centres = np.array([[2.0, 3.0, 0.0], [-1.0, 0.5, 2.5]])
    rows = centres[rng.integers(0, 2, 4000)] + rng.normal(size=(4000, 3)) * 0.2
    rows[::2, 1:] *= -1  # mirrored
    action = Action("mirror", np.array([1.0, -1.0, -1.0]), np.ones(3), np.arange(3), np.ones(3))
    labels, counts, rounds = np.zeros(4000, dtype=np.int64), np.array([4000.0]), KMeans(2, 8.0, 1e4, action)
    found = noisy_clusters(rows, labels, (rows**2).mean(axis=0), counts, rounds, Kept({}, secret))
    assert found.centres.shape == (1, 4, 3)
    expected = np.concatenate([centres, action.turned(centres, 1)])
    apart = np.square(expected[:, None] - found.centres[0][None]).sum(axis=2)
    assert apart.min(axis=1).max() < 0.1
    np.testing.assert_allclose(found.shares[0], 0.25, atol=0.02)


@pytest.mark.parametrize("symmetry", BOTH)
def test_a_training_pays_what_one_without_a_declaration_pays_and_draws_twins(symmetry):
    options = {"components": 12, **CLUSTERED}
    declared, plain = (plan_of("moments", {**options, "symmetry": each}, FACTS) for each in (symmetry, "none"))
    stages = [[(stage.name, stage.event) for stage in each.stages] for each in (declared, plain)]
    assert stages[0] == stages[1]
    assert any(symmetry in note or "mirror" in note for note in declared.notes)
    purse = Purse()
    generator = train(declared, TrainingData(pictures(600), np.arange(600) % 3, FACTS.classes), FACTS, budget=purse)
    assert all(declared.stage(stage).announces(event) for stage, event in purse.paid)
    assert generator.config.clusters == 2 * ORDER[symmetry]
    assert torch.isfinite(generator.sample(torch.arange(30) % 3, torch.Generator().manual_seed(0))).all()


def test_a_square_has_equal_sides():
    facts = dataclasses.replace(FACTS, width=12)
    assert plan_of("moments", {"symmetry": "mirror"}, facts).config_of(MomentsConfig).symmetry == "mirror"
    with pytest.raises(InvalidParameter) as refused:
        plan_of("moments", {"symmetry": "square"}, facts)
    assert refused.value.name == "symmetry"
