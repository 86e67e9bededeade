"""Shrinkage of released statistics: nothing but noise becomes what is expected, and clear signals stay."""

import numpy as np
import pytest

from workers.recipes import shrinkage

RNG = np.random.default_rng(0)
BEGINNING = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_noise() -> None:
    RNG.bit_generator.state = BEGINNING


def test_counts_that_differ_by_noise_become_equal_and_others_stay():
    assert np.ptp(shrinkage.shrink_counts(100 + RNG.normal(0, 1, 10), 30.0)) == 0
    clear = np.array([10.0, 500.0, 1000.0])
    np.testing.assert_allclose(shrinkage.shrink_counts(clear, 1.0), [10.0, 500.0, 1000.0], rtol=0.08)


@pytest.mark.parametrize("counts", [[-50.0, -3.0], [0.0, 0.0], [-1e9, 4.0], [5.0]])
def test_counts_stay_positive(counts):
    assert (shrinkage.shrink_counts(np.array(counts), 10.0) > 0).all()


def test_means_of_noise_are_the_pooled_mean_and_clear_ones_stay():
    counts, prior = np.full(10, 100.0), np.ones(16)
    truth = RNG.normal(0, 1, (10, 16))
    noisy = shrinkage.shrink_means(RNG.normal(0, 1000, (10, 16)), counts, prior, 1000.0)
    assert np.square(noisy - noisy.mean(axis=0)).mean() < 0.3 * 10.0**2  # of means as they were: 10^2
    np.testing.assert_allclose(shrinkage.shrink_means(truth * 100, counts, prior, 0.01), truth, atol=1e-3)


def test_shrunk_means_are_closer_to_the_truth():
    truth = RNG.normal(0, 0.3, (10, 32)) + RNG.normal(0, 1, 32)
    sums = truth * 100 + RNG.normal(0, 80, truth.shape)
    error = np.square(sums / 100 - truth).sum()
    assert np.square(shrinkage.shrink_means(sums, np.full(10, 100.0), np.ones(32), 80.0) - truth).sum() < 0.5 * error


def test_where_all_have_the_same_noise_means_are_shrunk_by_james_and_steins_rule():
    counts, prior, sums = np.full(5, 50.0), np.full(8, 1e9), RNG.normal(0, 80, (5, 8))
    own = sums / 50 - sums.sum(axis=0) / 250
    weight = max(0.0, 1 - (40.0 / 50) ** 2 / (np.square(own).mean() / 0.8))
    assert 0 < weight < 1
    found = shrinkage.shrink_means(sums, counts, prior, 40.0)
    np.testing.assert_allclose(found, own * weight + sums.sum(axis=0) / 250, rtol=1e-6)


@pytest.mark.parametrize("counts", [[300.0] * 9 + [10.0], [2000.0, 20.0], [5000.0, 1000.0, 200.0, 40.0]])
def test_a_rare_class_is_pulled_far_and_leaves_the_others_where_they_are(counts):
    each, errors = np.array(counts), []
    for _ in range(50):
        truth = RNG.normal(0, 0.5, (len(each), 24)) + RNG.normal(0, 1, 24)
        sums = truth * each[:, None] + RNG.normal(0, 60, truth.shape)
        found = shrinkage.shrink_means(sums, each, np.full(24, 1e9), 60.0)
        errors.append([np.square(means - truth).mean(axis=1) for means in (found, sums / each[:, None])])
    shrunk, plain = np.mean(errors, axis=0)
    assert shrunk[-1] < 0.6 * plain[-1], "of the rare class"
    assert shrunk[0] < 1.1 * plain[0], "of the frequent one"


def test_a_class_is_believed_to_be_as_rare_as_its_count_tells():
    assert shrinkage.shrink_counts(np.array([2000.0, 20.0]), 5.0)[1] == pytest.approx(20.0, rel=0.1)
    assert shrinkage.shrink_counts(np.array([2000.0, -20.0]), 5.0)[1] == pytest.approx(5.0, rel=0.1)


def noisy(truth: np.ndarray, stddev: float) -> np.ndarray:
    upper = np.triu(RNG.normal(0, stddev / np.sqrt(2), truth.shape), 1)
    return truth + upper + upper.T + np.diag(RNG.normal(0, stddev, len(truth)))


def test_a_shrunk_covariance_is_closer_to_the_truth_and_has_the_priors_shape_where_noise_is_all():
    prior = 4.0 / (1 + np.arange(24))
    root = np.diag(np.sqrt(prior)) @ np.linalg.qr(RNG.normal(size=(24, 24)))[0] * 0.7
    truth = root @ root.T
    released = noisy(truth, 0.6)
    error = np.square(released - truth).sum()
    assert np.square(shrinkage.shrink_pooled(released, prior, 0.6) - truth).sum() < 0.5 * error
    drowned = shrinkage.shrink_pooled(noisy(truth, 500.0), prior, 500.0)
    shape = np.diag(drowned) / prior
    assert np.ptp(shape) < 0.2 * shape.mean()
    np.testing.assert_allclose(shrinkage.shrink_pooled(truth, prior, 1e-9), truth, atol=1e-6)


def test_shrinking_drops_what_noise_explains_and_keeps_the_rest():
    pooled = np.geomspace(1.0, 0.01, 40)
    middle, released = np.diag(pooled), noisy(np.diag(pooled), 0.3)
    shrunk = shrinkage.shrink(released, pooled, 0.3)
    assert np.linalg.norm(shrunk - middle) < 0.35 * np.linalg.norm(released - middle)
    np.testing.assert_allclose(shrunk, shrunk.T)
    np.testing.assert_array_equal(shrinkage.shrink(released, pooled, 1e3), middle)
    np.testing.assert_allclose(shrinkage.shrink(released, pooled, 1e-9), released)


def test_one_coefficient_and_one_class_are_shrunk_too():
    one = np.ones(1)
    assert shrinkage.shrink_pooled(np.array([[2.0]]), one, 0.1).shape == (1, 1)
    assert np.isfinite(shrinkage.shrink_means(np.array([[3.0]]), one, one, 5.0)).all()


def test_a_covariance_gets_back_the_directions_that_noise_took():
    pooled = np.geomspace(1.0, 0.01, 40)
    released = noisy(np.eye(40), 0.7) * np.sqrt(np.outer(pooled, pooled))
    assert np.linalg.eigvalsh(released).min() < 0
    mended = shrinkage.at_least(released, pooled)
    whitened = mended / np.sqrt(np.outer(pooled, pooled))
    assert np.linalg.eigvalsh(whitened).min() == pytest.approx(0.1)
    np.testing.assert_allclose(mended, mended.T, atol=1e-12)
    sound = np.diag(pooled) * 0.5
    np.testing.assert_allclose(shrinkage.at_least(sound, pooled), sound, atol=1e-12)


def test_a_covariance_of_few_records_is_widened_for_new_ones():
    d, n = 10, 100
    seen, new = RNG.normal(size=(n, d)), RNG.normal(size=(100_000, d))
    estimate = seen.T @ seen / n

    def distance(covariance: shrinkage.Array) -> float:
        """Mean squared distance of new records in units of a covariance, over d."""
        return float((new @ np.linalg.inv(covariance) * new).sum(axis=1).mean() / d)

    narrow, wide = distance(estimate), distance(shrinkage.for_new_records(estimate, n))
    assert narrow > 1.08
    assert abs(wide - 1) < 0.5 * (narrow - 1)
    np.testing.assert_array_equal(shrinkage.for_new_records(estimate, 3.0), 2 * estimate)
