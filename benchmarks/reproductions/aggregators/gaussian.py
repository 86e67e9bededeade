"""No compression: teachers' gradients as they are, clipped in L2 norm, summed, with noise on every coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.reproductions.aggregators.release import Aggregator, bounded, usable
from privacy.accounting.events import positive_finite

UNIT = 1 << 16  # what a gradient at the clip is in integers: rounding moves it by less than one part in a thousand


@dataclass(frozen=True, kw_only=True)
class ClippedSum(Aggregator):
    """The sum of clipped gradients.

    Privacy:
        A share is an integer vector of norm at most UNIT, checked exactly. A gradient along one axis, of norm `clip`
        or more, has a share of exactly that norm: no bound below 2 UNIT holds.

    Attributes:
        clip: C, largest L2 norm of one gradient.
    """

    clip: float

    def __post_init__(self) -> None:
        """Refuse a clip that is not a positive number.

        Raises:
            InvalidParameter: it is not positive and finite.
        """
        positive_finite("clip", self.clip)

    @property
    def width(self) -> int:
        """One integer for each coordinate."""
        return self.dimension

    @property
    def square_max(self) -> int:
        """UNIT squared."""
        return UNIT**2

    def shares(self, g: Tensor, seed: int) -> Tensor:
        """Scale each gradient so that the clip becomes UNIT, and round it to integers."""
        del seed  # nothing is left to chance
        rows = torch.where(usable(g), g, 0.0).double()
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return bounded((rows * (UNIT / norms.clamp(min=self.clip))).round(), self.square_max)

    def direction(self, released: Tensor) -> Tensor:
        """Return the noisy mean of the clipped gradients, in their own unit."""
        return released.float() * (self.clip / (UNIT * self.teachers))
