"""Warm start: one noisy Gaussian per class, from three integer releases, before the first vote.

Images are seen through a public basis, the lowest cosine frequencies of luma and chroma, where a few numbers hold most
of a picture and noise is small; where the plan says so, their texture follows (`models.texture`). Released are (1)
counts and means by class, (2) the covariance around the released means pooled over classes, whose eigenvectors are the
principal components, (3) each class's covariance in those components. Each is then shrunk as far as the known noise
explains it (`workers.recipes.shrinkage`). The plan may leave out (3), where the pooled covariance stands in, and (2),
where the public prior does.

Adjacency add/remove of one record. Each release is a sum over records of an integer array whose norm is at most the
sensitivity that the plan states, plus exact discrete Gaussian noise; everything after that is post-processing.
The idea of spending a little on "central" statistics first is in DP-FETA (Gong et al. 2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from privacy.accounting.events import SMOOTHING_VARIANCE
from privacy.errors import BudgetExceeded
from privacy.mechanisms.clipping import clip_integer_rows
from privacy.plans.datalens import BY_CLASS, COUNT_WEIGHT, MEANS, POOLED, QUANTISATION
from privacy.plans.datalens_config import DataLensConfig
from privacy.plans.detail import WITHIN, coefficients_of, noise_shape, power_of
from privacy.plans.plan import PublicFacts
from workers.recipes.coefficients import coefficients, exact_product, image_basis
from workers.recipes.shrinkage import at_least, shrink, shrink_counts, shrink_means, shrink_pooled
from workers.recipes.texture import texture_basis, texture_coefficients

Array = npt.NDArray[np.float64]
_BLOCK = 8192  # records whose outer products are added up at once
_FAR = 64.0  # further from its class mean than any image can be; only a mean drowned in noise is further
_FLOOR = 1e-5


class Noise(Protocol):
    """Where a release's noise comes from (`privacy.mechanisms.noise.SecureNoise`)."""

    def discrete_gaussian(self, shape: int | tuple[int, ...], stddev: float) -> npt.NDArray[np.int64]:
        """Return independent discrete Gaussian integers."""


@dataclass(frozen=True)
class ClassGaussians:
    """Released: a Gaussian per class over images.

    Attributes:
        mean: (classes, pixels), in units of full brightness; where texture is released, its numbers follow the pixels.
        factor: (classes, pixels, latent), likewise, so that an image is mean + factor z with z ~ N(0, I).
    """

    mean: Array
    factor: Array


@dataclass(frozen=True)
class NoiseScales:
    """Parameters of the discrete Gaussian of the releases, for integers of norm QUANTISATION; None: not released."""

    means: float
    pooled: float | None
    by_class: float | None


class Kept:
    """Releases of which each is made once, in whatever attempt, and kept as soon as it is there.

    Args:
        released: what an earlier attempt has kept.
        noise: gives the secret generator of a release, by its name; it is paid for when the first number is drawn.
        keep: is given all that was released so far, after each release.
    """

    def __init__(
        self,
        released: Mapping[str, Array],
        noise: Callable[[str], Noise],
        keep: Callable[[Mapping[str, Array]], None] = lambda _: None,
    ) -> None:
        self._released, self._noise, self._keep = dict(released), noise, keep

    def once(self, name: str, release: Callable[[Noise], Array]) -> Array:
        """Return what was kept under a name, or make it with the noise of that name, and keep it."""
        if name not in self._released:
            self._released[name] = release(self._noise(name))
            self._keep(self._released)
        return self._released[name]


def prior(config: DataLensConfig, facts: PublicFacts) -> ClassGaussians:
    """Return the public Gaussian from which a training without a warm start begins, equal for all classes.

    Images around the centre whose coefficients fall off with frequency, as those of natural pictures do.
    """
    seen = coefficients_of(config, facts)
    scale = _size(facts) * 3.0 / (1.0 + np.hypot(seen.row, seen.column))  # falls off like 1 / frequency
    chosen = np.argsort(-scale, kind="stable")[: config.latent_size(facts)]
    basis = image_basis(config, facts)
    factor = basis[chosen].T * scale[chosen]
    classes = len(facts.classes)
    return ClassGaussians(np.full((classes, facts.pixels), config.centre), np.tile(factor, (classes, 1, 1)))


def release_means(
    private_coefficients: Array,
    private_labels: npt.NDArray[np.int64],
    classes: int,
    clip: float,
    stddev: float,
    noise: Noise,
) -> tuple[Array, Array]:
    """Release each class's count and mean.

    Args:
        private_coefficients: (n, f).
        private_labels: (n,).
        classes: number of declared classes.
        clip: norm to which a record's coefficients are clipped.
        stddev: of the discrete Gaussian; charged before its first number is drawn.
        noise: secret generator.

    Returns:
        Counts (classes,), at least 1, and means (classes, f).

    Privacy:
        A record adds an integer vector of norm at most Q = QUANTISATION and the count Q/4 to one class's row:
        sensitivity Q sqrt(17) / 4. A count of Q would ask for 37% more noise on the means, and a mean needs its count
        to a few percent only.
    """
    q = _quantised(private_coefficients, clip)  # (n, f) integers of norm <= Q
    sums = np.zeros((classes, q.shape[1] + 1), dtype=np.int64)
    for label in range(classes):
        members = q[private_labels == label]
        sums[label, :-1] = members.sum(axis=0)
        sums[label, -1] = COUNT_WEIGHT * len(members)
    released = sums + noise.discrete_gaussian(sums.shape, stddev)
    counts = np.maximum(released[:, -1] / COUNT_WEIGHT, 1.0)
    return counts, released[:, :-1] * (clip / QUANTISATION) / counts[:, None]


def release_scatter(private_rows: Array, clip: float, stddev: float, noise: Noise) -> Array:
    """Release the sum of outer products of the rows, (f, f), symmetric.

    Privacy:
        A row clipped to integers q of norm <= Q adds q q^T. With off-diagonal entries weighted by sqrt(2), as their
        smaller noise does, the norm of its upper triangle is |q|^2 <= Q^2: sensitivity Q^2. The noise of the
        off-diagonal entries has half the variance (and what discreteness needs) of the diagonal's.
    """
    q = _quantised(private_rows, clip).astype(np.float64)  # sums stay below 2^53: exact
    total = np.zeros((q.shape[1], q.shape[1]))
    for at in range(0, len(q), _BLOCK):
        total += q[at : at + _BLOCK].T @ q[at : at + _BLOCK]
    f = len(total)
    upper = np.triu(np.ones((f, f), dtype=bool), 1)
    released = np.zeros((f, f))
    released[upper] = total[upper] + noise.discrete_gaussian(int(upper.sum()), off_diagonal_stddev(stddev))
    released += released.T
    released[np.diag_indices(f)] = np.diag(total) + noise.discrete_gaussian(f, stddev)
    return released * (clip / QUANTISATION) ** 2


def off_diagonal_stddev(stddev: float) -> float:
    """Return the noise of off-diagonal entries: its variance is half the diagonal's, plus the cost of discreteness.

    Discrete noise of variance v counts as continuous noise of variance v - v0 (v0 is `SMOOTHING_VARIANCE`). The event
    promises v - v0 on the diagonal, so half of that is needed here: v / 2 + v0 / 2, rounded up.
    """
    variance = (Fraction(stddev) ** 2 + SMOOTHING_VARIANCE) / 2
    root = math.sqrt(variance)
    while Fraction(root) ** 2 < variance:
        root = math.nextafter(root, math.inf)
    return root


def warm_start(
    private_images: npt.NDArray[np.uint8],
    private_labels: npt.NDArray[np.int64],
    config: DataLensConfig,
    facts: PublicFacts,
    scales: NoiseScales,
    releases: Kept,
) -> ClassGaussians:
    """Make the three releases, as far as they are not there yet, and fit one Gaussian per class to them.

    Args:
        private_images: (n, h, w[, c]) uint8.
        private_labels: (n,) int64.
        config: public parameters.
        facts: what the owner declared.
        scales: noise of the releases.
        releases: makes each release once, and keeps it at once.

    Raises:
        BudgetExceeded: means or pooled covariance cannot be paid (again, after a crash between payment and keeping).
            Where that is so for the classes' own covariances, the pooled one stands in for them.
    """
    basis, classes, size = image_basis(config, facts), len(facts.classes), _size(facts)
    power = power_of(config, facts)
    shape = noise_shape(power, config.noise_shape)  # (f,)
    expected = power / shape**2
    private = coefficients(private_images, basis, config.centre)
    of_texture = texture_basis(config, facts)
    if config.texture:
        private = np.concatenate([private, texture_coefficients(private_images, of_texture)], axis=1)
    private /= shape

    def counts_and_means(drawn: Noise) -> Array:
        return np.column_stack(
            release_means(private, private_labels, classes, config.mean_clip * size, scales.means, drawn)
        )

    table = releases.once(MEANS, counts_and_means)  # (classes, 1 + f)
    counts, means = table[:, 0], table[:, 1:]
    if config.shrink:
        sums = means * counts[:, None]
        counts = shrink_counts(counts, scales.means / COUNT_WEIGHT)
        means = shrink_means(sums, counts, expected, scales.means * config.mean_clip * size / QUANTISATION)
    private -= means[private_labels]

    def pooled_scatter(drawn: Noise) -> Array:
        assert scales.pooled is not None
        return release_scatter(private, config.deviation_clip * size, scales.pooled, drawn)

    if scales.pooled is None:
        covariance = np.diag(WITHIN * expected)
    else:
        covariance = releases.once(POOLED, pooled_scatter) / counts.sum()
        if config.shrink:
            noise_stddev = scales.pooled * (config.deviation_clip * size / QUANTISATION) ** 2 / counts.sum()
            covariance = shrink_pooled(covariance, expected, noise_stddev)
    values, vectors = np.linalg.eigh(covariance * np.outer(shape, shape))
    kept = np.argsort(-values, kind="stable")[: config.latent_size(facts)]
    components = vectors[:, kept]  # (f, d)
    pooled = np.maximum(values[kept], _FLOOR)  # (d,)
    factor = _drawn(components.T, basis, of_texture).T
    roots = [np.diag(np.sqrt(pooled))] * classes
    if scales.by_class is not None:
        leading = config.class_size(facts)
        own_shape = noise_shape(pooled[:leading], config.noise_shape)  # (d,), as noise is shaped in coefficients
        private = exact_product(private * shape, components[:, :leading], largest=_FAR * size) / own_shape
        rows, middle = [private[private_labels == label] for label in range(classes)], pooled[:leading] / own_shape**2
        own = _own(rows, middle, counts, config.component_clip * size, scales.by_class, releases)
        roots = [np.diag(np.sqrt(pooled)) for _ in own]
        for root, each in zip(roots, own, strict=True):
            positive = at_least(each, middle) if config.shrink else each
            # Beyond the leading components the pooled covariance stands in.
            root[:leading, :leading] = _root(positive * np.outer(own_shape, own_shape))
    mean = _drawn(means * shape, basis, of_texture)
    mean[:, : facts.pixels] += config.centre
    return ClassGaussians(mean, np.stack([factor @ root for root in roots]))


def _drawn(rows: Array, basis: Array, of_texture: Array) -> Array:
    """Turn the coefficients in rows (n, f) into pixels, and those of the texture that follow into its numbers."""
    return np.concatenate([rows[:, : len(basis)] @ basis, rows[:, len(basis) :] @ of_texture], axis=1)


def _own(
    private_rows: Sequence[Array],
    pooled: Array,
    counts: Array,
    clip: float,
    stddev: float,
    releases: Kept,
) -> list[Array]:
    """Release the scatter (d, d) of each class's rows, and pull its covariance towards the pooled one, diag(pooled)."""

    def scatters(drawn: Noise) -> Array:
        """(classes, d, d); a record is in one class only, so this is one release."""
        return np.stack([release_scatter(rows, clip, stddev, drawn) for rows in private_rows])

    try:
        own = releases.once(BY_CLASS, scatters) / counts[:, None, None]
    except BudgetExceeded:
        return [np.diag(pooled)] * len(counts)
    noise_stddev = stddev * (clip / QUANTISATION) ** 2 / counts  # (classes,)
    return [shrink(each, pooled, noise) for each, noise in zip(own, noise_stddev, strict=True)]


def _root(covariance: Array) -> Array:
    """Return A (d, d) with A A^T = covariance made positive, columns in order of falling variance."""
    values, vectors = np.linalg.eigh(covariance)
    root: Array = (vectors * np.sqrt(np.maximum(values, _FLOOR)))[:, ::-1]
    return root


def _quantised(rows: Array, clip: float) -> npt.NDArray[np.int64]:
    """Round rows to integers of norm at most QUANTISATION, which stands for `clip`."""
    # Far outliers are cut first: integers beyond the clip bound are scaled down in any case.
    scaled = np.nan_to_num(np.clip(rows * (QUANTISATION / clip), -(2.0**19), 2.0**19))
    return clip_integer_rows(np.rint(scaled).astype(np.int64), float(QUANTISATION))


def _size(facts: PublicFacts) -> float:
    """Scale of norms relative to a 28 x 28 image of one channel."""
    return float(np.sqrt(facts.pixels / 784))
