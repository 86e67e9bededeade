"""DP-SGD (Song et al. 2013; Abadi et al. 2016, arXiv:1607.00133, Algorithm 1): clip every record, sum, add noise.

Adjacency: add or remove one record. Unit: the record (rows of one record are averaged before clipping).
Event: `PoissonGaussianEvent(probability, noise_multiplier)` for each step, with the batch drawn by `poisson_sample`.

Sensitivity: each record of a batch contributes its gradient scaled to norm at most C, and the sum is over the sampled
records; so one record more changes the sum by at most C, attained by a record whose gradient is longer than C. The
released sum is divided by the *expected* batch size, a public number. Frozen coordinates are dropped before clipping,
or, in the posterior variant of random freeze, after it: dropping shortens, so the bound holds there as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from privacy.accounting.events import positive_finite
from privacy.gradients.estimator import Estimator, clip_factors
from privacy.gradients.layers import Shares
from privacy.gradients.per_sample import Traces
from privacy.mechanisms.noise import SecureNoise


class DpSgd(Estimator):
    """Plain DP-SGD.

    Args:
        shapes: of the trainable parameters, by name.
        clip: C, the largest norm of one record's gradient. Public.
        noise_multiplier: noise deviation over C. Public.
        expected_batch: as for every estimator.
        freeze_after_clipping: frozen coordinates still count towards the clip (posterior freeze). Public.
    """

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        *,
        clip: float,
        noise_multiplier: float,
        expected_batch: float,
        freeze_after_clipping: bool = False,
    ) -> None:
        super().__init__(shapes, noise_multiplier=noise_multiplier, expected_batch=expected_batch)
        self.clip = positive_finite("clip", clip)
        self.freeze_after_clipping = freeze_after_clipping

    @property
    def sensitivity(self) -> float:
        """C."""
        return self.clip

    def add(self, traces: Traces) -> None:
        """Without frozen coordinates no record's gradient is ever written out for layers that have a short cut."""
        if self.active is not None and not self.freeze_after_clipping:
            for rows, norms in self.row_blocks(traces):  # (n, d_active) and (n,)
                self._accumulate({"": clip_factors(norms, self.clip) @ rows})
            return
        norms = traces.squared_norms().sqrt()  # (n,)
        broken = ~norms.isfinite()
        if bool(broken.any()):
            traces = traces.without(broken)
            norms = torch.where(broken, torch.zeros_like(norms), norms)
        total = traces.weighted_sum(clip_factors(norms, self.clip))
        self._accumulate(total if self.active is None else {"": self._active_of(total)})

    def _active_of(self, total: Shares) -> torch.Tensor:
        """Return a sum's active coordinates: (d_active,)."""
        assert self.active is not None
        parts = [
            total[name].reshape(-1) if name in total else self.active.new_zeros(math.prod(shape), dtype=torch.float32)
            for name, shape in self.shapes.items()
        ]
        return torch.cat(parts)[self.active]

    def release(self, noise: SecureNoise) -> Shares:
        """As every estimator."""
        if self.active is None:
            noisy = self._release_sums(self.shapes, noise)
        else:
            noisy = self.unflatten(self._release_sums({"": torch.Size([self.active_coordinates])}, noise)[""])
        return {name: value / self.expected_batch for name, value in noisy.items()}
