"""One rung of DataLens' loop: who teaches whom, what reaches the generator, and what that costs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.budgets import NoLedger
from benchmarks.reproductions.aggregators.gaussian import ClippedSum
from benchmarks.reproductions.aggregators.release import Aggregator, privatise
from benchmarks.reproductions.competitors.g_pate import HistogramVotes
from privacy.accounting.filter import NANO, open_filter, release_nano
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.aggregation import topagg
from privacy.aggregation.topagg_config import TopAggConfig
from privacy.mechanisms.noise import SecureNoise

DELTA, PIXELS, CLASSES, EPSILON = 1e-5, 784, 10, 1.0
IMAGES, GAMMA = 15, 1e-3  # m, and the published step
ALL = 4000  # teachers
PUBLISHED, LINEAR, DENSE, DCGAN = "published", "linear", "dense", "DC-GAN"
MEAN, SIGNS, TOP_K, THRESHOLD = "mean gradient", "signs", "top-k signs", "thresholded top-k signs"
G_PATE, GS_WGAN = "votes on ten directions (G-PATE)", "one teacher's gradient at a time (GS-WGAN)"
CLIPPED = "clipped sums of whole gradients"
_DIRECTIONS, _CLIP = 10, 10.0  # a linear teacher's gradient has a norm of about 10


@dataclasses.dataclass(frozen=True)
class Rung:
    """One loop.

    Attributes:
        teachers: published (convolutional), dense (`TeacherEnsemble`), or linear (one gradient step from zero on own
            records, as in `reproductions.aggregators.loop`).
        count: N.
        generator: published, DC-GAN's with GroupNorm, or dense (`PixelStudent`).
        release: what reaches the generator.
        noise: whether there is any.
        k, stddev, beta: the paper's; stddev is of 4,000 teachers.
        iterations: of 15 images each.
        width: features and dense units of a published teacher.
        balanced: whether each published teacher has as many records of every class.
        updates: of the generator on each release.
        budget: epsilon that a competitor in TopAgg's place gets noise for; TopAgg's is `stddev`.
    """

    teachers: str = LINEAR
    count: int = ALL
    generator: str = PUBLISHED
    release: str = THRESHOLD
    noise: bool = True
    k: int = 200
    stddev: float = 5000.0
    beta: float = 0.7
    iterations: int = 86
    width: tuple[int, int] = (32, 256)
    balanced: bool = True
    updates: int = 1
    budget: float = EPSILON

    @property
    def aggregation(self) -> TopAggConfig:
        """TopAgg's parameters, with as much noise for a teacher as 4,000 have."""
        return TopAggConfig(
            k=self.k,
            c=1e-5,
            stddev=self.stddev * self.count / ALL,
            beta=self.beta,
            teachers=self.count,
            dimension=PIXELS,
            top_k=self.release != SIGNS,
            threshold=self.release == THRESHOLD,
        )

    def asked(self, iteration: int) -> slice:
        """Return which teachers an iteration asks: all, or of GS-WGAN's the next one."""
        turn = iteration % self.count
        return slice(turn, turn + 1) if self.release == GS_WGAN else slice(None)

    @property
    def epsilon(self) -> float | None:
        """What the whole training costs at delta 1e-5; None where it is not private, or no such claim is made."""
        if not self.noise or self.release == MEAN or self.count < ALL or self.teachers == PUBLISHED:
            return None
        if self.competitor is not None:
            return self.budget
        price = release_nano(self.aggregation.event(1)) * self.iterations * IMAGES
        return gaussian_epsilon(math.sqrt(price / NANO), DELTA)

    @functools.cached_property
    def competitor(self) -> Aggregator | None:
        """What aggregates in TopAgg's place, with the noise that the budget pays for.

        Of GS-WGAN's teachers one is asked in each iteration, in public turn: a record pays for the visits to its own.
        """
        of: dict[str, Any] = {"dimension": PIXELS, "stddev": 1.0}
        visits = self.iterations
        made: Aggregator
        if self.release == G_PATE:
            made = HistogramVotes(teachers=self.count, projected=_DIRECTIONS, **of)
        elif self.release == GS_WGAN:
            made, visits = ClippedSum(teachers=1, clip=1.0, **of), -(-self.iterations // self.count)
        elif self.release == CLIPPED:
            made = ClippedSum(teachers=self.count, clip=_CLIP, **of)
        else:
            return None
        return made.affording(open_filter(self.budget, DELTA).capacity_nano, visits * IMAGES)

    def described(self) -> str:
        """For tables."""
        noise = "noise" if self.noise else "no noise"
        wide = "" if self.width == (32, 256) else f" of {self.width[0]} features and {self.width[1]} units"
        wide += "" if self.balanced else " with records at random"
        more = "" if self.updates == 1 else f", {self.updates} updates on each release"
        who = f"{self.count:,} {self.teachers} teachers{wide}, {self.generator} generator"
        return f"{who}, {self.release}, {noise}{more}"


# By epsilon: as many images as the exact accounting affords. The paper's own affords 1,290 at epsilon 1.
PAID: Mapping[float, Rung] = {
    1.0: Rung(iterations=149),
    10.0: Rung(k=350, stddev=900.0, beta=0.2, iterations=154),
}


def released(rung: Rung, gradients: Tensor, coins: torch.Generator, secret: bytes, iteration: int) -> Tensor:
    """Return what reaches the generator (m, d) of the gradients of the teachers that are asked (N, m, d)."""
    if rung.release == MEAN:
        return gradients.mean(dim=0)
    noise, other = SecureNoise.derive(secret, "votes", iteration), rung.competitor
    if other is not None:
        if isinstance(other, HistogramVotes):
            other = dataclasses.replace(other, seed=iteration)  # other directions each time
        sums = other.sums(gradients, coins)
        return other.direction(privatise(other, sums, NoLedger(), noise) if rung.noise else sums)
    config = rung.aggregation
    votes = topagg.count_votes(gradients, config, coins)
    if rung.noise:
        votes = topagg.noisy_sum(votes, config, noise)
    return topagg.threshold(votes, config)
