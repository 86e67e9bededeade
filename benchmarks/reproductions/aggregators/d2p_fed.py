"""D2P-Fed for teachers' gradients: Algorithms 5 and 6 of Wang et al. 2021 (arXiv:2103.11109).

A gradient is turned by a public random rotation, which spreads it evenly over its coordinates; each coordinate is cut
to [-c, c] and rounded, at random and without bias, to one of K levels; levels are summed with discrete Gaussian noise
and turned back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.reproductions.aggregators.release import Aggregator, usable
from privacy.accounting.events import positive_finite
from privacy.errors import InvalidParameter


@dataclass(frozen=True, kw_only=True)
class D2PFed(Aggregator):
    """K levels of every rotated coordinate.

    Privacy:
        A share is 2 r - (K - 1) for the level r in {0, ..., K - 1} of each of the D rotated coordinates: whole
        numbers from -(K - 1) to K - 1, twice a level apart, so that a teacher who abstains, with zero, lies in the
        middle of the same box. Its squared norm is at most (K - 1)^2 D, whatever the coins, and the gradient that is
        rotated onto a corner of [-c, c]^D has exactly that: the sensitivity is 2 (K - 1) sqrt(D), in levels
        (K - 1) sqrt(D). Neither sqrt(D) nor the K sqrt(k) of the paper's section 5.3 is it: no k is in the algorithm.
        The rotation is public and drawn beforehand. It is linear and orthogonal, but the bound does not use that: it
        follows from the levels alone.

    Attributes:
        levels: K, at least 2.
        clip: c, of one rotated coordinate.
        rotation_seed: public seed of the rotation's signs.
        beta: share of the teachers that must agree, as Algorithm 6 has it in units of c; None to privatise the mean.
    """

    levels: int
    clip: float
    rotation_seed: int = 0
    beta: float | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no levels.

        Raises:
            InvalidParameter: a field is out of range.
        """
        if self.levels < 2:
            raise InvalidParameter("levels", self.levels, "a coordinate needs two levels at least")
        positive_finite("clip", self.clip)

    @property
    def width(self) -> int:
        """D: the next power of two, for the rotation."""
        return 1 << (self.dimension - 1).bit_length()

    @property
    def square_max(self) -> int:
        """(K - 1)^2 D."""
        return (self.levels - 1) ** 2 * self.width

    def rotate(self, g: Tensor) -> Tensor:
        """Turn rows (n, d) into rows (n, D) of the same norm: random signs, then the Walsh-Hadamard transform."""
        padded = torch.nn.functional.pad(g, (0, self.width - g.shape[1]))
        return _walsh_hadamard(padded * self._signs())

    def rotate_back(self, rotated: Tensor) -> Tensor:
        """Undo `rotate`: (n, D) to (n, d)."""
        return (_walsh_hadamard(rotated) * self._signs())[:, : self.dimension]

    def _signs(self) -> Tensor:
        stream = torch.Generator().manual_seed(self.rotation_seed)
        return torch.randint(2, (self.width,), generator=stream).float() * 2 - 1

    def shares(self, g: Tensor, seed: int) -> Tensor:
        """Round each rotated coordinate to a level: Algorithm 5."""
        top = self.levels - 1
        rotated = self.rotate(torch.where(usable(g), g, 0.0))  # (rows, D)
        there = usable(rotated)  # a sum of huge numbers may be none
        place = (rotated.clamp(-self.clip, self.clip) / self.clip + 1) * (top / 2)  # (rows, D) in [0, K - 1]
        coins = torch.rand(place.shape, generator=torch.Generator().manual_seed(seed))  # in [0, 1)
        level = (place.floor() + (coins < place - place.floor())).clamp(0, top)  # the clamp is for rounding alone
        return torch.where(there, 2 * level - top, 0.0).int()

    def direction(self, released: Tensor) -> Tensor:
        """Turn the noisy mean back; with a threshold, keep the directions on which enough teachers agree."""
        mean = self.rotate_back(released.float() * (self.clip / ((self.levels - 1) * self.teachers)))  # (m, d)
        if self.beta is None:
            return mean
        least = self.beta * self.clip
        return (mean >= least).float() - (mean <= -least).float()


def _walsh_hadamard(rows: Tensor) -> Tensor:
    """Transform rows (n, D), D a power of two, orthonormally: each stage adds and subtracts pairs."""
    n, width = rows.shape
    for stage in range(width.bit_length() - 1):
        pairs = rows.view(n, -1, 2, 1 << stage)
        left, right = pairs[:, :, 0], pairs[:, :, 1]
        rows = torch.stack([left + right, left - right], dim=2).view(n, width)
    return rows / math.sqrt(width)
