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

_STRIDE = 64  # of the coordinates that thresholds are taken from
_MARGIN = 0.02  # of the squared norm: how far from the last threshold the true one is looked for
_WIDER = 8  # times, where the sample misled
_BLOCK = 512  # coordinates whose squares are added in float32
_TINY = 1e-300


def norm_top_k(rows: torch.Tensor, keep: float) -> torch.Tensor:
    """Zero all but the largest coordinates whose squared norm is at most `keep` times the row's, in place.

    Args:
        rows: (n, d) float32. Private.
        keep: k in (0, 1]. Public.

    Returns:
        (n, d). Where the bound falls among coordinates of one size, none of these is kept.
    """
    if keep == 1:
        return rows
    if rows.device.type == "cpu":
        for row in rows:
            torch.hardshrink(row, _largest_left_out(row.numpy(), keep), out=row)
        return rows
    squares = rows.square()
    ordered = squares.sort(dim=1, descending=True).values  # (n, d)
    running = ordered.double().cumsum(dim=1)
    fits = (running <= keep * running[:, -1:]).sum(dim=1, keepdim=True)
    largest_left_out = ordered.gather(1, fits.clamp(max=rows.shape[1] - 1))
    return rows.masked_fill_(squares <= largest_left_out, 0)


@np.errstate(over="ignore", invalid="ignore")
def _largest_left_out(row: npt.NDArray[np.float32], keep: float) -> float:
    """Return the largest magnitude of a row (d,) that does not fit any more; zero for a row of zeros.

    Found by adding up what exceeds a threshold, not by sorting: two thresholds, the first from a sample of the
    coordinates and the second by how much that one missed, leave few coordinates in doubt. Only these are
    sorted. Should the sample mislead, more are.
    """
    limit = keep * _above(row, 0.0)
    if not 0 < limit < math.inf:
        return 0.0
    sample = np.sort(np.abs(row[::_STRIDE]))[::-1]
    running = np.cumsum(np.square(sample, dtype=np.float64))
    running *= limit / keep / max(running[-1], _TINY)
    high, above, missing, at = math.inf, 0.0, 0.0, 0  # `above`: the squared norm of what exceeds `high`
    for margin, back in ((0.0, 0), (_MARGIN, 1)) if len(sample) > _STRIDE else ():
        at = max(0, int(np.searchsorted(running, limit * (1 - margin) + missing)) - back)
        threshold = float(sample[min(at, len(sample) - 1)])
        found = _above(row, threshold)
        if found <= limit and threshold < high:
            high, above = threshold, found
        missing += limit - found if margin == 0 else 0.0
    magnitudes, step = np.abs(row), 1
    while True:
        at = max(at, int(np.searchsorted(running, limit * (1 + _MARGIN) + missing))) + step
        low = float(sample[at]) if at < len(sample) and high < math.inf else 0.0
        doubtful = np.sort(magnitudes[_between(magnitudes, low, high)])[::-1]
        fits = int(np.searchsorted(np.cumsum(np.square(doubtful, dtype=np.float64)), limit - above, side="right"))
        if fits < len(doubtful):
            return float(doubtful[fits])
        if low == 0:
            return 0.0
        step *= _WIDER


def _between(magnitudes: npt.NDArray[np.float32], low: float, high: float) -> npt.NDArray[np.intp]:
    """Return the places of magnitudes (d,) in (low, high].

    As integers, floats that are not negative keep their order; one comparison without signs then tells both ends.
    """
    first, last = np.array([low, high], np.float32).view(np.int32)
    return np.flatnonzero((magnitudes.view(np.int32) - (first + np.int32(1))).view(np.uint32) < np.uint32(last - first))


def _above(row: npt.NDArray[np.float32], threshold: float) -> float:
    """Return the squared norm of the coordinates of a row (d,) that are larger than a threshold."""
    left = torch.hardshrink(torch.from_numpy(row), threshold).numpy() if threshold else row
    end = len(left) // _BLOCK * _BLOCK
    blocks = left[:end].reshape(-1, _BLOCK)
    return float(np.vecdot(blocks, blocks).sum(dtype=np.float64) + np.dot(left[end:], left[end:]))


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

    def privatise(self, noise: SecureNoise) -> Shares:
        flat = self._privatise_sums({"": torch.Size([self.active_coordinates])}, noise)[""]
        return self.unflatten(flat / self.expected_batch)
