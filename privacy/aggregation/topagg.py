"""TopAgg: differentially private aggregation of teachers' gradients by top-k sign votes.

Implements Algorithms 2 and 3 of Wang et al. 2021 (arXiv:2103.11109) in the paper's letters: N teachers, m images of
d coordinates, gradients g, votes g_tilde, their noisy sum g_star and the release g_bar.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from privacy.aggregation.topagg_config import TopAggConfig
from privacy.errors import InvalidParameter
from privacy.mechanisms.noise import SecureNoise

__all__ = ["TopAggConfig", "count_votes", "noisy_sum", "release", "threshold", "vote"]

_BLOCK = {"cpu": 1 << 20, "cuda": 1 << 26}  # Coordinates worked on at once: about a processor's cache; some GPU memory.
_TINY = torch.finfo(torch.float32).tiny  # Smallest normal float: a coordinate below it is taken for zero.


def vote(gradients: Tensor, cfg: TopAggConfig, generator: torch.Generator, active: Tensor | None = None) -> Tensor:
    """Turn every teacher's gradients into sparse sign votes: TopkStoSignGrad, Algorithm 2.

    A coordinate that is zero abstains, as does a whole gradient that is zero or not finite: where the paper tosses
    a fair coin or leaves the case open, an abstention has the same mean and less variance.

    Args:
        gradients: (N, m, d) float32, float16 or bfloat16, d log Gamma_i / d x_j. Private. A part of the teachers may
            be passed; the counts of the parts add up.
        cfg: Public parameters.
        generator: CPU generator of the stochastic signs; advanced once a call, whatever the data. Derive its seed
            from the job's secret.
        active: (N,) bool, False for teachers whose shard is empty; None means all are active. Private.

    Returns:
        (N, m, d) int8 in {-1, 0, 1}, at most k nonzero in each row of d. Private.

    Privacy:
        The coins are a function of the generator and the position, never of the data, so changing one teacher's
        gradients changes the votes of that teacher only.

    Raises:
        InvalidParameter: The shapes do not fit the configuration.
    """
    nothing = torch.zeros((0, *gradients.shape[1:]), dtype=torch.int8, device=gradients.device)
    blocks = _vote_blocks(gradients, cfg, generator, active, lambda g_tilde: g_tilde)
    return torch.cat([nothing, *blocks]).reshape(gradients.shape)  # (N, m, d)


def count_votes(
    gradients: Tensor, cfg: TopAggConfig, generator: torch.Generator, active: Tensor | None = None
) -> Tensor:
    """Sum the votes over the teachers without holding all of them: `vote(...).sum(dim=0)`.

    Args:
        gradients: (N, m, d), as in `vote`. Private.
        cfg: Public parameters.
        generator: As in `vote`.
        active: As in `vote`.

    Returns:
        (m, d) int32, each in [-N, N]. Private until noise is added.

    Privacy:
        Sensitivity of each image's row to one unit: `cfg.sensitivity` (proof there).

    Raises:
        InvalidParameter: The shapes do not fit the configuration.
    """
    votes = torch.zeros(gradients.shape[1:], dtype=torch.int32, device=gradients.device)  # (m, d)
    for count in _vote_blocks(gradients, cfg, generator, active, lambda g_tilde: g_tilde.sum(dim=0, dtype=torch.int32)):
        votes += count
    return votes


def noisy_sum(votes: Tensor, cfg: TopAggConfig, noise: SecureNoise) -> Tensor:
    """Add the noise: Phase II of Algorithm 3, g_star = sum_i g_tilde_i + N_Z(0, sigma^2).

    Args:
        votes: (m, d) integers from `count_votes`. Private.
        cfg: Public parameters.
        noise: The secret generator of this attempt and step.

    Returns:
        (m, d) int64: m releases. Anything may be computed from it.

    Privacy:
        `cfg.event(m)`, which must have been charged before this is called.

    Raises:
        InvalidParameter: The votes are not integers of shape (m, d).
    """
    if votes.dim() != 2 or votes.shape[1] != cfg.dimension or votes.dtype not in (torch.int32, torch.int64):
        raise InvalidParameter("votes", tuple(votes.shape), f"votes are integers of shape (images, {cfg.dimension})")
    drawn = noise.discrete_gaussian(tuple(votes.shape), cfg.stddev)  # (m, d) int64
    return votes.to(torch.int64) + torch.from_numpy(drawn).to(votes.device)  # (m, d)


def threshold(g_star: Tensor, cfg: TopAggConfig) -> Tensor:
    """Keep the directions on which enough teachers agree: Phase III of Algorithm 3, post-processing.

    Args:
        g_star: (m, d) int64 from `noisy_sum`.
        cfg: Public parameters; with `threshold` off the noisy mean vote g_star / N is returned instead.

    Returns:
        (m, d) float32, g_bar: +1 from beta N on, -1 from -beta N on, else 0.
    """
    if not cfg.threshold:
        return g_star.to(torch.float32) / cfg.teachers
    quorum = math.ceil(cfg.beta * cfg.teachers)  # integers reach beta N exactly when they reach its ceiling
    return (g_star >= quorum).to(torch.float32) - (g_star <= -quorum).to(torch.float32)  # (m, d)


def release(votes: Tensor, cfg: TopAggConfig, noise: SecureNoise) -> Tensor:
    """Privatise vote sums: Phases II and III of Algorithm 3.

    Args:
        votes: (m, d) integers from `count_votes`. Private.
        cfg: Public parameters.
        noise: The secret generator of this attempt and step.

    Returns:
        (m, d) float32, g_bar as in `threshold`.

    Privacy:
        `cfg.event(m)`, which must have been charged before this is called.

    Raises:
        InvalidParameter: The votes are not integers of shape (m, d).
    """
    return threshold(noisy_sum(votes, cfg, noise), cfg)


def _vote_blocks(
    gradients: Tensor,
    cfg: TopAggConfig,
    generator: torch.Generator,
    active: Tensor | None,
    finish: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """Vote for consecutive blocks of teachers, each (n, m, d) int8, and return `finish` of each in order."""
    if gradients.dim() != 3 or gradients.shape[2] != cfg.dimension or not gradients.is_floating_point():
        why = f"gradients are floats of shape (teachers, images, {cfg.dimension})"
        raise InvalidParameter("gradients", tuple(gradients.shape), why)
    teachers, images, d = gradients.shape
    if teachers > cfg.teachers:
        raise InvalidParameter("gradients", tuple(gradients.shape), f"there are only {cfg.teachers} teachers")
    if active is not None and (active.shape != (teachers,) or active.dtype != torch.bool):
        raise InvalidParameter("active", tuple(active.shape), f"one boolean for each of the {teachers} teachers")
    seed = int(torch.randint(1 << 62, (1,), generator=generator))
    n = max(1, _BLOCK.get(gradients.device.type, _BLOCK["cuda"]) // max(1, images * d))

    def work(start: int) -> Tensor:
        g = gradients[start : start + n].detach().to(torch.float32)  # (n, m, d)
        g_tilde = _vote_block(g.reshape(-1, d), cfg, seed + start).view(-1, images, d)  # (n, m, d)
        if active is not None:
            g_tilde *= active[start : start + n].to(g_tilde)[:, None, None]
        return finish(g_tilde)

    starts = range(0, teachers if images else 0, n)
    threads = min(torch.get_num_threads(), len(starts))
    if gradients.device.type != "cpu" or threads < 2:
        return [work(start) for start in starts]
    with _one_thread_per_operation(), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, starts))


@contextlib.contextmanager
def _one_thread_per_operation() -> Iterator[None]:
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


def _vote_block(g: Tensor, cfg: TopAggConfig, seed: int) -> Tensor:
    """Vote on (rows, d) float32 gradients; one row is one teacher's gradient of one image."""
    kth, largest, tied = _kth_largest(g, cfg.votes_max)  # (rows, 1) each
    chosen_up, chosen_down = g >= kth, g <= -kth  # (rows, d) line 2: h = arg-topk(|g|, k), ties included
    if bool(tied.any()):
        rows = tied.squeeze(1).nonzero().squeeze(1)
        kept = _first_of_ties(g[rows].abs(), kth[rows], cfg.votes_max)  # (ties, d)
        chosen_up[rows] &= kept
        chosen_down[rows] &= kept
    if cfg.stochastic_sign and not bool((kth >= largest.clamp(max=cfg.c)).all()):
        # Line 3 clips to [-c, c] and line 4 divides by the largest magnitude that is left.
        g_hat = g.clamp(-cfg.c, cfg.c) / largest.clamp(max=cfg.c)  # (rows, d) in [-1, 1]
        coins = torch.Generator(g.device).manual_seed(seed)
        u = torch.rand(g.shape, generator=coins, device=g.device)  # (rows, d) in [0, 1)
        up = 2 * u - 1 < g_hat  # (rows, d) line 7: +1 with probability (1 + g_hat) / 2, else -1
        chosen = chosen_up | chosen_down
        chosen_up, chosen_down = chosen & up, chosen & ~up
    return chosen_up.view(torch.int8) - chosen_down.view(torch.int8)  # (rows, d) lines 5 and 7


def _kth_largest(g: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find each row's k-th largest magnitude.

    Returns:
        kth: (rows, 1) float32. At least the smallest normal float, below which a coordinate counts as zero, and NaN
            for a row that is not finite: no coordinate compares with it, so the row abstains.
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
    return above | (equal & (equal.cumsum(dim=1) <= room))  # (rows, d)
