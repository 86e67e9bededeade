"""TopAgg-SGD (Wang et al. 2021, arXiv:2103.11109, Algorithm 4): keep the largest coordinates of each clipped gradient.

Adjacency: add or remove one record. Unit: the record. Event: that of DP-SGD, with noise relative to a smaller
sensitivity.

Sensitivity: a record's gradient g is clipped to norm C; NormTopK keeps its largest coordinates as long as their squared
norm stays at most k ||g||^2. So each record contributes a vector of norm at most sqrt(k) C, attained where the kept
coordinates carry exactly the share k. Which coordinates are kept depends on that record alone.
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
from privacy.gradients.integers import Part, squares, whole

_STRIDE = 64  # stride of the sample that estimates how many coordinates to sort
_MARGIN = 1.6  # factor on the estimate
_WIDER = 3  # further factor if the estimate was too small
_BLOCK = 128  # coordinates whose squares are added in float32


def norm_top_k(rows: torch.Tensor, keep: float, lengths: torch.Tensor) -> torch.Tensor:
    """Keep the largest coordinates of each row, up to a share `keep` of its squared norm. Zero the others, in place.

    Args:
        rows: (n, d) float32. Private.
        keep: k in (0, 1]. Public.
        lengths: (n,) the rows' squared norms. Private.

    Returns:
        (n, d). Of coordinates with equal magnitude, either all are kept or none.
    """
    if keep == 1:
        return rows
    if rows.device.type == "cpu":
        for row, length in zip(rows, lengths.tolist(), strict=True):
            torch.hardshrink(row, _largest_left_out(row.numpy(), keep, length), out=row)
        return rows
    squares = rows.square()
    ordered = squares.sort(dim=1, descending=True).values  # (n, d)
    fits = (ordered.double().cumsum(dim=1) <= keep * lengths[:, None]).sum(dim=1, keepdim=True)
    largest_left_out = ordered.gather(1, fits.clamp(max=rows.shape[1] - 1))
    return rows.masked_fill_(squares <= largest_left_out, 0)


@np.errstate(over="ignore", invalid="ignore")
def _largest_left_out(row: npt.NDArray[np.float32], keep: float, length: float) -> float:
    """Return the largest magnitude in a row (d,) that is not kept; zero if all are, or the norm is 0 or not finite.

    Sort only the largest coordinates: as many as a sample suggests, or more if that was too few.
    """
    if not 0 < length < math.inf:
        return 0.0
    magnitudes = np.abs(row).view(np.int32)  # as integers, non-negative floats keep their order
    sample = np.sort(magnitudes[::_STRIDE])[::-1].view(np.float32)
    many = int((_fitting(sample, keep * float(np.dot(sample, sample))) + 1) * _STRIDE * _MARGIN)
    while True:
        many = min(many, len(row))
        some = np.partition(magnitudes, len(row) - many)[len(row) - many :] if many < len(row) else magnitudes
        largest = np.sort(some)[::-1].view(np.float32)
        fits = _fitting(largest, keep * length)
        if fits < many:
            return float(largest[fits])
        if many == len(row):
            return 0.0
        many *= _WIDER


def _fitting(descending: npt.NDArray[np.float32], limit: float) -> int:
    """Return how many of the magnitudes (d,), from the first, have a joint squared norm of at most `limit`."""
    end = len(descending) // _BLOCK * _BLOCK
    blocks = descending[:end].reshape(-1, _BLOCK)
    before = np.concatenate([[0.0], np.cumsum(np.vecdot(blocks, blocks), dtype=np.float64)])  # of whole blocks
    whole_blocks = int(np.searchsorted(before[1:], limit, side="right"))
    start = whole_blocks * _BLOCK
    rest = np.cumsum(np.square(descending[start : start + _BLOCK], dtype=np.float64))
    return start + int(np.searchsorted(rest, limit - before[whole_blocks], side="right"))


class TopAggSgd(Estimator):
    """DP-SGD that keeps the largest coordinates of each record's gradient.

    Args:
        clip: C. Public.
        keep: k in (0, 1], the share of the squared norm that is kept; 1 is plain DP-SGD. Public. The sensitivity is
            sqrt(k) C.
        common: parameters of every estimator. The noise multiplier is the noise's standard deviation over sqrt(k) C.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], *, clip: float, keep: float, **common: Unpack[Common]) -> None:
        super().__init__(shapes, **common)
        self.clip = positive_finite("clip", clip)
        if not 0 < keep <= 1:
            raise InvalidParameter("keep", keep, "the kept share of the squared norm must be above 0 and at most 1")
        self.keep = float(keep)
        self.sensitivity = math.sqrt(self.keep) * self.clip

    def contributions(self, rows: torch.Tensor) -> Mapping[str, Part]:
        """Clip each gradient to norm C and keep its largest coordinates."""
        lengths = squares(rows)
        scales = self.scales(lengths.sqrt(), self.clip, 1 / math.sqrt(self.keep))  # of the whole gradient
        return {"": whole(norm_top_k(rows, self.keep, lengths), scales)}
