"""Clusters within classes: what a round of k-means can reveal, what it finds, and mixtures that are drawn from it."""

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
from privacy.plans.plan import Plan
from privacy.plans.symmetry import Action
from privacy.plans.warm_start import BY_CLASS, CLUSTER_ROUNDS, CLUSTERS, MEANS, POOLED
from tests.workers.small_trainings import CLUSTERED, THREE, Purse, plan_of, secret, train
from workers.recipes.coefficients import exact_product
from workers.recipes.interface import TrainingData
from workers.recipes.released_sums import Clusters, Kept, KMeans, in_latents, noisy_clusters

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
