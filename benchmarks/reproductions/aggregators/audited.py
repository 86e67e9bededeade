"""The aggregators of this folder, set up for an audit: each on a neighbour that attains its sensitivity.

A record turns the gradient of one teacher into its opposite; the other teachers have none. What is scored is the noisy
sum itself, projected on what the record changes. FetchSGD has two more games. Its votes can all be hashed into one
bucket, which only the bound on a sketch holds back; and its choice of coordinates can hang on one teacher's vote, which
is of no use to an auditor as long as the choice is made after the noise.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.audited import Audited, Scores
from benchmarks.budgets import NoLedger
from benchmarks.reproductions.aggregators import release
from benchmarks.reproductions.aggregators.d2p_fed import D2PFed
from benchmarks.reproductions.aggregators.fetch_sgd import FetchSgd, hashes
from benchmarks.reproductions.aggregators.gaussian import ClippedSum
from benchmarks.reproductions.aggregators.release import Aggregator
from benchmarks.reproductions.aggregators.topagg import TopAgg
from privacy.accounting.filter import NANO
from privacy.mechanisms.noise import SecureNoise

_D, _K, _TEACHERS = 64, 16, 3
_APART = 19  # a seed of hashes under which no two of the first 32 coordinates meet in 512 buckets
_SIDE = 25  # teachers who vote for each of two sets of coordinates


def topagg() -> TopAgg:
    """Votes for 16 of 64 coordinates."""
    return TopAgg(teachers=_TEACHERS, dimension=_D, stddev=4.0, k=_K, c=1e-5)


def clipped_sum() -> ClippedSum:
    """Gradients clipped at norm 1."""
    return ClippedSum(teachers=_TEACHERS, dimension=_D, stddev=4.0, clip=1.0)


def d2p_fed() -> D2PFed:
    """Seven levels of 64 rotated coordinates."""
    return D2PFed(teachers=_TEACHERS, dimension=_D, stddev=4.0, levels=7, clip=1.0)


def fetch_sgd(columns: int = 512) -> FetchSgd:
    """Votes for 16 of 64 coordinates in a sketch of three rows, by default with no two of the first 32 in a bucket."""
    return FetchSgd(
        teachers=_TEACHERS, dimension=_D, stddev=4.0, k=_K, c=1e-5, rows=3, columns=columns, hash_seed=_APART
    )


def worst_gradient(of: Aggregator) -> Tensor:
    """A gradient (d,) whose share has the largest norm, eight times beyond every clip."""
    g = torch.zeros(_D)
    if isinstance(of, D2PFed):
        return of.rotate_back(torch.full((1, _D), 8 * of.clip))[0]  # onto a corner of the box
    if isinstance(of, ClippedSum):
        g[0] = 8 * of.clip
    elif isinstance(of, FetchSgd) and of.columns < _D:
        buckets, signs = hashes(of)
        together = (buckets[0] == buckets[0].mode().values).nonzero().squeeze(1)[: of.k]
        g[together] = signs[0, together]  # all add up in one bucket of the first row
    else:
        g[:_K] = 8.0
    return g


def audited_aggregator(of: Aggregator, mu: float, draws: int = 600) -> Audited:
    """The noisy sum of an aggregator, with the noise that mu needs; each draw is an image."""
    paid = of.affording(int(mu**2 * NANO), 1)
    worst = worst_gradient(of)

    def sums(present: bool, images: int) -> Tensor:
        gradients = torch.zeros(_TEACHERS, images, _D)
        gradients[1] = worst if present else -worst
        return paid.sums(gradients, torch.Generator().manual_seed(0))

    def draw(present: bool, images: int, secret: bytes) -> Scores:
        released = release.privatise(paid, sums(present, images), NoLedger(), SecureNoise.derive(secret, "sums"))
        scores: Scores = (released.double() @ (sums(True, 1) - sums(False, 1))[0].double()).numpy()
        return scores

    return Audited(type(of).__name__, paid.event(1), draw, draws)


def audited_selection(mu: float) -> Audited:
    """FetchSGD where one teacher decides which of two sets of coordinates has more votes."""
    coordinates = torch.arange(_D)
    sides = torch.stack([coordinates < _K, (coordinates >= _K) & (coordinates < 2 * _K)]).float()
    paid = replace(fetch_sgd(), teachers=2 * _SIDE + 1).affording(int(mu**2 * NANO), 1)

    def draw(present: bool, images: int, secret: bytes) -> Scores:
        gradients = torch.cat([sides.repeat(_SIDE, 1), sides[int(present)][None]])  # (N, d)
        votes = gradients[:, None].expand(-1, images, -1)
        coins, noise = torch.Generator().manual_seed(0), SecureNoise.derive(secret, "sums")
        directions = release.aggregate(paid, votes, NoLedger(), coins, noise)
        scores: Scores = (directions @ (sides[1] - sides[0])).double().numpy()
        return scores

    return Audited("FetchSgd, the choice of coordinates", paid.event(1), draw, draws=600)
