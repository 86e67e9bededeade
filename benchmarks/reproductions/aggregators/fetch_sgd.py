"""FetchSGD for teachers' gradients: Algorithm 7 of Wang et al. 2021 (arXiv:2103.11109), made private.

Each teacher votes as in TopAgg; the votes are hashed into a count sketch; sketches are summed; the coordinates with the
k largest estimates are what the student sees. The paper adds noise to these k, whose *choice* has by then looked at
the data without any: one teacher can swap all of them. Here the noise goes into the sketch, and everything after it
is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.reproductions.aggregators.release import Aggregator, bounded
from privacy.aggregation.top_k import choose_top_k
from privacy.aggregation.topagg import topk_sto_sign_grad
from privacy.aggregation.topagg_config import TopAggConfig
from privacy.errors import InvalidParameter

UNIT = 1 << 8  # what one vote is in integers, so that a sketch can be scaled down a little


@dataclass(frozen=True, kw_only=True)
class FetchSgd(Aggregator):
    """A count sketch of sparse sign votes.

    Privacy:
        k votes that nowhere meet in a bucket make a sketch of squared norm R k, with R rows. Votes that meet can make
        it longer, up to R k^2, if the gradient was made for that; so a teacher's sketch is scaled down to R k where it
        is longer, checked in integers. Votes that nowhere meet attain the bound, and their opposites its double: the
        sensitivity is 2 UNIT sqrt(R k). Hashes are public and drawn beforehand.

    Attributes:
        k: coordinates for which one teacher may vote, and which are kept of the release.
        c: clipping constant of a coordinate before normalisation, as in TopAgg.
        rows: R, odd.
        columns: W, buckets of a row.
        hash_seed: public seed of the hashes.
    """

    k: int
    c: float
    rows: int
    columns: int
    hash_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a sketch without a median.

        Raises:
            InvalidParameter: a field is out of range.
        """
        if self.rows < 1 or self.rows % 2 == 0:
            raise InvalidParameter("rows", self.rows, "an odd number of rows has a median")
        if self.columns < 1:
            raise InvalidParameter("columns", self.columns, "a row has one bucket at least")

    @property
    def width(self) -> int:
        """Buckets."""
        return self.rows * self.columns

    @property
    def square_max(self) -> int:
        """R k, in the unit of one vote."""
        return UNIT**2 * self.rows * self.k

    @property
    def votes(self) -> TopAggConfig:
        """How a teacher votes."""
        return TopAggConfig(
            k=self.k, c=self.c, stddev=self.stddev, beta=1.0, teachers=self.teachers, dimension=self.dimension
        )

    def shares(self, g: Tensor, seed: int) -> Tensor:
        """Vote, and sketch the votes: sums of a few whole numbers, exact in single precision."""
        votes = topk_sto_sign_grad(g, self.votes, seed).T.float()  # (d, rows)
        buckets, signs = hashes(self)  # (R, d) each
        sketches = torch.zeros(self.width, len(g))
        for bucket, sign in zip(buckets, signs, strict=True):
            sketches.index_add_(0, bucket, votes * (UNIT * sign[:, None]))
        return bounded(sketches.T, self.square_max)

    def direction(self, released: Tensor) -> Tensor:
        """Estimate each coordinate by the median over the rows, and keep the k largest: unsketch and top-k."""
        buckets, signs = hashes(self)  # (R, d) each
        estimates = released.float()[:, buckets] * signs  # (m, R, d)
        mean = estimates.median(dim=1).values / (UNIT * self.teachers)  # (m, d)
        up, down, _, _ = choose_top_k(mean, self.k)
        return torch.where(up | down, mean, 0.0)


def hashes(of: FetchSgd) -> tuple[Tensor, Tensor]:
    """Draw each coordinate's bucket and sign in each row: (R, d) int64 over all R W buckets, and (R, d) +-1."""
    stream = torch.Generator().manual_seed(of.hash_seed)
    shape = (of.rows, of.dimension)
    buckets = torch.randint(of.columns, shape, generator=stream) + torch.arange(of.rows)[:, None] * of.columns
    return buckets, torch.randint(2, shape, generator=stream).float() * 2 - 1
