"""One rung of DataLens' loop: who teaches whom, what reaches the generator, and what that costs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from benchmarks.aggregators.gaussian import ClippedSum
from benchmarks.aggregators.release import Aggregator, release
from benchmarks.budgets import NoLedger
from benchmarks.competitors.g_pate import HistogramVotes
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
            records, as in `benchmarks.aggregators.loop`).
        count: N.
        generator: published, DC-GAN's with GroupNorm, or dense (`PixelStudent`).
        release: what reaches the generator.
        noise: whether there is any.
        k, stddev, beta: the paper's; stddev is of 4,000 teachers.
        iterations: of 15 images each.
        width: features and dense units of a published teacher.
        balanced: whether each published teacher has as many records of every class.
        updates: of the generator on each release.
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

    @property
    def epsilon(self) -> float | None:
        """What the whole training costs at delta 1e-5; None where it is not private, or no such claim is made."""
        if not self.noise or self.release == MEAN or self.count < ALL or self.teachers == PUBLISHED:
            return None
        if self.competitor is not None:
            return EPSILON
        price = release_nano(self.aggregation.event(1)) * self.iterations * IMAGES
        return gaussian_epsilon(math.sqrt(price / NANO), DELTA)

    @property
    def competitor(self) -> Aggregator | None:
        """What aggregates in TopAgg's place, with the noise that epsilon 1 pays for.

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
        return made.affording(open_filter(EPSILON, DELTA).capacity_nano, visits * IMAGES)

    def described(self) -> str:
        """For tables."""
        noise = "noise" if self.noise else "no noise"
        wide = "" if self.width == (32, 256) else f" of {self.width[0]} features and {self.width[1]} units"
        wide += "" if self.balanced else " with records at random"
        more = "" if self.updates == 1 else f", {self.updates} updates on each release"
        who = f"{self.count:,} {self.teachers} teachers{wide}, {self.generator} generator"
        return f"{who}, {self.release}, {noise}{more}"


def released(rung: Rung, gradients: Tensor, coins: torch.Generator, secret: bytes, iteration: int) -> Tensor:
    """Return what reaches the generator of the teachers' gradients (N, m, d): (m, d)."""
    if rung.release == MEAN:
        return gradients.mean(dim=0)
    noise, other = SecureNoise.derive(secret, "votes", iteration), rung.competitor
    if other is not None:
        if isinstance(other, HistogramVotes):
            other = dataclasses.replace(other, seed=iteration)  # other directions each time
        asked = gradients[iteration % rung.count][None] if rung.release == GS_WGAN else gradients
        sums = other.sums(asked, coins)
        return other.direction(release(other, sums, NoLedger(), noise) if rung.noise else sums)
    config = rung.aggregation
    votes = topagg.count_votes(gradients, config, coins)
    if rung.noise:
        votes = topagg.noisy_sum(votes, config, noise)
    return topagg.threshold(votes, config)
