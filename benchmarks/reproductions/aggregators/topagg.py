"""TopAgg (`privacy.aggregation.topagg`) among the aggregators that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from benchmarks.reproductions.aggregators.release import Aggregator
from privacy.aggregation import topagg
from privacy.aggregation.topagg_config import TopAggConfig


@dataclass(frozen=True, kw_only=True)
class TopAgg(Aggregator):
    """Sparse sign votes.

    Privacy:
        A share has at most k votes of -1 or 1: squared norm k, attained by every gradient with k coordinates that
        are not zero. The sensitivity is `TopAggConfig.sensitivity`, 2 sqrt(k).

    Attributes:
        k: coordinates for which one teacher may vote; the dimension for the ablation without top-k.
        c: clipping constant of a coordinate before normalisation.
        beta: share of the teachers that must agree; None to give out the noisy mean vote.
        stochastic_sign: ablation switch. Off: a vote is the sign of its coordinate.
    """

    k: int
    c: float
    beta: float | None = None
    stochastic_sign: bool = True

    @property
    def config(self) -> TopAggConfig:
        """The same as the service has it."""
        return TopAggConfig(
            k=self.k,
            c=self.c,
            stddev=self.stddev,
            beta=self.beta or 1.0,
            teachers=self.teachers,
            dimension=self.dimension,
            stochastic_sign=self.stochastic_sign,
            threshold=self.beta is not None,
        )

    @property
    def width(self) -> int:
        """One integer for each coordinate."""
        return self.dimension

    @property
    def square_max(self) -> int:
        """K, the most coordinates for which a teacher votes."""
        return self.k

    def shares(self, g: Tensor, seed: int) -> Tensor:
        """Vote by Algorithm 2."""
        return topagg.topk_sto_sign_grad(g, self.config, seed)

    def direction(self, released: Tensor) -> Tensor:
        """Threshold the noisy votes, or return their mean."""
        return topagg.threshold(released, self.config)
