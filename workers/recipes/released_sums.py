"""Noisy sums over private records: counts and means by class, scatter matrices, and clusters by noisy k-means.

Adjacency: add or remove one record. A record adds an integer array of norm at most the sensitivity stated in the plan
(`privacy.plans.warm_start.warm_start_event`); each function has its proof. `stddev` is the parameter of the discrete
Gaussian, which is charged before its first number is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt

from privacy.accounting.events import SMOOTHING_VARIANCE
from privacy.errors import BudgetExceeded
from privacy.mechanisms.clipping import clip_integer_parts, clip_integer_rows
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.symmetry import Action
from privacy.plans.warm_start import CLUSTER_ROUNDS, CLUSTERS, COUNT_WEIGHT, QUANTISATION, warm_start_event
from workers.recipes.coefficients import exact_product
from workers.recipes.interface import Run
from workers.recipes.shrinkage import shrink_apart

Array = npt.NDArray[np.float64]
_BLOCK = 8192  # records rounded, and outer products added, at once
_SEED = 0  # public seed of the first centres
_APART = 0.7  # distance of the first centres, in standard deviations
_RAREST = 0.1  # lower bound for a cluster's count, as a share of the mean count
_FARTHEST = 3.0  # bound on a centre, in standard deviations of each component; beyond it is only noise
_FAR = 64.0  # public bound on a row's numbers, larger than for any image


@dataclass(repr=False)
class PaidNoise:
    """Noise that is paid for before it is drawn: the first draw charges the budget.

    The sums are ready by then, so only milliseconds pass between the payment and the checkpoint with the release.
    """

    run: Run
    name: str
    _noise: SecureNoise | None = field(default=None, init=False)

    def discrete_gaussian(self, shape: int | tuple[int, ...], stddev: float) -> npt.NDArray[np.int64]:
        """Pay, then draw. Without payment there is no noise and no release."""
        if self._noise is None:
            stage = self.name.partition(" ")[0]  # a number follows if a stage has several releases
            self.run.budget.charge(warm_start_event(stage, self.run.plan.noise_stddev[stage]), stage)
            self._noise = self.run.noise("warm start", self.name)
        return self._noise.discrete_gaussian(shape, stddev)


Noise = SecureNoise | PaidNoise


class Kept:
    """Makes each release once across all attempts, and saves it immediately.

    Args:
        released: the releases saved by an earlier attempt.
        noise: returns the secret generator for a release's name. Drawing its first number pays for the release.
        keep: called after each release with everything released so far.
    """

    def __init__(
        self,
        released: Mapping[str, Array],
        noise: Callable[[str], Noise],
        keep: Callable[[Mapping[str, Array]], None] = lambda _: None,
    ) -> None:
        self._released, self._noise, self._keep = dict(released), noise, keep

    def once(self, name: str, privatise: Callable[[Noise], Array]) -> Array:
        """Return the release saved under a name, or make it with the noise of that name and save it."""
        if name not in self._released:
            self._released[name] = privatise(self._noise(name))
            self._keep(self._released)
        return self._released[name]


def noisy_means(
    private_coefficients: Array,
    private_labels: npt.NDArray[np.int64],
    classes: int,
    clip: float,
    stddev: float,
    noise: Noise,
) -> Array:
    """Privatise each class's count and mean; return a table (classes, 1 + f) of counts, at least 1, and means.

    Rows (n, f) are clipped to the norm `clip`.

    Privacy:
        A record adds an integer vector of norm at most Q = QUANTISATION and the count Q/4 to one class's row:
        sensitivity Q sqrt(17) / 4. A count of Q would require 37% more noise on the means, while a mean needs its count
        only to a few percent.
    """
    sums = np.zeros((classes, private_coefficients.shape[1] + 1), dtype=np.int64)
    for at in range(0, len(private_labels), _BLOCK):
        q = quantised(private_coefficients[at : at + _BLOCK], clip)  # integers of norm <= Q
        for label in range(classes):
            members = q[private_labels[at : at + _BLOCK] == label]
            sums[label, :-1] += members.sum(axis=0)
            sums[label, -1] += COUNT_WEIGHT * len(members)
    released = sums + noise.discrete_gaussian(sums.shape, stddev)
    counts = np.maximum(released[:, -1] / COUNT_WEIGHT, 1.0)
    return np.column_stack([counts, released[:, :-1] * (clip / QUANTISATION) / counts[:, None]])


def noisy_scatter(
    private_rows: Array, clip: float, stddev: float, noise: Noise, blocks: Sequence[npt.NDArray[np.int64]] | None = None
) -> Array:
    """Return the privatised sum of the rows' outer products, a symmetric matrix (f, f).

    Args:
        clip: norm to which a row is clipped; with blocks, the bound of the norm stated below.
        blocks: sets of columns. Only products of two columns in the same set are released; the others are 0 by a
            declared symmetry, without noise. None: all products are released.

    Privacy:
        A row clipped to integers q of norm <= Q adds q q^T. The smaller noise of off-diagonal entries is equivalent to
        weighting them by sqrt(2). So weighted, the upper triangle has the norm |q|^2 <= Q^2: sensitivity Q^2.
        Off-diagonal noise has half the variance of diagonal noise, plus what discreteness needs. With several blocks,
        whose parts of q are q_b, the added triangles have the norm root(sum |q_b|^4), which is clipped to Q^2. So the
        sensitivity is Q^2 again.
    """
    parts = [np.arange(private_rows.shape[1])] if blocks is None else blocks
    totals = [np.zeros((len(part), len(part))) for part in parts]
    for at in range(0, len(private_rows), _BLOCK):
        q = quantised(private_rows[at : at + _BLOCK], clip, parts).astype(np.float64)
        for total, part in zip(totals, parts, strict=True):
            total += q[:, part].T @ q[:, part]  # sums stay below 2^53: exact
    released = np.zeros((private_rows.shape[1], private_rows.shape[1]))
    for total, part in zip(totals, parts, strict=True):
        upper = np.triu(np.ones(total.shape, dtype=bool), 1)
        noisy = np.zeros(total.shape)
        noisy[upper] = total[upper] + noise.discrete_gaussian(int(upper.sum()), off_diagonal_stddev(stddev))
        noisy += noisy.T
        np.fill_diagonal(noisy, np.diag(total) + noise.discrete_gaussian(len(part), stddev))
        released[np.ix_(part, part)] = noisy
    return released * (clip / QUANTISATION) ** 2


def off_diagonal_stddev(stddev: float) -> float:
    """Return the noise stddev of off-diagonal entries: half the diagonal's variance, plus the cost of discreteness.

    Discrete noise of variance v counts as continuous noise of variance v - v0 (v0 is `SMOOTHING_VARIANCE`). The event
    assumes v - v0 on the diagonal, so half of that is needed here: v / 2 + v0 / 2, rounded up.
    """
    variance = (Fraction(stddev) ** 2 + SMOOTHING_VARIANCE) / 2
    root = math.sqrt(variance)
    while Fraction(root) ** 2 < variance:
        root = math.nextafter(root, math.inf)
    return root


def quantised(rows: Array, clip: float, parts: Sequence[npt.NDArray[np.int64]] = ()) -> npt.NDArray[np.int64]:
    """Round rows to integers of norm at most QUANTISATION, which represents `clip`.

    With several parts, (sum over the parts of norm^4)^(1/4) is at most QUANTISATION.
    """
    # Far outliers are clamped first: integers beyond the clip bound are scaled down in any case.
    scaled = np.nan_to_num(np.clip(rows * (QUANTISATION / clip), -(2.0**19), 2.0**19))
    integers = np.rint(scaled).astype(np.int64)
    if len(parts) > 1:
        return clip_integer_parts(integers, float(QUANTISATION), parts)
    return clip_integer_rows(integers, float(QUANTISATION))


@dataclass(frozen=True)
class KMeans:
    """Public parameters of k-means: clusters per class, clip and noise of a row, and symmetries of the components."""

    clusters: int
    clip: float
    stddev: float
    action: Action


@dataclass(frozen=True)
class Clusters:
    """Released clusters of each class, including the twins to which the declared symmetries map a cluster.

    `shares` (classes, clusters) are fractions of a class's records; each row adds up to 1. `centres` (classes,
    clusters, d) are relative to the class's mean.
    """

    shares: Array
    centres: Array

    def nearest(self, private_rows: Array, private_labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number (n,) of the cluster nearest to each row (n, d), among the clusters of its class. Private.

        To the last bit, a row's result is a function of that row, its label and the centres alone.
        """
        found = np.zeros(len(private_labels), dtype=np.int64)
        for label, centres in enumerate(self.centres):
            members = private_labels == label
            along = exact_product(private_rows[members], centres.T, largest=_FAR)  # (members, clusters)
            found[members] = ((centres**2).sum(axis=1) - 2 * along).argmin(axis=1)
        return found


def noisy_clusters(
    private_rows: Array,
    private_labels: npt.NDArray[np.int64],
    pooled: Array,
    counts: Array,
    rounds: KMeans,
    releases: Kept,
) -> Clusters | None:
    """Run the rounds of k-means (an example of Blum et al. 2005, "Practical privacy: the SuLQ framework").

    A round assigns each record to the nearest released centre of its class, and privatises each cluster's count and
    sum. All clusters of a class share one covariance, so hardly more is released than for one Gaussian.

    Args:
        private_rows: (n, d), deviations from the class means in principal components.
        pooled: (d,) variances of the components, released.
        counts: (classes,), released.

    Returns:
        The clusters of the last round that was made; None if the budget could not pay for the first round.

    Privacy:
        A record adds its row and its count to one cluster of its class in every round: `noisy_means` has the proof. The
        choice of the cluster depends only on the record's own row and on earlier rounds. A record that is nearest to a
        cluster's twin is mapped by the inverse of the twin's symmetry and added to that cluster. The symmetry changes
        signs and the order of coordinates, so it preserves the norm.
    """
    classes, clusters, d, action = len(counts), rounds.clusters, len(pooled), rounds.action
    stream = np.random.Generator(np.random.PCG64(_SEED))
    spread = np.sqrt(pooled)
    first = stream.normal(size=(classes, clusters, d)) * spread * _APART
    found = _with_twins(np.full((classes, clusters), 1 / clusters), first, action)
    for number in range(1, CLUSTER_ROUNDS + 1):
        nearest = found.nearest(private_rows, private_labels)
        cluster = private_labels * clusters + nearest // action.order
        turned = np.empty_like(private_rows)
        for symmetry in range(action.order):
            members = nearest % action.order == symmetry
            turned[members] = action.turned_back(private_rows[members], symmetry)
        privatise = partial(noisy_means, turned, cluster, classes * clusters, rounds.clip, rounds.stddev)
        try:
            table = releases.once(f"{CLUSTERS} {number}", privatise)  # (classes * clusters, 1 + d)
        except BudgetExceeded:
            return found if number > 1 else None
        table = table.reshape(classes, clusters, 1 + d)
        sums = table[:, :, 1:] * table[:, :, :1]
        members = np.maximum(table[:, :, 0], _RAREST * counts[:, None] / clusters)
        noise_variance = float(np.mean((rounds.stddev * rounds.clip / QUANTISATION / members) ** 2))
        centres = (sums / members[:, :, None]).reshape(-1, d)  # (classes * clusters, d)
        shrink_apart(centres, noise_variance)
        near = np.clip(centres, -_FARTHEST * spread, _FARTHEST * spread).reshape(sums.shape)
        found = _with_twins(members / members.sum(axis=1, keepdims=True), near, action)
    return found


def _with_twins(shares: Array, centres: Array, action: Action) -> Clusters:
    return Clusters(np.repeat(shares / action.order, action.order, axis=1), action.orbit(centres))


def in_latents(clusters: Clusters, shape: Array, roots: list[Array]) -> Clusters:
    """Convert the centres of each class y to latents root_y^-1 (centre * shape, padded with zeros)."""
    classes, each, leading = clusters.centres.shape
    wide = np.zeros((classes, each, len(roots[0])))
    wide[:, :, :leading] = clusters.centres * shape
    return Clusters(
        clusters.shares, np.stack([np.linalg.solve(root, own.T).T for root, own in zip(roots, wide, strict=True)])
    )
