"""TopAgg-SGD (Wang et al. 2021, arXiv:2103.11109, Algorithm 4): keep the largest coordinates of each clipped gradient.

Adjacency: add or remove one record. Unit: the record. Event: as DP-SGD's, with the noise measured against a smaller
sensitivity.

Sensitivity: a record's gradient g is clipped to norm C; NormTopK keeps its largest coordinates as long as their squared
norm stays at most k ||g||^2. So each record contributes a vector of norm at most sqrt(k) C, attained where the kept
coordinates carry exactly the share k. Which coordinates are kept depends on that record alone, so nothing else moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Unpack

import numpy as np
import numpy.typing as npt
import torch

from privacy.accounting.events import positive_finite
from privacy.errors import InvalidParameter
from privacy.gradients.estimator import Common, Estimator
from privacy.gradients.integers import squares, whole
from privacy.gradients.layers import Shares
from privacy.gradients.per_sample import Traces
from privacy.mechanisms.noise import SecureNoise


def norm_top_k(rows: torch.Tensor, keep: float) -> torch.Tensor:
    """Zero all but the largest coordinates whose squared norm is at most `keep` times the row's.

    Args:
        rows: (n, d) float32. Private.
        keep: k in (0, 1]. Public.

    Returns:
        (n, d). Where the bound falls among coordinates of one size, none of these is kept.
    """
    if keep == 1:
        return rows
    squares = rows.square()
    if rows.device.type == "cpu":
        largest_left_out = torch.from_numpy(_largest_left_out(squares.numpy(), keep))
    else:
        ordered = squares.sort(dim=1, descending=True).values  # (n, d)
        running = ordered.double().cumsum(dim=1)
        fits = (running <= keep * running[:, -1:]).sum(dim=1, keepdim=True)
        largest_left_out = ordered.gather(1, fits.clamp(max=rows.shape[1] - 1))[:, 0]
    return torch.where(squares > largest_left_out[:, None], rows, torch.zeros_like(rows))


def _largest_left_out(squares: npt.NDArray[np.float32], keep: float) -> npt.NDArray[np.float32]:
    """Return the largest square of each row (n, d) that does not fit any more: (n,), zero for a row of zeros.

    What is left out sums to at least (1 - k) of the row, so its largest is above (1 - k) / d of the row, and only what
    is above half of that has to be sorted. NumPy's sort is vectorised: on a CPU many times as fast as torch's.
    """
    found = np.zeros(len(squares), dtype=np.float32)
    for place, row in enumerate(squares):
        total = row.sum(dtype=np.float64)
        ordered = np.sort(row[row > total * (1 - keep) / (2 * len(row))])[::-1]
        fits = int(np.searchsorted(np.cumsum(ordered, dtype=np.float64), keep * total, side="right"))
        if len(ordered):
            found[place] = ordered[min(fits, len(ordered) - 1)]
    return found


class TopAggSgd(Estimator):
    """DP-SGD on gradients of which each record keeps the largest coordinates.

    Args:
        shapes: of the trainable parameters, by name.
        clip: C. Public.
        keep: k in (0, 1], the share of the squared norm that is kept; 1 is plain DP-SGD. Public.
        common: of every estimator; the noise multiplier is noise deviation over sqrt(k) C.
    """

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        *,
        clip: float,
        keep: float,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(shapes, **common)
        self.clip = positive_finite("clip", clip)
        if not 0 < keep <= 1:
            raise InvalidParameter("keep", keep, "the share of the squared norm that is kept is above 0 and at most 1")
        self.keep = float(keep)

    @property
    def sensitivity(self) -> float:
        """sqrt(k) C."""
        return math.sqrt(self.keep) * self.clip

    def add(self, traces: Traces) -> None:
        """Clip, then keep: the kept coordinates are the same in the other order, and cheaper to find."""
        for block in self.blocks(traces):
            rows = self.rows(block)  # (n, d_active)
            scales = self.scales(squares(rows).sqrt(), self.clip, 1 / math.sqrt(self.keep))  # of the whole gradient
            self._add_parts({"": whole(norm_top_k(rows, self.keep), scales)}, block.present)

    def release(self, noise: SecureNoise) -> Shares:
        flat = self._release_sums({"": torch.Size([self.active_coordinates])}, noise)[""]
        return self.unflatten(flat / self.expected_batch)
