"""Clusters within classes and declared symmetries: what a record can change, what is found, and what is drawn."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from models.portable.generator import Generator, GeneratorConfig
from models.portable.textured import TexturedGenerator
from privacy.errors import BudgetExceeded, InvalidParameter
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import Plan
from privacy.plans.symmetry import ORDER, Action, Symmetry
from privacy.plans.warm_start import (
    BY_CLASS,
    CLUSTER_ROUNDS,
    CLUSTERS,
    MEANS,
    POOLED,
    WARM_START,
    action_of,
    warm_start_event,
)
from tests.workers.recipes.conftest import change_by_one, noise_images
from tests.workers.small_trainings import CLUSTERED, THREE, Purse, plan_of, secret, train
from workers.recipes.coefficients import LARGE, exact_product, numbers_of
from workers.recipes.interface import TrainingData
from workers.recipes.released_sums import Clusters, Kept, KMeans, in_latents, noisy_clusters
from workers.recipes.shrinkage import principal_components
from workers.recipes.warm_start import ClassGaussians, warm_start

NONE = Action("none", np.ones(4), np.ones(4), np.arange(4), np.ones(4))
Numbers = npt.NDArray[np.float64]


def test_the_cluster_of_a_record_ignores_the_other_records_to_the_last_bit():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(200, 12)), rng.integers(0, 3, 200)
    rows[50:100] = rows[50:100].round(1)  # among them ties
    clusters = Clusters(np.full((3, 4), 0.25), rng.normal(size=(3, 4, 12)).round(1))
    whole, product = clusters.nearest(rows, labels), exact_product(rows, clusters.centres[0].T, largest=64.0)
    for part in (slice(1, None), slice(7, 8), slice(0, 200, 2), slice(199, None, -1), slice(0, 0)):
        assert np.array_equal(clusters.nearest(rows[part], labels[part]), whole[part])
        assert np.array_equal(exact_product(rows[part], clusters.centres[0].T, largest=64.0), product[part])
    exact = ((rows[:, None] - clusters.centres[labels]) ** 2).sum(2).argmin(1)
    assert (exact == whole).mean() > 0.99


def test_centres_that_follow_the_data_without_noise_would_be_a_violation():
    """Control: with centres of the round's own, one record moves others from cluster to cluster, and their sums."""
    rng = np.random.default_rng(3)
    rows = np.concatenate([rng.normal(size=(40, 2)) * 0.3, [[40.0, 0.0]]])
    labels = np.zeros(41, dtype=np.int64)

    def change(centres_of: Any) -> float:
        def counts(n: int) -> Numbers:
            clusters = Clusters(np.full((1, 2), 0.5), centres_of(rows[:n])[None])
            return np.bincount(clusters.nearest(rows[:n], labels[:n]), minlength=2).astype(float)

        return float(np.abs(counts(41) - counts(40)).sum())

    assert change(lambda _: np.array([[-0.1, 0.0], [0.1, 0.0]])) == 1
    assert change(lambda seen: np.stack([seen.mean(0) - 0.1, seen.mean(0) + 0.1])) > 5


def blobs(n: int = 3000) -> tuple[Numbers, npt.NDArray[np.int64], Numbers]:
    """Two classes in four dimensions; the first has three blobs of unequal size, the second one."""
    rng = np.random.default_rng(0)
    centres = np.array([[3.0, 0, 0, 0], [-3.0, 2, 0, 0], [0.0, -4, 0, 0]])
    which = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    first = centres[which] + rng.normal(size=(n, 4)) * 0.3
    first -= first.mean(0)
    rows = np.concatenate([first, rng.normal(size=(n, 4)) * 0.3])
    return rows, np.repeat([0, 1], n), centres - centres.T @ [0.5, 0.3, 0.2]


def found(releases: Kept, stddev: float = 3.0) -> Clusters | None:
    rows, labels, _ = blobs()
    pooled = (rows**2).mean(0)
    return noisy_clusters(rows, labels, pooled, np.full(2, 3000.0), KMeans(3, 8.0, stddev, NONE), releases)


@pytest.mark.parametrize("stddev", [3.0, 3e3])
def test_clusters_that_stand_apart_are_found_with_their_sizes(stddev):
    clusters = found(Kept({}, partial(secret, "blobs")), stddev)
    expected = blobs()[2]
    nearest = ((expected[:, None] - clusters.centres[0][None]) ** 2).sum(2)
    assert nearest.min(1).max() < 0.1
    np.testing.assert_allclose(clusters.shares[0][nearest.argmin(1)], [0.5, 0.3, 0.2], atol=0.05)
    np.testing.assert_allclose(clusters.shares.sum(1), 1)


def test_much_noise_leaves_valid_clusters_near_the_middle():
    clusters = found(Kept({}, partial(secret, "noise")), 1e9)
    assert np.isfinite(clusters.centres).all()
    assert (clusters.shares > 0).all()
    assert np.abs(clusters.centres).max() < 3.1 * np.abs(blobs()[0]).max()


@pytest.mark.parametrize("paid", range(CLUSTER_ROUNDS + 1))
def test_a_round_that_cannot_be_paid_leaves_what_earlier_ones_found(paid):
    kept: dict[str, Any] = {}

    def noise(name: str) -> SecureNoise:
        if int(name.removeprefix(f"{CLUSTERS} ")) > paid:
            raise BudgetExceeded(1, 0)
        return secret(name)

    clusters = found(Kept({}, noise, kept.update))
    assert list(kept) == [f"{CLUSTERS} {number + 1}" for number in range(paid)]
    assert (clusters is None) == (paid == 0)
    again = found(Kept(kept, noise))  # what was kept is taken, whatever can be paid
    if clusters is not None and again is not None:
        assert np.array_equal(clusters.centres, again.centres)


def test_centres_become_latents():
    """root (latent) is the centre again, times the shape; beyond the leading components nothing is moved."""
    rng = np.random.default_rng(0)
    roots = [np.eye(6), np.eye(6)]
    for root in roots:
        root[:4, :4] = rng.normal(size=(4, 4)) + 3 * np.eye(4)
    shape = np.array([1.0, 2.0, 3.0, 4.0])
    clusters = Clusters(np.full((2, 3), 1 / 3), rng.normal(size=(2, 3, 4)))
    latents = in_latents(clusters, shape, roots)
    for label, root in enumerate(roots):
        moved = latents.centres[label] @ root.T
        np.testing.assert_allclose(moved[:, :4], clusters.centres[label] * shape)
        np.testing.assert_allclose(moved[:, 4:], 0, atol=1e-12)


def test_a_generator_draws_around_the_centres_by_their_shares():
    config = GeneratorConfig(classes=2, channels=1, height=2, width=2, components=3, clusters=2)
    generator = Generator(config)
    generator.mean.fill_(0.5)
    generator.factor[:, 0, 0] = 1e-2
    generator.centres[1, 0, 0], generator.centres[1, 1, 0] = 20.0, -20.0  # a fifth of brightness up and down
    generator.shares[1] = torch.tensor([0.25, 0.75])
    stream = torch.Generator().manual_seed(0)
    drawn = generator.sample(torch.arange(4000) % 2, stream)[:, 0, 0, 0]
    assert (drawn[0::2] - 0.5).abs().max() < 0.06
    of_second = drawn[1::2]
    assert ((of_second - 0.5).abs() > 0.14).all()
    assert (of_second > 0.5).float().mean() == pytest.approx(0.25, abs=0.03)


def plan(**options: Any) -> Plan:
    wanted = {"frequencies": 6, "components": 10, **CLUSTERED, "clusters": 3, **options}
    return plan_of("moments", wanted, THREE)


@pytest.mark.parametrize("texture", [False, True])
def test_a_training_pays_for_every_round_and_draws_mixtures(texture):
    made = plan(texture=texture)
    counts = {stage.name: stage.event.count for stage in made.stages}
    assert counts == {MEANS: 1, POOLED: 1, CLUSTERS: CLUSTER_ROUNDS, BY_CLASS: 1}
    shares = {stage.name: stage.cost_nano / made.budget_nano for stage in made.stages}
    assert shares == pytest.approx({MEANS: 0.2, POOLED: 0.3, CLUSTERS: 0.2, BY_CLASS: 0.3}, rel=1e-3)
    purse, rng = Purse(), np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    images = (rng.integers(0, 60, (600, 8, 8)) + 60 * labels[:, None, None]).astype(np.uint8)
    images[::2, :, 4:] += 70  # two clusters in each class
    generator = train(made, TrainingData(images, labels, THREE.classes), THREE, budget=purse)
    assert purse.counts == [(MEANS, 1), (POOLED, 1), *[(CLUSTERS, 1)] * CLUSTER_ROUNDS, (BY_CLASS, 1)]
    assert isinstance(generator, TexturedGenerator) == texture
    assert generator.centres.abs().max() > 0.1
    drawn = generator.sample(torch.arange(30) % 3, torch.Generator().manual_seed(0))
    assert torch.isfinite(drawn).all()


@pytest.mark.parametrize(
    "options",
    [
        {"clusters": 1},
        {"cluster_fraction": 0.0, "mean_fraction": 0.4},
        {"class_covariance_fraction": 0.0, "pooled_covariance_fraction": 0.6},
    ],
    ids=str,
)
def test_clusters_that_cannot_be_are_refused(options):
    with pytest.raises(InvalidParameter) as refused:
        plan(**options)
    assert refused.value.name == "clusters"


# --- declared symmetries ----------------------------------------------------------------------------------------------


FACTS = dataclasses.replace(THREE, channels=3)
CONFIG = MomentsConfig(frequencies=8, components=12, texture=True, colour="luma_chroma", centre=0.5, **CLUSTERED)
BOTH: list[Symmetry] = ["mirror", "square"]
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
    assert np.square(expected[:, None] - found.centres[0][None]).sum(axis=2).min(axis=1).max() < 0.1
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
