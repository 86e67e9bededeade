"""DP-SGD (Song et al. 2013; Abadi et al. 2016, arXiv:1607.00133, Algorithm 1): clip every record, sum, add noise.

Adjacency: add or remove one record. Unit: the record (rows of one record are averaged before clipping).
Event: `PoissonGaussianEvent(probability, noise_multiplier)` for each step, with the batch drawn by `poisson_sample`.

Sensitivity: each sampled record contributes its gradient scaled to norm at most C, in whole steps of a grid; so one
more record changes the sum by at most C, attained (up to ROOM of `privacy.gradients.integers`) by a gradient longer
than C. The released sum is divided by the *expected* batch size, a public number. Frozen coordinates are dropped before
clipping or, in the posterior variant of random freeze, after it: dropping coordinates only shortens a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import torch

from privacy.accounting.events import positive_finite
from privacy.gradients.estimator import Common, Estimator
from privacy.gradients.integers import Outer, Part, exact_sums, parted, squares, whole, whole_factors
from privacy.gradients.layers import Shares
from privacy.gradients.per_sample import Traces
from privacy.mechanisms.noise import SecureNoise


class DpSgd(Estimator):
    """Plain DP-SGD.

    Args:
        clip: C, the largest norm of one record's gradient and the sensitivity. Public.
        common: parameters of every estimator. The noise multiplier is the noise's standard deviation over C.
        freeze_after_clipping: True if frozen coordinates still count towards the clip (posterior freeze). Public.
    """

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        *,
        clip: float,
        freeze_after_clipping: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(shapes, **common)
        self.clip = self.sensitivity = positive_finite("clip", clip)
        self.freeze_after_clipping = freeze_after_clipping

    def add(self, traces: Traces) -> None:
        """Clip each gradient and add it to the sum.

        Outer products are written out only if frozen coordinates are dropped before clipping.
        """
        if self.active is not None and not self.freeze_after_clipping:
            super().add(traces)
            return
        parts = traces.parts()
        outers = {name: part for name, part in parts.items() if isinstance(part, Outer)}
        written = {name: part for name, part in parts.items() if not isinstance(part, Outer)}
        rows = torch.cat([traces.zeros(0), *(part.flatten(1) for part in written.values())], dim=1)  # (n, d written)
        measured = {name: (squares(outer.left), squares(outer.right)) for name, outer in outers.items()}
        lengths = torch.stack([squares(rows), *(left * right for left, right in measured.values())]).sum(dim=0)  # (n,)
        scales = self.scales(lengths.sqrt(), self.clip)
        whole_outers = {name: whole_factors(outer, scales, measured[name]) for name, outer in outers.items()}
        sums = exact_sums([({"": whole(rows, scales), **whole_outers}, traces.present)], self.bound)
        sums |= parted(sums.pop(""), {name: part.shape[1:] for name, part in written.items()})
        if self.active is None:
            self._add_sums({name: sums[name] for name in self.shapes if name in sums})
        else:
            every = [sums[name] if name in sums else self._nothing(shape) for name, shape in self.shapes.items()]
            self._add_sums({"": torch.cat([value.reshape(-1) for value in every])[self.active]})

    def contributions(self, rows: torch.Tensor) -> Mapping[str, Part]:
        """Clip each gradient to norm C."""
        return {"": whole(rows, self.scales(squares(rows).sqrt(), self.clip))}

    def privatise(self, noise: SecureNoise) -> Shares:
        if self.active is not None:
            return super().privatise(noise)
        return {name: value / self.expected_batch for name, value in self._privatise_sums(self.shapes, noise).items()}
