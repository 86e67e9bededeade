"""The warm start: what one record can change, how much noise covers it, and what is fitted to the releases."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy.accounting.events import SMOOTHING_VARIANCE
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import PublicFacts
from privacy.plans.warm_start import (
    BY_CLASS,
    CLUSTERS,
    COUNT_WEIGHT,
    MEANS,
    POOLED,
    QUANTISATION,
    coefficients_of,
    warm_start_event,
)
from tests.workers.recipes.conftest import change_by_one, noise_images
from tests.workers.small_trainings import CLUSTERED, Constant, all_digits, secret
from tests.workers.small_trainings import FACTS as DIGITS
from tests.workers.small_trainings import THREE as FACTS
from workers.recipes import released_sums as module
from workers.recipes.coefficients import MatrixWaves, exact_product, image_basis
from workers.recipes.released_sums import Kept, noisy_means, noisy_scatter, off_diagonal_stddev
from workers.recipes.warm_start import ClassGaussians, warm_start

Q = QUANTISATION
CLIP = 1.5
CONFIG = MomentsConfig(frequencies=8, components=12)
Rows = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def mean_sums(rows: Rows, labels: Labels) -> npt.NDArray[np.int64]:
    """The integers to which `noisy_means` adds noise: (classes, f + 1), counts last."""
    above = 1 << 30  # keeps the counts away from their lower bound
    table = noisy_means(rows, labels, 3, CLIP, 10.0, Constant(above))
    sums = np.column_stack([table[:, 1:] * table[:, :1] / CLIP * Q, table[:, 0] * COUNT_WEIGHT])
    return np.rint(sums).astype(np.int64) - above


def scatter_sums(rows: Rows, labels: Labels) -> npt.NDArray[np.int64]:
    """The integers to which the three classes' `noisy_scatter` add noise: (classes, f, f)."""
    released = [noisy_scatter(rows[labels == label], CLIP, 10.0, Constant()) for label in range(3)]
    return np.rint(np.stack(released) * (Q / CLIP) ** 2).astype(np.int64)


def square(change: npt.NDArray[np.int64]) -> int:
    """Squared norm, exactly. Of a symmetric matrix: diagonal once, upper triangle with weight two."""
    return sum(value * value for value in change.ravel().tolist())


def integers_with_norm(norm_squared: int) -> list[int]:
    """Four integers whose squares add up to it (Lagrange says there are some)."""
    for a in range(math.isqrt(norm_squared), -1, -1):
        for b in range(math.isqrt(norm_squared - a * a), -1, -1):
            rest = norm_squared - a * a - b * b
            for c in range(math.isqrt(rest), math.isqrt(rest // 2) - 1, -1):
                d = math.isqrt(rest - c * c)
                if d * d == rest - c * c:
                    return [a, b, c, d]
    raise AssertionError


LONGEST = np.array([integers_with_norm(Q * Q - 1)]) * (CLIP / Q)  # (1, 4): quantised to a norm of Q, less one in 2^21

number = st.one_of(
    st.floats(-3, 3),
    st.floats(-1e300, 1e300),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, CLIP, -CLIP, 1e-320, CLIP / Q / 2]),
)
record = st.tuples(st.tuples(number, number, number, number), st.integers(-1, 3))  # classes are 0, 1, 2


def arrays(records: list[tuple[tuple[float, ...], int]]) -> tuple[Rows, Labels]:
    return np.array([row for row, _ in records]).reshape(-1, 4), np.array([y for _, y in records], dtype=np.int64)


@settings(max_examples=150, deadline=None)
@given(others=st.lists(record, max_size=5), extra=record, place=st.integers(0, 5))
def test_no_record_changes_a_release_by_more_than_its_sensitivity(others, extra, place):
    """Add or remove one record of any magnitude and label: NaN, infinite, denormal, of no declared class."""
    more = [*others[:place], extra, *others[place:]]
    one, two = arrays(others), arrays(more)
    change = mean_sums(*two) - mean_sums(*one)
    assert square(change) <= Q * Q * 17 / 16 < warm_start_event(MEANS, 9.0).sensitivity ** 2 + 1
    change = scatter_sums(*two) - scatter_sums(*one)
    assert square(change) <= Q**4 == warm_start_event(BY_CLASS, 9.0).sensitivity ** 2
    everyone = np.zeros(len(more), dtype=np.int64)
    pooled = scatter_sums(two[0], everyone) - scatter_sums(one[0], everyone[:-1])
    assert square(pooled) <= Q**4 == warm_start_event(POOLED, 9.0).sensitivity ** 2


def test_a_record_attains_each_sensitivity():
    """Two releases' bounds are reached up to what separates Q^2 - 1 from Q^2; none has slack to give away."""
    nobody, label = np.zeros((0, 4)), np.zeros(0, dtype=np.int64)
    one = np.zeros(1, dtype=np.int64)
    means = math.sqrt(square(mean_sums(LONGEST, one) - mean_sums(nobody, label)))
    assert warm_start_event(MEANS, 9.0).sensitivity == pytest.approx(means, rel=1e-6)
    scatter = math.sqrt(square(scatter_sums(LONGEST, one) - scatter_sums(nobody, label)))
    assert scatter == Q * Q - 1
    assert warm_start_event(POOLED, 9.0).sensitivity == Q * Q


def test_a_record_beyond_the_clip_counts_as_one_at_the_clip():
    label = np.zeros(1, dtype=np.int64)
    for factor in (1.0, 3.0, 1e200):
        row = np.array([[factor * CLIP, 0.0, 0.0, 0.0]])
        assert Q - 2 <= mean_sums(row, label)[0, 0] <= Q


def test_without_the_clip_the_search_finds_a_violation(monkeypatch):
    monkeypatch.setattr(module, "clip_integer_rows", lambda rows, _: rows)
    label = np.zeros(1, dtype=np.int64)
    assert square(mean_sums(2 * LONGEST, label)) > 2 * Q * Q
    assert square(scatter_sums(2 * LONGEST, label)) > Q**4


def test_deviations_from_the_records_own_mean_would_be_a_violation():
    """The covariance is taken around *released* means: around the data's own, one record moves everybody else."""
    rows = np.zeros((20, 4))
    outlier = np.vstack([rows, np.full((1, 4), 21 * CLIP)])

    def change(centred: Callable[[Rows], Rows]) -> int:
        labels = np.zeros(21, dtype=np.int64)
        return square(scatter_sums(centred(outlier), labels) - scatter_sums(centred(rows), labels[:-1]))

    assert change(lambda x: x - x.mean(axis=0)) > 100 * Q**4
    assert change(lambda x: x - np.float64(0.3)) <= Q**4


@pytest.mark.parametrize("off_diagonal", [False, True])
@given(stddev=st.floats(2.0001, 1e12))
@settings(deadline=None)
def test_the_noise_of_a_scatter_suffices_for_its_event(off_diagonal, stddev):
    """In exact fractions: every entry's noise, as a continuous one, covers its share of the event's mu.

    Noise of variance v counts as a continuous one of variance v - v0. A record changes the diagonal by q_i^2 and the
    upper triangle by q_i q_j. Whitened, that is sum_i q_i^4 / d + sum_{i<j} q_i^2 q_j^2 / o <= |q|^4 max(1/d, 1/2o).
    """
    event = warm_start_event(POOLED, stddev)
    entry = off_diagonal_stddev(stddev) if off_diagonal else stddev
    continuous = (2 if off_diagonal else 1) * (Fraction(entry) ** 2 - SMOOTHING_VARIANCE)
    assert Fraction(Q) ** 4 / continuous <= event.mu_squared_exact


@pytest.mark.parametrize("too_little", [lambda s: s / math.sqrt(2), lambda s: math.sqrt(s * s / 2 + 1)])
def test_the_proof_rejects_less_noise_off_the_diagonal(too_little):
    for stddev in (3.0, 50.0, 4321.0):
        continuous = 2 * (Fraction(too_little(stddev)) ** 2 - SMOOTHING_VARIANCE)
        assert continuous < Fraction(warm_start_event(POOLED, stddev).stddev) ** 2


def fits(drawn: npt.NDArray[np.float64], stddev: float) -> bool:
    """Whether integers could be Gaussian noise of that stddev (large enough for steps of one not to matter)."""
    n = len(drawn)
    mass = stats.chi2.cdf(np.square(drawn / stddev).sum(), n)
    return bool(min(mass, 1 - mass) > 1e-4 and stats.kstest(drawn / stddev, "norm").pvalue > 1e-4)


def scatter_noise(stddev: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Noise alone on the diagonal and above it, from several releases of nobody's scatter."""
    f = 60
    noise = secret("scatter")
    released = [noisy_scatter(np.zeros((0, f)), CLIP, stddev, noise) * (Q / CLIP) ** 2 for _ in range(40)]
    assert all(np.array_equal(matrix, matrix.T) for matrix in released)
    upper = np.triu_indices(f, 1)
    return np.concatenate([np.diag(m) for m in released]), np.concatenate([m[upper] for m in released])


def mean_noise(stddev: float) -> npt.NDArray[np.float64]:
    classes, f = 100, 30
    table = noisy_means(np.zeros((0, f)), np.zeros(0, dtype=np.int64), classes, CLIP, stddev, secret("means"))
    return np.rint(table[:, 1:] * table[:, :1] / CLIP * Q).ravel()


def test_noise_has_the_promised_scale():
    diagonal, upper = scatter_noise(5000.0)
    assert fits(diagonal, 5000.0)
    assert fits(upper, off_diagonal_stddev(5000.0))
    assert off_diagonal_stddev(5000.0) == pytest.approx(5000 / math.sqrt(2), rel=1e-6)
    assert fits(mean_noise(5000.0), 5000.0)


@pytest.mark.parametrize("factor", [1 / 2, 2 / 3, 3 / 2])
def test_the_noise_test_rejects_another_scale(factor):
    diagonal, upper = scatter_noise(5000.0 * factor)
    assert not fits(diagonal, 5000.0)
    assert not fits(upper, off_diagonal_stddev(5000.0))
    assert not fits(mean_noise(5000.0 * factor), 5000.0)


def test_each_paid_statistic_gets_noise_once_with_its_own_scale():
    noise = Constant()
    images, labels = np.zeros((9, 8, 8), dtype=np.uint8), np.arange(9) % 3
    warm_start(images, labels, CONFIG, FACTS, {MEANS: 10.0, POOLED: 20.0, BY_CLASS: 30.0}, Kept({}, lambda _: noise))
    f, d, off = 64, 12, off_diagonal_stddev
    assert noise.drawn == [
        (3 * (f + 1), 10.0),
        (f * (f - 1) // 2, off(20.0)),
        (f, 20.0),
        *[(d * (d - 1) // 2, off(30.0)), (d, 30.0)] * 3,
    ]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1000), size=st.sampled_from([1e-6, 1.0, 1e5]), p=st.sampled_from([1, 2, 64, 800]))
def test_an_exact_product_is_close_to_the_product(seed, size, p):
    rng = np.random.default_rng(seed)
    rows, matrix = rng.uniform(-3, 3, (5, p)), rng.normal(size=(p, 4)) * size
    error = np.abs(exact_product(rows, matrix, largest=3.0) - rows @ matrix).max()
    assert error < 1e-3 * size * math.sqrt(p)
    reversed_order = exact_product(rows[:, ::-1], matrix[::-1], largest=3.0)
    assert np.array_equal(reversed_order, exact_product(rows, matrix, largest=3.0))  # any order of addition
    assert not exact_product(rows, np.zeros((p, 4)), largest=3.0).any()
    cut = exact_product(rows[:, :1] * 1e9, np.eye(1), largest=3.0)
    assert np.array_equal(cut, np.sign(rows[:, :1]) * 3.0)


@pytest.mark.parametrize("coefficients_kept", [None, 11])
def test_luma_and_chroma_are_orthonormal_too_and_grey_has_no_chroma(coefficients_kept):
    facts = dataclasses.replace(FACTS, height=6, width=5, channels=3)
    config = CONFIG.with_values(colour="luma_chroma", coefficients=coefficients_kept)
    basis, plane = image_basis(config, facts), coefficients_of(config, facts).kind
    assert len(basis) == (coefficients_kept or facts.pixels)
    np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-12)
    grey = np.repeat(np.random.default_rng(0).integers(0, 256, (4, 6, 5, 1)), 3, axis=3).astype(np.uint8)
    np.testing.assert_allclose(MatrixWaves(basis).of(grey, 0.5)[:, plane > 0], 0, atol=1e-4)


WHITE, BLACK, NOISE = "white", "black", "noise"
COLOUR = {"colour": "luma_chroma", "centre": 0.5, "coefficients": 40, "mean_clip": 0.1}
CHANGES: list[tuple[str, dict[str, Any], str, tuple[int, int, int], bool]] = [
    # stage, options, images of a shape, and whether the last of them lies beyond the clip
    *(
        (MEANS, {**COLOUR, "noise_shape": shaped, "texture": texture}, image, (8, 8, 3), True)
        for shaped, texture, image in itertools.product((0.0, 0.25, 0.5), (False, True), (BLACK, WHITE))
    ),
    *((MEANS, {**COLOUR, "noise_shape": 0.25}, image, (72, 80, 3), True) for image in (BLACK, WHITE)),
    *(
        (stage, {**options, "noise_shape": shaped, "component_clip": clip}, NOISE, (8, 8, 1), clip == 0.05)
        for stage, options, shapes in (
            (BY_CLASS, {}, (0.0, 0.25, 0.5)),
            *((f"{CLUSTERS} {number}", {**CLUSTERED, "clusters": 4}, (0.25,)) for number in (1, 2, 3)),
        )
        for shaped, clip in itertools.product(shapes, (0.05, 50.0))
    ),
]


@pytest.mark.parametrize(("stage", "options", "kind", "shape", "beyond"), CHANGES, ids=str)
def test_an_image_attains_the_sensitivity_of_each_sum_and_never_exceeds_it(stage, options, kind, shape, beyond):
    """From pixels to integers. The shape of the noise divides before the clip, and products round before it."""
    height, width, channels = shape
    facts = dataclasses.replace(FACTS, height=height, width=width, channels=channels)
    images = noise_images(4, *shape)
    if kind != NOISE:
        images[:] = 255 if kind == WHITE else 0
    config = CONFIG.with_values(shrink=True, **options)
    change, _ = change_by_one(config, facts, stage, images)
    largest = warm_start_event(stage.partition(" ")[0], 9.0).sensitivity
    assert change <= largest
    assert (change > 0.98 * largest) == beyond


@pytest.mark.parametrize("channels", [1, 3])
def test_the_basis_is_orthonormal_and_reads_pixels_in_the_generators_order(channels):
    facts = dataclasses.replace(FACTS, height=6, width=5, channels=channels)
    basis = image_basis(CONFIG, facts)  # all frequencies: nothing is lost
    np.testing.assert_allclose(basis @ basis.T, np.eye(facts.pixels), atol=1e-12)
    images = noise_images(4, 6, 5, channels)
    rebuilt = MatrixWaves(basis).of(images, 0.25) @ basis + 0.25
    planes = np.moveaxis(images, 3, 1) if channels == 3 else images
    np.testing.assert_allclose(rebuilt, planes.reshape(4, -1) / 255, atol=1e-4)


def fit(
    images: npt.NDArray[np.uint8], labels: Labels, facts: PublicFacts = FACTS, stddev: float = 1e4, **options: Any
) -> ClassGaussians:
    """Fit Gaussians, and see that they are finite and of the shapes that a generator takes."""
    config = CONFIG.with_values(**options)
    stddevs = {MEANS: stddev, POOLED: stddev * Q, BY_CLASS: stddev * Q}
    gaussians = warm_start(images, labels, config, facts, stddevs, Kept({}, partial(secret, "fit")))
    shape, factors = (len(facts.classes), facts.pixels + config.texture_size(facts)), np.stack(gaussians.factor)
    assert (gaussians.mean.shape, factors.shape) == (shape, (*shape, config.latent_size(facts)))
    assert np.isfinite(gaussians.mean).all()
    assert np.isfinite(factors).all()
    return gaussians


@pytest.mark.parametrize("stddev", [3.0, 1e4, 1e8])
@pytest.mark.parametrize("n", [0, 1, 2, 40])
def test_few_records_and_much_noise_leave_valid_gaussians(n, stddev):
    images = noise_images(n)
    fit(images, np.zeros(n, dtype=np.int64), stddev=stddev)  # classes b and c are empty
    fit(images, np.arange(n) % 3, stddev=stddev)


def test_odd_shapes_are_fitted():
    rng, labels = np.random.default_rng(0), np.arange(30) % 3
    odd = [((7, 5, 3), {}), ((1, 1), {}), ((8, 8), {"components": 1}), ((8, 8), {"frequencies": 1})]
    for shape, options in odd:
        facts = dataclasses.replace(FACTS, height=shape[0], width=shape[1], channels=3 if len(shape) == 3 else 1)
        fit(rng.integers(0, 256, (30, *shape)).astype(np.uint8), labels, facts, **options)


def test_with_hardly_any_noise_classes_have_their_means_and_covariances():
    (images, labels), facts = all_digits(), dataclasses.replace(DIGITS, records_declared=1797)
    wide = {"components": 64, "mean_clip": 30.0, "deviation_clip": 20.0, "component_clip": 20.0}
    gaussians = fit(images, labels, facts, stddev=3.0, **wide)
    flat = images.reshape(len(images), -1) / 255
    for label in range(10):
        own = flat[labels == label]
        np.testing.assert_allclose(gaussians.mean[label], own.mean(axis=0), atol=0.01)
        covariance = np.cov(own.T, bias=True)
        error = gaussians.factor[label] @ gaussians.factor[label].T - covariance
        assert np.linalg.norm(error) < 0.1 * np.linalg.norm(covariance)
