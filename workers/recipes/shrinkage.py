"""Post-processing of a warm start's releases: shrink each as far as its known noise explains it, block by block.

The rule is James and Stein's: values that should be alike form a group, and their deviations are multiplied by
max(0, 1 - noise variance / mean square). Declared symmetries (`privacy.plans.symmetry`) leave covariances in blocks;
without symmetries there is one block, of all numbers.
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
_GROUP = 8  # neighbouring coefficients whose classes are set apart alike
_SPREAD = 0.7  # by which a coefficient's variance may differ from the prior's, as a part of it
_LEAST = 0.05
_NARROWEST = 0.1  # of the pooled variance: what a class has at least in any direction
_COUNT_LEAST = 0.1  # of the mean count: no class is believed to be rarer where the noise of counts is above that
_ROUNDS = 4  # in which the weights of classes follow from how far apart they are, and that from the weights
Fit = Callable[[Array, Places, float], Array]  # a block, the places of its numbers, and the noise in it


def shrink_counts(counts: Array, noise_stddev: float) -> Array:
    """Pull counts (classes,) to their mean, and keep them away from zero, as far as their noise asks for."""
    middle = max(1.0, float(counts.mean()))
    lifted = np.maximum(counts, max(1.0, min(_COUNT_LEAST * middle, noise_stddev)))
    middle = float(lifted.mean())
    variance = float(lifted.var()) * len(lifted) / max(1, len(lifted) - 1)
    found: Array = middle + _weight(variance, noise_stddev**2) * (lifted - middle)
    return found


def shrink_means(sums: Array, counts: Array, prior: Array, noise_stddev: float) -> Array:
    """Return means (classes, f), each pulled to their middle as far as its own noise asks for, and the middle to
    mid-grey.

    The model is that of random effects: class means vary around a middle by v, alike in neighbouring coefficients, and
    bear known noise. Weights 1 / (v + noise) give middle and v in turn (Paule and Mandel 1982), with DerSimonian and
    Laird's moments in each round. A mean keeps v / (v + noise) of its deviation. With equal noise this is the rule
    above. A rare class then costs the others nothing.

    `noise_stddev` is of each entry of `sums` (classes, f); `prior` (f,) are mean squares that the public prior expects.
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
        of_middle = (weights**2 @ noise) / weights.sum() ** 2  # its noise
        middle = middle * expected / (expected + of_middle)
        group[:] = middle + (apart / (apart + noise))[:, None] * (group - middle)
    return means


def shrink_apart(deviations: Array, noise_variance: float) -> None:
    """Pull deviations (rows, f) with noise of that variance towards zero, in place, neighbouring coefficients alike."""
    for start in range(0, deviations.shape[1], _GROUP):
        group = deviations[:, start : start + _GROUP]  # a view
        group *= _weight(float((group**2).mean()), noise_variance)


def shrink_pooled(covariance: Array, prior: Array, noise_stddev: float) -> Array:
    """Return a covariance (f, f) whose variances are pulled to the prior's shape, and whose correlations to zero.

    `noise_stddev` is of a diagonal entry; off the diagonal the variance is half. `prior` (f,) are mean squares that the
    public prior expects; the released total sets their scale.
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
    """Pull a class's noisy covariance (d, d) towards the pooled one, diag(pooled).

    Entries are grouped by the scale sqrt(pooled_i pooled_j) at which their deviations should be alike.
    """
    scale = np.sqrt(np.outer(pooled, pooled))
    deviation = covariance - np.diag(pooled)
    variance = np.where(np.eye(len(pooled), dtype=bool), 1.0, 0.5) * noise_stddev**2
    weights = _weights(deviation, variance, scale, np.ones(scale.shape, dtype=bool))
    found: Array = np.diag(pooled) + weights * deviation
    return found


def at_least(covariance: Array, pooled: Array) -> Array:
    """Return a class's covariance (d, d) with at least a tenth of the pooled variance, diag(pooled), in every
    direction.

    Remaining noise makes some directions too narrow or even negative.
    """
    scale = np.sqrt(np.outer(pooled, pooled))
    values, vectors = np.linalg.eigh(covariance / scale)
    found: Array = (vectors * np.maximum(values, _NARROWEST)) @ vectors.T * scale
    return found


def for_new_records(covariance: Array, count: float) -> Array:
    """Widen a covariance (d, d) that so many records gave, for records that it has not seen.

    An estimate S of n Gaussian records is too narrow in the directions where chance made it narrow. So, in units of S,
    a new record's squared distance is not d on average but d n / (n - d - 1). To first order in d / n that is d (1 + d
    / n), the factor here, and at most 2.
    """
    return covariance * (1.0 + min(1.0, len(covariance) / max(count, 1.0)))


def _weight(mean_square: float, noise_variance: float) -> float:
    return max(0.0, 1.0 - noise_variance / max(mean_square, 1e-30))


def _weights(deviations: Array, noise_variances: Array, scale: Array, among: npt.NDArray[np.bool_]) -> Array:
    """Return the weight of each deviation (f, f), zero outside `among`; those of a like scale form a group."""
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
    """Return a matrix (f, f) with `fit` applied to each block, zero elsewhere.

    Blocks of a pair are equal by declaration, so their mean is fitted, which has less noise.
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
    """Principal components `vectors` (f, d), those of greatest variance first, and the symmetries on the leading ones.

    Where symmetries left fewer than d, the last ones are zero. There are as many leading ones as requested, or one less
    where the last one is one of a pair.
    """

    vectors: Array
    variances: Array
    action: Action


def principal_components(covariance: Array, action: Action, leading: int, size: int) -> Components:
    """Return `size` eigenvectors of a covariance (f, f) with the action's blocks, `leading` ones first; pairs stay
    together.
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
    first: list[int] = []  # of each component: a place of its numbers
    partner: list[int] = []  # and the component that it is swapped with
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
