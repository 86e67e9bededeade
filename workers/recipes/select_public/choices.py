"""What records vote among: clusters of public pictures, then pictures of those that won. Public, or released."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

_SEED = 0  # public, of the clusters and of varied pictures
_ROUNDS = 20


@dataclass(frozen=True)
class Clusters:
    """Clusters of the public pictures from which a class may select.

    Attributes:
        centres: (k, axes) int64, in the units of `workers.recipes.select_public.space`.
        members: of each cluster, rows of public pictures; those nearest to its centre come first.
    """

    centres: Tensor
    members: tuple[npt.NDArray[np.int64], ...]


def cluster(places: Tensor, rows: npt.NDArray[np.int64], count: int) -> Clusters:
    """Return k-means clusters of some public pictures, at most `count`, none of them empty.

    Args:
        places: (n, axes) int64, of all public pictures.
        rows: those that are clustered, at least one.
        count: that are wished.
    """
    own = places[torch.from_numpy(rows)].double().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of an empty cluster, which is left out
        centres, nearest = kmeans2(own, min(count, len(own)), iter=_ROUNDS, minit="++", rng=_SEED)
    found = [number for number in range(len(centres)) if (nearest == number).any()]
    members = []
    for number in found:
        there = np.flatnonzero(nearest == number)
        distance = ((own[there] - centres[number]) ** 2).sum(1)
        members.append(rows[there[np.argsort(distance, kind="stable")]])
    return Clusters(torch.from_numpy(centres[found]).round().long(), tuple(members))


def shares_of(noisy_votes: Tensor, least: float) -> Tensor:
    """Return the part of a class's images that each choice gets, (k,), adding up to 1.

    Votes below `least` count as none. Where none is left, those above zero count; where there are none, all alike.

    Args:
        noisy_votes: (k,), released.
        least: in votes.
    """
    votes = noisy_votes.double()
    for kept in (votes.where(votes >= least, 0.0), votes):
        if float(kept.clamp_min(0).sum()) > 0:
            return kept.clamp_min(0) / kept.clamp_min(0).sum()
    return torch.full_like(votes, 1 / len(votes))


def winners(shares: Tensor, clusters: Clusters, count: int) -> tuple[list[int], list[int]]:
    """Return `count` pictures of the clusters that won, in proportion to their shares.

    Each cluster gives the pictures nearest to its centre. Where it has fewer than it may give, they come again, and are
    to be varied.

    Returns:
        Rows of public pictures, and how often each had come before.
    """
    quotas = (shares * count).floor()
    missing = count - int(quotas.sum())
    quotas[torch.argsort(shares * count - quotas, descending=True, stable=True)[:missing]] += 1
    rows, repeats = [], []
    for quota, members in zip(quotas.int().tolist(), clusters.members, strict=True):
        rows += [int(members[place % len(members)]) for place in range(quota)]
        repeats += [place // len(members) for place in range(quota)]
    return rows, repeats
