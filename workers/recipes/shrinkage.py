"""Post-processing of a warm start's releases: shrink each block according to its known noise.

The rule is James and Stein's: values that should be similar form a group, and their deviations are multiplied by max(0,
1 - noise variance / mean square). Declared symmetries (`privacy.plans.symmetry`) make covariances block-diagonal;
without symmetries there is one block of all numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privacy.plans.symmetry import Action, Places

Array = npt.NDArray[np.float64]
_BINS = 12
_GROUP = 8  # neighbouring coefficients with similar differences between classes
_SPREAD = 0.7  # relative deviation of a coefficient's variance from the prior's
_LEAST = 0.05
_NARROWEST = 0.1  # share of the pooled variance: a class's minimum in any direction
_COUNT_LEAST = 0.1  # share of the mean count: the minimum for a class if the counts' noise is larger
_ROUNDS = 4  # rounds that alternate between the classes' weights and their variance
Fit = Callable[[Array, Places, float], Array]  # a block, the places of its numbers, and its noise


def shrink_counts(counts: Array, noise_stddev: float) -> Array:
    """Raise low counts (classes,) above zero, then shrink all to their mean, according to their noise."""
    middle = max(1.0, float(counts.mean()))
    lifted = np.maximum(counts, max(1.0, min(_COUNT_LEAST * middle, noise_stddev)))
    middle = float(lifted.mean())
    variance = float(lifted.var()) * len(lifted) / max(1, len(lifted) - 1)
    return middle + _weight(variance, noise_stddev**2) * (lifted - middle)


def shrink_means(sums: Array, counts: Array, prior: Array, noise_stddev: float) -> Array:
    """Return class means (classes, f), shrunk to a common centre according to their noise.

    The centre itself is shrunk to mid-grey. The model has random effects: class means vary around the centre with
    variance v, equal in neighbouring coefficients, and have known noise. Weights 1 / (v + noise) determine centre and v
    alternately (Paule and Mandel 1982), with DerSimonian and Laird's moments in each round. A mean keeps v / (v +
    noise) of its deviation. With equal noise this is the module's rule. A rare class does not distort the others.

    `noise_stddev` refers to each entry of `sums` (classes, f). `prior` (f,) has the public prior's expected mean
    squares.
    """
    means: Array = sums / counts[:, None]
    noise = np.maximum((noise_stddev / counts) ** 2, 1e-30)
    for start in range(0, means.shape[1], _GROUP):
        group, expected = means[:, start : start + _GROUP], prior[start : start + _GROUP]  # a view, and (g,)
        middle, weights, apart = group.mean(axis=0), noise, 0.0
        for _ in range(_ROUNDS):
            weights = 1.0 / (apart + noise)
            whole = weights.sum()
            middle = weights @ group / whole
            if len(means) > 1:
                found = float(weights @ ((group - middle) ** 2).mean(axis=1)) - weights @ noise
                found += (weights**2 @ noise) / whole
                apart = max(0.0, found / (whole - (weights**2).sum() / whole))
        of_middle = (weights**2 @ noise) / weights.sum() ** 2  # noise of the middle
        middle = middle * expected / (expected + of_middle)
        group[:] = middle + (apart / (apart + noise))[:, None] * (group - middle)
    return means


def shrink_apart(deviations: Array, noise_variance: float) -> None:
    """Shrink deviations (rows, f) towards zero in place. Neighbouring coefficients are shrunk by the same factor."""
    for start in range(0, deviations.shape[1], _GROUP):
        group = deviations[:, start : start + _GROUP]  # a view
        group *= _weight(float((group**2).mean()), noise_variance)


def shrink_pooled(covariance: Array, prior: Array, noise_stddev: float) -> Array:
    """Return a covariance (f, f) with variances shrunk to the prior's shape, and correlations shrunk to zero.

    `noise_stddev` refers to a diagonal entry; off the diagonal, the noise variance is half of that. `prior` (f,) has
    the public prior's expected mean squares; the released total sets their scale.
    """
    diagonal = np.diag(covariance)
    expected = prior * max(_LEAST, float(diagonal.sum() / prior.sum()))
    spread = (_SPREAD * expected) ** 2
    variances = np.maximum(expected + spread / (spread + noise_stddev**2) * (diagonal - expected), _LEAST * expected)
    scale = np.sqrt(np.outer(variances, variances))
    apart = ~np.eye(len(prior), dtype=bool)
    correlation = np.where(apart, covariance / scale, 0.0)
    correlation *= _weights(correlation, noise_stddev**2 / 2 / scale**2, scale, apart)
    np.fill_diagonal(correlation, 1.0)
    found: Array = correlation * scale
    return found


def shrink(covariance: Array, pooled: Array, noise_stddev: float) -> Array:
    """Shrink a class's noisy covariance (d, d) to the pooled covariance, diag(pooled).

    Entries are grouped by the scale sqrt(pooled_i pooled_j), because deviations of equal scale should be similar.
    """
    scale = np.sqrt(np.outer(pooled, pooled))
    deviation = covariance - np.diag(pooled)
    variance = np.where(np.eye(len(pooled), dtype=bool), 1.0, 0.5) * noise_stddev**2
    weights = _weights(deviation, variance, scale, np.ones(scale.shape, dtype=bool))
    return np.diag(pooled) + weights * deviation


def at_least(covariance: Array, pooled: Array) -> Array:
    """Return a class's covariance (d, d), raised to at least a tenth of diag(pooled) in every direction.

    Remaining noise makes some directions too narrow or even negative.
    """
    scale = np.sqrt(np.outer(pooled, pooled))
    values, vectors = np.linalg.eigh(covariance / scale)
    found: Array = (vectors * np.maximum(values, _NARROWEST)) @ vectors.T * scale
    return found


def for_new_records(covariance: Array, count: float) -> Array:
    """Widen a covariance (d, d), estimated from `count` records, so that it fits new records.

    By chance, an estimate S from n Gaussian records is too narrow in some directions. So, in units of S, a new record's
    mean squared distance is d n / (n - d - 1) instead of d. To first order in d / n that is d (1 + d / n). The
    factor here is 1 + d / n, at most 2.
    """
    return covariance * (1.0 + min(1.0, len(covariance) / max(count, 1.0)))


def _weight(mean_square: float, noise_variance: float) -> float:
    return max(0.0, 1.0 - noise_variance / max(mean_square, 1e-30))


def _weights(deviations: Array, noise_variances: Array, scale: Array, among: npt.NDArray[np.bool_]) -> Array:
    """Return a factor for each deviation (f, f), zero outside `among`. Deviations of similar scale share a factor."""
    weights = np.zeros_like(scale)
    if among.any():
        group = np.searchsorted(np.quantile(scale[among], np.linspace(0, 1, _BINS + 1)[1:-1]), scale)
        for index in range(_BINS):
            members = (group == index) & among
            if members.any():
                mean_square, noise_variance = (deviations[members] ** 2).mean(), noise_variances[members].mean()
                weights[members] = _weight(float(mean_square), float(noise_variance))
    return weights


def block_by_block(matrix: Array, blocks: Sequence[Sequence[Places]], noise_stddev: float, fit: Fit) -> Array:
    """Return a matrix (f, f) with `fit` applied to each diagonal block of `matrix`, zero elsewhere.

    A declared symmetry makes the two blocks of a pair equal, so `fit` is applied to their mean, which has less noise.
    """
    found = np.zeros_like(matrix)
    for pair in blocks:
        middle = np.mean([matrix[np.ix_(places, places)] for places in pair], axis=0)
        fitted = fit(middle, pair[0], noise_stddev / math.sqrt(len(pair)))
        for places in pair:
            found[np.ix_(places, places)] = fitted
    return found


@dataclass(frozen=True)
class Components:
    """Principal components `vectors` (f, d), and the action of the symmetries on the leading components.

    If symmetries leave fewer than d components, the last vectors are zero. The number of leading components is as
    requested, or one less if a pair of components would be split.
    """

    vectors: Array
    variances: Array
    action: Action


def principal_components(covariance: Array, action: Action, leading: int, size: int) -> Components:
    """Return `size` principal components of a covariance (f, f) that has the blocks of the action.

    The `leading` components of largest variance come first. The two components of a pair stay together.
    """
    left: list[tuple[float, Array, list[Places]]] = []
    for pair in action.blocks():
        values, vectors = np.linalg.eigh(covariance[np.ix_(pair[0], pair[0])])
        left += [(float(value), vector, pair) for value, vector in zip(values, vectors.T, strict=True)]
    left.sort(key=lambda found: -found[0])
    chosen, lead = left[:0], 0
    for wanted in (leading, size):
        taken = sum(len(pair) for _, _, pair in chosen)
        others = []
        for found in left:
            if taken + len(found[2]) <= wanted:
                chosen.append(found)
                taken += len(found[2])
            else:
                others.append(found)
        left, lead = others, lead or taken
    vectors, variances = np.zeros((len(covariance), size)), np.zeros(size)
    first: list[int] = []  # for each component: a place of its numbers
    partner: list[int] = []  # and the component with which it is swapped
    for value, vector, pair in chosen:
        start = len(first)
        for at, places in enumerate(pair):
            vectors[places, start + at], variances[start + at] = vector, value
            first.append(int(places[0]))
            partner.append(start + len(pair) - 1 - at)
    led = np.array(first[:lead])
    of_them = Action(
        action.symmetry, action.across[led], action.down[led], np.array(partner[:lead]), action.swapped[led]
    )
    return Components(vectors, variances, of_them)
