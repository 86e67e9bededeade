"""What makes votes quick: the k largest magnitudes of many rows, and blocks of rows side by side on a processor."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

T = TypeVar("T")
_TINY = torch.finfo(torch.float32).tiny  # Smallest normal float: a coordinate below it is taken for zero.


def choose_top_k(g: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose the k coordinates of the largest magnitude of each row (rows, d), the first ones among equals.

    Returns:
        up: (rows, d) bool, the chosen coordinates that are positive; down: those that are negative. A coordinate that
            is zero is never chosen, nor any of a row that is not finite.
        kth: (rows, 1) float32, the smallest magnitude that is chosen; NaN for a row that is not finite.
        largest: (rows, 1) float32, the largest magnitude.
    """
    kth, largest, tied = _kth_largest(g, k)  # (rows, 1) each
    up, down = g >= kth, g <= -kth  # (rows, d) ties included
    if bool(tied.any()):
        rows = tied.squeeze(1).nonzero().squeeze(1)
        kept = _first_of_ties(g[rows].abs(), kth[rows], k)  # (ties, d)
        up[rows] &= kept
        down[rows] &= kept
    return up, down, kth, largest


def _kth_largest(g: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find each row's k-th largest magnitude.

    Returns:
        kth: (rows, 1) float32. At least the smallest normal float, below which a coordinate counts as zero, and NaN
            for a row that is not finite: no coordinate compares with it, so none is chosen.
        largest: (rows, 1) float32, the largest magnitude.
        tied: (rows, 1) bool, whether more than k coordinates reach kth.
    """
    magnitude = g.abs()  # (rows, d)
    if k == g.shape[1]:
        largest = magnitude.amax(dim=1, keepdim=True)
        kth, tied = torch.zeros_like(largest), torch.zeros_like(largest, dtype=torch.bool)
    elif g.device.type == "cpu":
        kth, largest, tied = (torch.from_numpy(column) for column in _partition(magnitude.numpy(), k))
    else:
        top = magnitude.topk(k, dim=1, sorted=False).values  # (rows, k)
        kth, largest = top.amin(dim=1, keepdim=True), top.amax(dim=1, keepdim=True)
        tied = (magnitude >= kth).sum(dim=1, keepdim=True) > k
    zero = kth < _TINY
    kth = torch.where(torch.isfinite(largest), torch.where(zero, _TINY, kth), math.nan)
    return kth, largest, tied & ~zero & torch.isfinite(largest)


def _partition(magnitude: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[Any], ...]:
    """Find kth, largest and tied of (rows, d) magnitudes on the processor, 1 <= k < d.

    As integers, floats that are not negative keep their order and NaNs come last; NumPy partitions integers with
    vector instructions, several times faster than `torch.topk`.
    """
    bits = magnitude.view(np.int32)
    split = bits.shape[1] - k
    parted = np.partition(bits, split, axis=1)  # (rows, d): the k largest on the right, the smallest of them first
    kth = parted[:, split : split + 1]  # (rows, 1)
    largest = parted[:, split:].max(axis=1, keepdims=True)  # (rows, 1)
    tied = parted[:, :split].max(axis=1, keepdims=True) == kth  # (rows, 1)
    return np.ascontiguousarray(kth).view(np.float32), largest.view(np.float32), tied


def _first_of_ties(magnitude: Tensor, kth: Tensor, k: int) -> Tensor:
    """Mark exactly k coordinates of rows in which more than k reach kth: all above it, then the first equal ones."""
    above, equal = magnitude > kth, magnitude == kth  # (rows, d)
    room = k - above.sum(dim=1, keepdim=True)  # (rows, 1)
    return above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))  # (rows, d)


def side_by_side(work: Callable[[int], T], starts: Sequence[int], device: torch.device) -> list[T]:
    """Return `work(start)` of each start in order: on a processor several at a time, each on one thread."""
    threads = min(torch.get_num_threads(), len(starts))
    if device.type != "cpu" or threads < 2:
        return [work(start) for start in starts]
    with one_thread_per_operation(), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, starts))


@contextlib.contextmanager
def one_thread_per_operation() -> Iterator[None]:
    """Let each operation run on one thread: whole blocks side by side never wait for one another.

    Splitting every operation instead costs a barrier each, and on a busy machine a barrier waits for a time slice:
    measured, three times slower than one thread alone.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
