"""Mechanisms broken on purpose, one mistake each, which the audits of `audited_releases` must flag.

Each is a context in which production code runs with one piece replaced. Everything audited inside has the fault, from a
single vote sum to a whole training. Nothing outside tests and benchmarks may use them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.payment_order import Payer
from privacy.accounting.events import Event
from privacy.mechanisms import partition, topagg
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.datalens import TopAggConfig
from workers.recipes import class_histogram, released_sums, select_public
from workers.recipes.interface import TrainingData

Numbers = npt.NDArray[np.float64]
BEYOND = 4  # times k coordinates, and times the norm: twice the sensitivity of votes, four times that of sums
SHARED = 4  # teachers that see each record


def no_noise() -> AbstractContextManager[object]:
    """Add nothing to any release."""
    return mock.patch.object(
        SecureNoise, "discrete_gaussian", lambda _, shape, *_stddev: np.zeros(shape, dtype=np.int64)
    )


def half_the_noise() -> AbstractContextManager[object]:
    """Draw noise of half the standard deviation that was paid for."""
    draw = SecureNoise.discrete_gaussian
    return mock.patch.object(
        SecureNoise, "discrete_gaussian", lambda noise, shape, stddev: draw(noise, shape, stddev / 2)
    )


def votes_beyond_k() -> AbstractContextManager[object]:
    """Have every teacher vote on four times the coordinates that the price allows."""
    count = topagg.count_votes

    def wide(
        gradients: torch.Tensor, cfg: TopAggConfig, coins: torch.Generator, active: torch.Tensor | None = None
    ) -> torch.Tensor:
        k = min(BEYOND * cfg.k, cfg.dimension)
        return count(gradients, dataclasses.replace(cfg, k=k), coins, active)

    return mock.patch.object(topagg, "count_votes", wide)


def votes_beyond_one() -> AbstractContextManager[object]:
    """Count every vote twice, so that a sign is no longer in {-1, 0, 1}."""
    count = topagg.count_votes
    return mock.patch.object(topagg, "count_votes", lambda *arguments: 2 * count(*arguments))


@contextmanager
def sums_beyond_clip() -> Iterator[None]:
    """Clip records of the warm start at four times the norm that the price allows."""
    clip, clip_parts = released_sums.clip_integer_rows, released_sums.clip_integer_parts

    def loose(rows: npt.NDArray[Any], norm_max: float) -> npt.NDArray[np.int64]:
        return clip(rows, BEYOND * norm_max)

    def loose_parts(rows: npt.NDArray[Any], norm_max: float, parts: Any) -> npt.NDArray[np.int64]:
        return clip_parts(rows, BEYOND * norm_max, parts)

    with (
        mock.patch.object(released_sums, "clip_integer_rows", loose),
        mock.patch.object(released_sums, "clip_integer_parts", loose_parts),
    ):
        yield


@contextmanager
def mirrored_beside() -> Iterator[None]:
    """Symmetrise by adding every record's mirror image beside it, so that a record is added twice."""
    scatter, means = released_sums.noisy_scatter, released_sums.noisy_means

    def scatter_of_both(rows: Numbers, clip: float, stddev: float, noise: SecureNoise, parts: Any = None) -> Numbers:
        mirrored = rows.copy()
        if parts is not None and len(parts) > 1:
            mirrored[:, parts[1]] *= -1
        return scatter(np.concatenate([rows, mirrored]), clip, stddev, noise, parts)

    def means_of_both(rows: Numbers, labels: npt.NDArray[np.int64], *others: Any) -> Numbers:
        return means(np.tile(rows, (2, 1)), np.tile(labels, 2), *others)  # what has a mean is as in the mirror

    with (
        mock.patch.object(released_sums, "noisy_scatter", scatter_of_both),
        mock.patch.object(released_sums, "noisy_means", means_of_both),
    ):
        yield


@contextmanager
def shared_shards() -> Iterator[None]:
    """Give every record to four teachers instead of one."""
    members = partition.shard_members

    def overlapping(assigned: npt.NDArray[np.int64], shards: int) -> list[npt.NDArray[np.int64]]:
        alone = members(assigned, shards)
        return [np.sort(np.concatenate([alone[(t + i) % shards] for i in range(SHARED)])) for t in range(shards)]

    with mock.patch.object(partition, "shard_members", overlapping):
        yield


def subjects_by_record() -> AbstractContextManager[object]:
    """Count every record of a subject in the class histogram."""

    def every_record(_facts: object, data: TrainingData, _secret: bytes) -> Any:
        return data.private_images, data.private_labels

    return mock.patch.object(class_histogram, "records_to_sum", every_record)


def two_votes_each() -> AbstractContextManager[object]:
    """Have every record vote twice for a public image."""
    count = select_public.count_votes
    return mock.patch.object(select_public, "count_votes", lambda *arguments: 2 * count(*arguments))


def noise_once() -> AbstractContextManager[object]:
    """Draw the noise of both iterations of votes for public images from one key."""
    privatise = select_public.privatise_votes
    return mock.patch.object(select_public, "privatise_votes", lambda run, votes, _iteration: privatise(run, votes, 0))


BROKEN: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "correct": nullcontext,
    "no noise": no_noise,
    "half the noise": half_the_noise,
    "votes beyond k": votes_beyond_k,
    "votes beyond one": votes_beyond_one,
    "sums beyond the clip": sums_beyond_clip,
    "mirrored beside": mirrored_beside,
    "shared shards": shared_shards,
    "subjects by record": subjects_by_record,
    "two votes each": two_votes_each,
    "noise once": noise_once,
}


class LateBudget:
    """Says yes at once and asks the account only when the next charge comes: a check after the release."""

    def __init__(self, payer: Payer) -> None:
        self._payer = payer
        self._pending: list[tuple[Event, str]] = []

    def charge(self, event: Event, stage: str) -> None:
        """Settle the last charge and put this one off."""
        for earlier in self._pending:
            self._payer.charge(*earlier)
        self._pending = [(event, stage)]
