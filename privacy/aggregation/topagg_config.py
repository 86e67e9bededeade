"""Public parameters and cost of TopAgg. Imports no torch, because the web process uses it."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

from privacy.accounting.events import GaussianEvent, positive_finite
from privacy.errors import InvalidParameter

TEACHERS_MAX = 1 << 20
DIMENSION_MAX = 1 << 24
C_MIN = 1e-37


@dataclasses.dataclass(frozen=True)
class TopAggConfig:
    """Parameters of Algorithms 2 and 3 of Wang et al. 2021 (arXiv:2103.11109).

    Attributes:
        k: coordinates for which one teacher may vote.
        c: clipping constant of a coordinate before normalisation; if small, every vote is a plain sign.
        stddev: the paper's sigma, of the discrete Gaussian noise on each coordinate of a vote sum.
        beta: share of the teachers that must agree, in (0, 1].
        teachers: the paper's N, empty shards included.
        dimension: the paper's d, coordinates of one image.
        top_k: ablation switch. Off: a teacher votes for all d coordinates, and pays for it.
        stochastic_sign: ablation switch. Off: a vote is the sign of its coordinate.
        threshold: ablation switch. Off: the release is the noisy mean vote.
    """

    k: int
    c: float
    stddev: float
    beta: float
    teachers: int
    dimension: int
    top_k: bool = True
    stochastic_sign: bool = True
    threshold: bool = True

    def __post_init__(self) -> None:
        for name, highest in (("teachers", TEACHERS_MAX), ("dimension", DIMENSION_MAX), ("k", self.dimension)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
                raise InvalidParameter(name, value, f"it must be an integer between 1 and {highest}")
        for name in ("c", "stddev", "beta"):
            object.__setattr__(self, name, positive_finite(name, getattr(self, name)))
        if self.c < C_MIN:
            raise InvalidParameter("c", self.c, f"it must be at least {C_MIN}, so that clipped floats are not zero")
        if self.beta > 1:
            raise InvalidParameter("beta", self.beta, "it is a share of the teachers, so at most 1")

    @property
    def votes_max(self) -> int:
        """Return the most coordinates for which one teacher votes on one image: k, or d without the top-k step."""
        return self.k if self.top_k else self.dimension

    @property
    def sensitivity(self) -> float:
        """Return the L2 sensitivity of one image's vote sum to one unit: 2 sqrt(k) (Lemma 1), rounded up.

        Proof: a unit is in one shard, so its presence changes one teacher's votes, from u to v. Both are in {-1, 0,
        1}^d with at most k nonzero coordinates. |u - v| <= |u| + |v| <= 2 sqrt(k), attained by v = -u. Empty shards,
        zero gradients and NaN vote zero, which only shortens u or v.
        """
        bound = 2.0 * math.sqrt(self.votes_max)
        while Fraction(bound) ** 2 < 4 * self.votes_max:
            bound = math.nextafter(bound, math.inf)
        return bound

    def event(self, images: int) -> GaussianEvent:
        """Return the event of `images` releases, one per image; raise InvalidParameter if stddev is too small."""
        return GaussianEvent.of_discrete_noise(self.sensitivity, self.stddev, images)
