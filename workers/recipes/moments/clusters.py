"""Clusters: a class as a mixture of a few Gaussians, whose centres noisy k-means finds in the principal components.

A round gives each record to the nearest released centre of its class, and privatises each cluster's count and sum,
as is done for classes (noisy k-means is an example of Blum et al. 2005, "Practical privacy: the SuLQ framework").
All clusters of a class share its covariance, so hardly more is released than for one Gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privacy.errors import BudgetExceeded
from privacy.plans.moments.symmetry import Action
from privacy.plans.moments.warm_start import CLUSTER_ROUNDS, CLUSTERS, QUANTISATION
from workers.recipes.moments.coefficients import exact_product
from workers.recipes.moments.released_sums import Kept, Noise, noisy_means
from workers.recipes.moments.shrinkage import shrink_apart

Array = npt.NDArray[np.float64]
_SEED = 0  # public, of the first centres
_APART = 0.7  # of the first centres, in standard deviations
_RAREST = 0.1  # of the mean count: a cluster is not believed to be rarer
_FARTHEST = 3.0  # of a centre, in standard deviations of each component: further out there is noise
_FAR = 64.0  # public bound of a row's numbers, further out than any image can be


@dataclass(frozen=True)
class KMeans:
    """Public numbers of the rounds.

    Attributes:
        clusters: of each class.
        clip: norm to which a record's row is clipped.
        stddev: of a round's discrete Gaussian noise, for integers of norm QUANTISATION.
        action: of the declared symmetries on the components.
    """

    clusters: int
    clip: float
    stddev: float
    action: Action


@dataclass(frozen=True)
class Clusters:
    """Released: each class's clusters.

    Where symmetries are declared, a cluster's twins under them are clusters, too, and follow it.

    Attributes:
        shares: (classes, clusters) of a class's records; each row adds up to 1.
        centres: (classes, clusters, d) around the class's mean.
    """

    shares: Array
    centres: Array

    def nearest(self, private_rows: Array, private_labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return (n,) which cluster of its class each row (n, d) is nearest to. Private.

        It is a function of that row and the centres alone, to the last bit.
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
    """Run the rounds of k-means.

    Args:
        private_rows: (n, d), deviations from the class means in principal components.
        private_labels: (n,).
        pooled: (d,) variances of the components, released.
        counts: (classes,), released.
        rounds: their public numbers.
        releases: makes each round once, and keeps it at once.

    Returns:
        What the last round released; None where not even the first could be paid (again, after a crash).

    Privacy:
        A record adds its row and its count to one cluster of its class in every round: `noisy_means` has the proof.
        Which cluster that is follows from its own row and from earlier rounds. A record that is nearest to a cluster's
        twin is turned, as the twin is turned back to the cluster, and added to that one: a change of signs and places
        leaves its norm as it is.
    """
    classes, clusters, d, action = len(counts), rounds.clusters, len(pooled), rounds.action
    stream = np.random.Generator(np.random.PCG64(_SEED))
    spread = np.sqrt(pooled)
    first = stream.normal(size=(classes, clusters, d)) * spread * _APART
    found, paid = _with_twins(np.full((classes, clusters), 1 / clusters), first, action), 0
    for number in range(CLUSTER_ROUNDS):
        nearest = found.nearest(private_rows, private_labels)
        cluster = private_labels * clusters + nearest // action.order
        turned = np.empty_like(private_rows)
        for symmetry in range(action.order):
            members = nearest % action.order == symmetry
            turned[members] = action.turned_back(private_rows[members], symmetry)

        def round_of(drawn: Noise, rows: Array = turned, cluster: npt.NDArray[np.int64] = cluster) -> Array:
            sizes = classes * clusters, rounds.clip, rounds.stddev
            return np.column_stack(noisy_means(rows, cluster, *sizes, drawn))

        try:
            table = releases.once(f"{CLUSTERS} {number + 1}", round_of)  # (classes * clusters, 1 + d)
        except BudgetExceeded:
            break
        shares, centres = _fitted(table.reshape(classes, clusters, 1 + d), counts, rounds, spread)
        found, paid = _with_twins(shares, centres, action), number + 1
    return found if paid else None


def _with_twins(shares: Array, centres: Array, action: Action) -> Clusters:
    """Return clusters (classes, clusters) and their twins, those of one cluster together."""
    return Clusters(np.repeat(shares / action.order, action.order, axis=1), action.orbit(centres))


def _fitted(table: Array, counts: Array, rounds: KMeans, spread: Array) -> tuple[Array, Array]:
    """Turn a round's counts and means (classes, clusters, 1 + d) into shares and centres, as far as noise allows."""
    sums = table[:, :, 1:] * table[:, :, :1]
    members = np.maximum(table[:, :, 0], _RAREST * counts[:, None] / table.shape[1])
    noise_variance = float(np.mean((rounds.stddev * rounds.clip / QUANTISATION / members) ** 2))
    centres = (sums / members[:, :, None]).reshape(-1, sums.shape[2])  # (classes * clusters, d)
    shrink_apart(centres, noise_variance)
    near = np.clip(centres, -_FARTHEST * spread, _FARTHEST * spread)
    return members / members.sum(axis=1, keepdims=True), near.reshape(sums.shape)


def in_latents(clusters: Clusters, shape: Array, roots: list[Array]) -> Clusters:
    """Return clusters whose centres are latents: root_y^-1 (centre * shape), zero beyond the leading components.

    Args:
        clusters: with centres (classes, clusters, leading).
        shape: (leading,), by which rows had been divided.
        roots: (d, d) of each class.
    """
    classes, each, leading = clusters.centres.shape
    wide = np.zeros((classes, each, len(roots[0])))
    wide[:, :, :leading] = clusters.centres * shape
    return Clusters(
        clusters.shares, np.stack([np.linalg.solve(root, own.T).T for root, own in zip(roots, wide, strict=True)])
    )
