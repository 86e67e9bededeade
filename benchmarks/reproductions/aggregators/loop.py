"""A teacher loop that learns, in which only the aggregator differs.

With small dense teachers the loop stays at chance whatever aggregates, so that nothing can be compared in it
(docs/research/paper_datalens_loop.md says with which networks it learns). Here teachers are linear: one gradient step
from zero on features of their own records makes a discriminator that points from the student's image of a class to the
mean of the teacher's records of that class. The student holds one
image for each class and moves it along what is released: Algorithm 1 of Wang et al. 2021 (arXiv:2103.11109) with m =
one image for each class.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.reproductions.aggregators.release import Aggregator, aggregate
from privacy.mechanisms.noise import SecureNoise, derive_key
from privacy.mechanisms.partition import record_units, shard_of
from workers.recipes.interface import Budget


@dataclass(frozen=True, repr=False)
class LinearTeachers:
    """What the teachers know. PRIVATE.

    Attributes:
        private_means: (N, classes, d) each teacher's mean record of each class.
        private_there: (N, classes, 1) bool, whether it has one; where not, it abstains.
    """

    private_means: Tensor
    private_there: Tensor

    def gradients(self, x: Tensor) -> Tensor:
        """Where each teacher wants the student's images x (classes, d) to go: (N, classes, d)."""
        return torch.where(self.private_there, self.private_means - x, 0.0)


def linear_teachers(
    rows: Tensor,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    classes: int,
    teachers: int,
    secret: bytes,
) -> LinearTeachers:
    """Give every record to one teacher, by keyed hash.

    Args:
        rows: (n, d) float32, features of the records.
        images: (n, h, w), by which records are known.
        labels: (n,).
        classes: declared classes.
        teachers: N.
        secret: of the partition.
    """
    shard = torch.from_numpy(shard_of(record_units(images, labels), derive_key(secret, "shards"), teachers))
    group = shard * classes + torch.from_numpy(labels)
    sums = torch.zeros(teachers * classes, rows.shape[1]).index_add_(0, group, rows)
    counts = torch.bincount(group, minlength=teachers * classes)[:, None]
    means = sums / counts.clamp(min=1)
    return LinearTeachers(means.view(teachers, classes, -1), (counts > 0).view(teachers, classes, 1))


@dataclass(frozen=True)
class Learned:
    """How a loop ended.

    Attributes:
        images: (classes, d) the student's: a release.
        cosine: mean cosine of what was released with the exact mean gradient, over images and iterations. It reads
            private gradients: for the operator alone.
        seconds: per aggregated image, of shares, sums, noise and direction.
    """

    images: Tensor
    cosine: float
    seconds: float


def learn(
    aggregator: Aggregator,
    teachers: LinearTeachers,
    start: Tensor,
    iterations: int,
    gamma: float,
    budget: Budget,
    secret: bytes,
) -> Learned:
    """Move the student's images along what is released, in steps of gamma that shrink to zero.

    Args:
        aggregator: with its noise; each iteration is one release for each class.
        teachers: PRIVATE.
        start: (classes, d) public.
        iterations: T.
        gamma: the first step's length in units of the direction.
        budget: is charged before each release.
        secret: of coins and noise.
    """
    x, cosines, seconds = start.clone(), [], 0.0
    coins = torch.Generator().manual_seed(int.from_bytes(derive_key(secret, "coins")[:7], "big"))
    for iteration in range(iterations):
        gradients = teachers.gradients(x)
        started = time.perf_counter()
        direction = aggregate(aggregator, gradients, budget, coins, SecureNoise.derive(secret, "noise", iteration))
        seconds += time.perf_counter() - started
        cosines.append(torch.nn.functional.cosine_similarity(direction, gradients.mean(dim=0), dim=1).mean())
        x += gamma * (1 - iteration / iterations) * direction
    return Learned(x, float(torch.stack(cosines).mean()), seconds / (iterations * len(x)))


def nearest(images: Tensor, rows: Tensor, labels: npt.NDArray[np.int64]) -> float:
    """Share of rows (n, d) whose nearest of the student's images (classes, d) is that of their class."""
    return float((torch.cdist(rows, images).argmin(dim=1) == torch.from_numpy(labels)).float().mean())
