"""From teachers' gradients to a noisy release: what every aggregator that is compared has in common.

An aggregator turns one teacher's gradient of one image into a row of integers, the teacher's *share*. Shares are
added, discrete Gaussian noise is added to the sum, and what is released is read as a direction. Aggregators differ in
how a share is made and in how the noisy sum is read; the proof is the same for all of them.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

import torch
from torch import Tensor

from privacy.accounting.calibration import stddev_for
from privacy.accounting.events import GaussianEvent
from privacy.aggregation.top_k import side_by_side
from privacy.errors import PrivacyError
from privacy.mechanisms.noise import SecureNoise
from workers.recipes.interface import Budget

STAGE = "aggregated images"
_BLOCK = 1 << 20  # numbers worked on at once


@dataclass(frozen=True, kw_only=True)
class Aggregator(abc.ABC):
    """A way to aggregate gradients, with its public parameters.

    Attributes:
        teachers: N, those without a record included.
        dimension: d, coordinates of one image.
        stddev: parameter of the discrete Gaussian noise on each released integer.
    """

    teachers: int
    dimension: int
    stddev: float

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """Integers that are released for one image."""

    @property
    @abc.abstractmethod
    def square_max(self) -> int:
        """The largest squared L2 norm that a share can have, and does have for some gradient."""

    @abc.abstractmethod
    def shares(self, g: Tensor, seed: int) -> Tensor:
        """Turn gradients (rows, d) float32 into shares (rows, width) of whole numbers. PRIVATE.

        A gradient that is zero or not finite gives a share of zeros. A row's share is a function of that row, its
        position and the seed of its coins.
        """

    @abc.abstractmethod
    def direction(self, released: Tensor) -> Tensor:
        """Read noisy sums (m, width) int64 as directions (m, d) float32: post-processing."""

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of an image's sum of shares to one record: 2 sqrt(square_max), rounded up.

        Proof: a record that is added or removed lies in one shard, so it changes the gradient of one teacher, from
        anything to anything, hence one share, from u to v, each of norm at most B = sqrt(square_max).
        |u - v| <= 2 B. In every aggregator here the share of -g is minus that of g for a gradient whose coins cannot
        fall otherwise, so that v = -u attains it.
        """
        bound = 2.0 * math.sqrt(self.square_max)
        while Fraction(bound) ** 2 < 4 * self.square_max:
            bound = math.nextafter(bound, math.inf)
        return bound

    def event(self, images: int) -> GaussianEvent:
        """Return the event of so many images: one release each."""
        return GaussianEvent.of_discrete_noise(self.sensitivity, self.stddev, images)

    def affording(self, budget_nano: int, images: int) -> Self:
        """Return this aggregator with the least noise with which so many images fit into a budget."""
        return replace(self, stddev=stddev_for(self.sensitivity, budget_nano, images, discrete=True))

    def sums(self, gradients: Tensor, coins: torch.Generator) -> Tensor:
        """Add up the shares of teachers' gradients (n, m, d): (m, width) int64. PRIVATE; sums of parts add up."""
        images = gradients.shape[1]
        seed = int(torch.randint(1 << 62, (1,), generator=coins))
        n = max(1, _BLOCK // (images * max(self.dimension, self.width)))

        def add(start: int) -> Tensor:
            g = gradients[start : start + n].detach().float()  # (n, m, d)
            shares = self.shares(g.reshape(-1, self.dimension), seed + start)
            exact = torch.float64 if shares.is_floating_point() else torch.int64
            return shares.view(-1, images, self.width).sum(dim=0, dtype=exact).long()

        total = torch.zeros(images, self.width, dtype=torch.int64)
        for part in side_by_side(add, range(0, len(gradients), n), gradients.device):
            total += part
        return total


def privatise(aggregator: Aggregator, private_sums: Tensor, budget: Budget, noise: SecureNoise) -> Tensor:
    """Pay for one release for each image, then add the noise.

    Args:
        aggregator: with its noise.
        private_sums: (m, width) of all teachers.
        budget: is charged `aggregator.event(m)` before the noise is drawn.
        noise: secret.

    Returns:
        (m, width) int64. Anything may be computed from it.
    """
    budget.charge(aggregator.event(len(private_sums)), STAGE)
    drawn = noise.discrete_gaussian(tuple(private_sums.shape), aggregator.stddev)
    return private_sums + torch.from_numpy(drawn)


def aggregate(
    aggregator: Aggregator, gradients: Tensor, budget: Budget, coins: torch.Generator, noise: SecureNoise
) -> Tensor:
    """Privatise teachers' gradients (N, m, d), and return the directions (m, d)."""
    return aggregator.direction(privatise(aggregator, aggregator.sums(gradients, coins), budget, noise))


def bounded(rows: Tensor, square_max: int) -> Tensor:
    """Scale down rows of whole numbers (n, w) whose squared norm exceeds `square_max`, rounding them towards zero.

    Others stay as they are. Sums of squares stay far below 2^53, so that double precision is exact.

    Raises:
        PrivacyError: a row still exceeds the bound (never, unless this function is broken).
    """
    rows = rows.double()
    squares = rows.square().sum(dim=1)  # (n,) exact
    long = squares > square_max
    if bool(long.any()):
        shrink = math.sqrt(square_max) * (1 - 2.0**-40) / squares[long].sqrt()
        shrunk = (rows[long] * shrink[:, None]).trunc()
        if float(shrunk.square().sum(dim=1).max()) > square_max:
            raise PrivacyError("a row exceeds its bound")
        rows = rows.masked_scatter(long[:, None], shrunk)
    return rows


def usable(g: Tensor) -> Tensor:
    """Mark the gradients (rows, d) that have a direction: finite, and not zero. Returns (rows, 1)."""
    largest = g.abs().amax(dim=1, keepdim=True)
    return torch.isfinite(largest) & (largest > 0)
