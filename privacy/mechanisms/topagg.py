"""TopAgg: differentially private aggregation of teachers' gradients by top-k sign votes.

Implements Algorithms 2 and 3 of Wang et al. 2021 (arXiv:2103.11109) in the paper's letters: N teachers, m images of
d coordinates, gradients g, votes g_tilde, their noisy sum g_star and the release g_bar. Algorithm 3 is `count_votes`
(Phase I, in which each teacher votes by Algorithm 2), `noisy_sum` (Phase II) and `threshold` (Phase III).
"""

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

from privacy.errors import InvalidParameter
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.datalens import TopAggConfig

T = TypeVar("T")
_BLOCK = {"cpu": 1 << 20, "cuda": 1 << 26}  # coordinates at once: about a CPU's cache; some GPU memory
_TINY = torch.finfo(torch.float32).tiny  # smallest normal float: a coordinate below it counts as zero


def topk_sto_sign_grad(g: Tensor, cfg: TopAggConfig, seed: int) -> Tensor:
    """Turn gradients into sparse sign votes: TopkStoSignGrad, Algorithm 2.

    A zero coordinate abstains, as does a gradient that is zero or not finite. There the paper tosses a fair coin or
    leaves the case open; an abstention has the same mean and less variance.

    Args:
        g: (rows, d) float32; a row is one teacher's gradient of one image, d log Gamma_i / d x_j. Private.
        cfg: public parameters.
        seed: of the coins of these rows. Secret.

    Returns:
        (rows, d) int8 in {-1, 0, 1}, at most k nonzero in a row. Private. Coins are a function of seed and position, so
        a row's votes are a function of that row and its coins.
    """
    chosen_up, chosen_down, kth, largest = choose_top_k(g, cfg.votes_max)  # line 2: h = arg-topk(|g|, k)
    if cfg.stochastic_sign and not bool((kth >= largest.clamp(max=cfg.c)).all()):
        # Line 3 clips to [-c, c] and line 4 divides by the largest magnitude that is left.
        g_hat = g.clamp(-cfg.c, cfg.c) / largest.clamp(max=cfg.c)  # (rows, d) in [-1, 1]
        coins = torch.Generator(g.device).manual_seed(seed)
        u = torch.rand(g.shape, generator=coins, device=g.device)  # (rows, d) in [0, 1)
        up = 2 * u - 1 < g_hat  # (rows, d) line 7: +1 with probability (1 + g_hat) / 2, else -1
        chosen = chosen_up | chosen_down
        chosen_up, chosen_down = chosen & up, chosen & ~up
    return chosen_up.view(torch.int8) - chosen_down.view(torch.int8)  # (rows, d) lines 5 and 7


def count_votes(
    gradients: Tensor, cfg: TopAggConfig, generator: torch.Generator, active: Tensor | None = None
) -> Tensor:
    """Sum the teachers' votes block by block: Phase I of Algorithm 3, sum_i g_tilde_i.

    Args:
        gradients: (N, m, d) floats of all teachers, or of some; votes of disjoint sets of teachers add up. Private.
        cfg: public parameters.
        generator: CPU generator of the stochastic signs, seeded from the job's secret. Each call advances it once.
        active: (N,) bool, False for teachers with an empty shard; None: all active. Private.

    Returns:
        (m, d) int32, each in [-N, N]. Private until noise is added.

    Privacy:
        One teacher's gradients change that teacher's votes only. Sensitivity of each image's row to one unit:
        `cfg.sensitivity` (proof there).

    Raises:
        InvalidParameter: the shapes do not fit the configuration.
    """
    if gradients.dim() != 3 or gradients.shape[2] != cfg.dimension or not gradients.is_floating_point():
        why = f"they must be floats of shape (teachers, images, {cfg.dimension})"
        raise InvalidParameter("gradients", tuple(gradients.shape), why)
    teachers, images, d = gradients.shape
    if teachers > cfg.teachers:
        raise InvalidParameter("gradients", tuple(gradients.shape), f"there are only {cfg.teachers} teachers")
    if active is not None and (active.shape != (teachers,) or active.dtype != torch.bool):
        raise InvalidParameter("active", tuple(active.shape), f"give one boolean for each of the {teachers} teachers")
    seed = int(torch.randint(1 << 62, (1,), generator=generator))
    n = max(1, _BLOCK.get(gradients.device.type, _BLOCK["cuda"]) // max(1, images * d))

    def count(start: int) -> Tensor:
        g = gradients[start : start + n].detach().to(torch.float32)  # (n, m, d)
        g_tilde = topk_sto_sign_grad(g.reshape(-1, d), cfg, seed + start).view(-1, images, d)  # (n, m, d)
        if active is not None:
            g_tilde *= active[start : start + n].to(g_tilde)[:, None, None]
        return g_tilde.sum(dim=0, dtype=torch.int32)  # (m, d)

    votes = torch.zeros(images, d, dtype=torch.int32, device=gradients.device)
    for counted in side_by_side(count, range(0, teachers if images else 0, n), gradients.device):
        votes += counted
    return votes


def noisy_sum(votes: Tensor, cfg: TopAggConfig, noise: SecureNoise) -> Tensor:
    """Add the noise: Phase II of Algorithm 3, g_star = sum_i g_tilde_i + N_Z(0, sigma^2).

    Args:
        votes: (m, d) integers from `count_votes`. Private.
        cfg: public parameters.
        noise: the secret generator of this attempt and step.

    Returns:
        (m, d) int64: m releases.

    Privacy:
        `cfg.event(m)`, which must be charged first.

    Raises:
        InvalidParameter: the votes are not integers of shape (m, d).
    """
    if votes.dim() != 2 or votes.shape[1] != cfg.dimension or votes.dtype not in (torch.int32, torch.int64):
        raise InvalidParameter("votes", tuple(votes.shape), f"they must be integers of shape (images, {cfg.dimension})")
    drawn = noise.discrete_gaussian(tuple(votes.shape), cfg.stddev)  # (m, d) int64
    return votes.to(torch.int64) + torch.from_numpy(drawn).to(votes.device)  # (m, d)


def threshold(g_star: Tensor, cfg: TopAggConfig) -> Tensor:
    """Keep the directions on which enough teachers agree: Phase III of Algorithm 3, post-processing.

    Args:
        g_star: (m, d) int64 from `noisy_sum`.
        cfg: public parameters. If `cfg.threshold` is False, the result is the noisy mean vote g_star / N.

    Returns:
        (m, d) float32, g_bar: +1 where g_star >= beta N, -1 where g_star <= -beta N, else 0.
    """
    if not cfg.threshold:
        return g_star.to(torch.float32) / cfg.teachers
    quorum = math.ceil(cfg.beta * cfg.teachers)  # integers reach beta N exactly when they reach its ceiling
    return (g_star >= quorum).to(torch.float32) - (g_star <= -quorum).to(torch.float32)  # (m, d)


def choose_top_k(g: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose the k coordinates of largest magnitude in each row (rows, d); ties go to the first coordinates.

    Returns:
        up, down: (rows, d) bool, the chosen positive and negative coordinates; no zeros, and none in non-finite rows.
        kth: (rows, 1) float32, the smallest chosen magnitude, but at least the smallest normal float: a smaller
            coordinate counts as zero. NaN for a non-finite row, so that every comparison with it is false.
        largest: (rows, 1) float32, the largest magnitude.
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
    finite, zero = torch.isfinite(largest), kth < _TINY
    kth = torch.where(finite, torch.where(zero, _TINY, kth), math.nan)
    up, down = g >= kth, g <= -kth  # (rows, d) ties included
    rows = (tied & ~zero & finite).squeeze(1).nonzero().squeeze(1)  # in which more than k coordinates reach kth
    if len(rows):
        above, equal = magnitude[rows] > kth[rows], magnitude[rows] == kth[rows]  # (ties, d)
        room = k - above.sum(dim=1, keepdim=True)  # (ties, 1)
        kept = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))  # (ties, d)
        up[rows] &= kept
        down[rows] &= kept
    return up, down, kth, largest


def _partition(magnitude: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[Any], ...]:
    """Return each row's kth largest and largest magnitude, and whether more than k reach the kth. Needs 1 <= k < d.

    As integers, non-negative floats keep their order and NaNs come last; NumPy partitions integers several times faster
    than `torch.topk` does.
    """
    bits = magnitude.view(np.int32)
    split = bits.shape[1] - k
    parted = np.partition(bits, split, axis=1)  # (rows, d): the k largest on the right, the smallest of them first
    kth = parted[:, split : split + 1]  # (rows, 1)
    largest = parted[:, split:].max(axis=1, keepdims=True)  # (rows, 1)
    tied = parted[:, :split].max(axis=1, keepdims=True) == kth  # (rows, 1)
    return np.ascontiguousarray(kth).view(np.float32), largest.view(np.float32), tied


def side_by_side(work: Callable[[int], T], starts: Sequence[int], device: torch.device) -> list[T]:
    """Return `work(start)` for each start, in order; on a CPU several run in parallel, each on one thread."""
    threads = min(torch.get_num_threads(), len(starts))
    if device.type != "cpu" or threads < 2:
        return [work(start) for start in starts]
    with one_thread_per_operation(), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, starts))


@contextlib.contextmanager
def one_thread_per_operation() -> Iterator[None]:
    """Run each operation on one thread, so that parallel blocks never wait for one another.

    An operation split between threads waits at a barrier: on a busy machine, it takes three times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
