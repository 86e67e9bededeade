"""The aggregators of this folder, broken on purpose, one mistake each: what their audits must flag.

As in `broken_mechanisms`, each is a context in which the code runs with one piece replaced. Mistakes in a sensitivity
must hold already while the noise is chosen.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from unittest import mock

import torch
from torch import Tensor

from benchmarks.reproductions.aggregators import fetch_sgd, gaussian, release
from benchmarks.reproductions.aggregators.d2p_fed import D2PFed
from benchmarks.reproductions.aggregators.gaussian import ClippedSum
from benchmarks.reproductions.aggregators.release import Aggregator
from privacy.mechanisms.noise import SecureNoise
from workers.recipes.interface import Budget


def one_norm_for_two() -> AbstractContextManager[object]:
    """Price a record as if its teacher had no share without it: half of what changes."""
    half = property(lambda self: math.sqrt(self.square_max))
    return mock.patch.object(Aggregator, "sensitivity", half)


def levels_forgotten() -> AbstractContextManager[object]:
    """Take the sensitivity of D2P-Fed for that of signs, 2 sqrt(D), whatever the number of levels."""
    return mock.patch.object(D2PFed, "square_max", property(lambda self: self.width))


def levels_without_end() -> AbstractContextManager[object]:
    """Round rotated coordinates to levels without cutting them first."""

    def uncut(self: D2PFed, g: Tensor, _seed: int) -> Tensor:
        return (self.rotate(g) / self.clip * (self.levels - 1)).round().int()

    return mock.patch.object(D2PFed, "shares", uncut)


def gradients_beyond_clip() -> AbstractContextManager[object]:
    """Sum gradients as long as they are."""

    def unclipped(self: ClippedSum, g: Tensor, _seed: int) -> Tensor:
        return (g * (gaussian.UNIT / self.clip)).round().long()

    return mock.patch.object(ClippedSum, "shares", unclipped)


def sketches_beyond_bound() -> AbstractContextManager[object]:
    """Sum sketches as long as they are, votes that meet in a bucket included."""
    return mock.patch.object(fetch_sgd, "bounded", lambda rows, _square_max: rows)


def noise_after_selection() -> AbstractContextManager[object]:
    """Choose FetchSGD's k coordinates by the exact votes, and add the noise then: line 9 of Algorithm 7."""

    def chosen_first(
        of: Aggregator, gradients: Tensor, budget: Budget, coins: torch.Generator, noise: SecureNoise
    ) -> Tensor:
        budget.charge(of.event(gradients.shape[1]), release.STAGE)
        chosen = of.direction(of.sums(gradients, coins)) * of.teachers  # (m, d), in votes
        drawn = noise.discrete_gaussian(tuple(chosen.shape), of.stddev)
        return (chosen + torch.from_numpy(drawn) / fetch_sgd.UNIT) / of.teachers

    return mock.patch.object(release, "aggregate", chosen_first)
