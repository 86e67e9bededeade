"""G-PATE (Long et al. 2021, arXiv:1906.09338): teachers vote on the projected gradient of each generated image.

A teacher's gradient on an image is projected on few random directions, which are public and new in every iteration. For
each direction the teacher votes for one of a few bins. The bin with most noisy votes, if these are enough, is the
direction's number; projected back they are the gradient that the generator follows.

Adjacency add/remove of one record, which lies in one shard: one teacher's votes on each image change. For each of P
directions a teacher votes for one bin, or for none where it has no gradient, so that two of its votes u and v differ
in two bins for each direction at most, by 1: |u - v|^2 <= 2 P. A gradient and its opposite lie in different bins for
every direction that they are not orthogonal to (the number of bins is even), which attains it. **Sensitivity
sqrt(2 P) an image; each image is a release**: the whole histogram gets noise, so that asking whether the fullest bin
is full enough costs nothing more.

Where this differs from the paper: its check of the fullest bin has noise and a data-dependent price of its own; here
accounting does not look at the votes. Gradients are brought to norm 1 by each teacher, so that bins need no tuning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from benchmarks.reproductions.aggregators.release import Aggregator, privatise, usable
from benchmarks.reproductions.competitors.players import Player, Teachers, unit_pixels
from benchmarks.small_data import Folder, facts_of
from models.portable.dcgan import DcganGenerator
from workers.recipes.interface import TrustedCurator

_FIRST_STEPS = 10  # of the teachers, before anything is asked


@dataclass(frozen=True, kw_only=True)
class HistogramVotes(Aggregator):
    """A histogram of the teachers' projected gradients.

    Attributes:
        projected: P, directions.
        bins: for each direction; an even number.
        reach: where the last bin ends, in units of what a random direction of norm sqrt(d) shows of a unit gradient.
        quorum: share of the teachers that must be in a bin.
        seed: public, of the directions.
    """

    projected: int
    bins: int = 10
    reach: float = 2.0
    quorum: float = 0.0
    seed: int = 0

    @property
    def width(self) -> int:
        """A count for each bin of each direction."""
        return self.projected * self.bins

    @property
    def square_max(self) -> int:
        """One vote for each direction."""
        return self.projected

    @property
    def sensitivity(self) -> float:
        """Return sqrt(2 P), rounded up: the proof is above."""
        bound = math.sqrt(2 * self.projected)
        while Fraction(bound) ** 2 < 2 * self.projected:
            bound = math.nextafter(bound, math.inf)
        return bound

    @property
    def directions(self) -> Tensor:
        """(d, P) standard normal numbers from the public seed."""
        return torch.randn(self.dimension, self.projected, generator=torch.Generator().manual_seed(self.seed))

    def shares(self, g: Tensor, seed: int) -> Tensor:
        """Vote for the bin of each projection."""
        del seed  # nothing is left to chance
        known = usable(g)
        rows = torch.where(known, g, 0.0)
        rows = rows / rows.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1.0)
        places = ((rows @ self.directions / self.reach + 1) * (self.bins / 2)).floor().clamp(0, self.bins - 1).long()
        votes = torch.nn.functional.one_hot(places, self.bins) * known[:, :, None]
        return votes.flatten(1)

    def direction(self, released: Tensor) -> Tensor:
        """Project the middles of the fullest bins back; bins without a quorum say nothing."""
        most, places = released.view(-1, self.projected, self.bins).max(dim=2)  # (m, P) each
        middles = ((places.float() + 0.5) * (2 / self.bins) - 1) * self.reach
        return (middles * (most >= self.quorum * self.teachers)) @ self.directions.T / self.projected


@dataclass(frozen=True)
class GPate:
    """Sizes of a training.

    Attributes:
        teachers: N.
        iterations: steps of the generator.
        batch: images in each, all of them released.
        projected: directions; the paper has 10.
        quorum: as in `HistogramVotes`.
        teacher_steps: updates of the teachers in each iteration.
        hidden: units of a teacher.
        features: DC-GAN's size.
        latent: numbers in a latent.
        rate: of the generator's Adam.
    """

    teachers: int
    iterations: int
    batch: int = 16
    projected: int = 10
    quorum: float = 0.0
    teacher_steps: int = 2
    hidden: int = 16
    features: int = 16
    latent: int = 64
    rate: float = 1e-3


def train_g_pate(folder: Folder, config: GPate, budget_nano: int, means: TrustedCurator, seed: int) -> DcganGenerator:
    """Train within a budget, all of which the images take; arguments as in `train_pate_gan`."""
    facts = facts_of(folder)
    base = HistogramVotes(
        teachers=config.teachers,
        dimension=facts.pixels,
        stddev=1.0,
        projected=config.projected,
        quorum=config.quorum,
    ).affording(budget_nano, config.iterations * config.batch)
    player = Player(facts, config.latent, config.features, config.rate, seed)
    teachers = Teachers(folder.images, folder.labels, len(folder.classes), config.teachers, config.hidden, means)
    coins = means.generator("vote coins")
    for iteration in range(config.iterations):
        images, labels = player.draw(config.batch)
        seen = unit_pixels(images.detach())
        teachers.learn(seen, labels, config.teacher_steps if iteration else _FIRST_STEPS)
        votes = replace(base, seed=(seed << 32) + iteration)
        sums = torch.zeros(config.batch, votes.width, dtype=torch.int64)
        for gradients in _of_active(teachers, seen, labels):
            sums += votes.sums(gradients, coins)
        follow = votes.direction(privatise(votes, sums, means.budget, means.noise("votes", iteration)))
        player.descend(-(unit_pixels(images) * follow).sum(dim=1).mean())
    return player.generator.eval()


def _of_active(teachers: Teachers, images: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """Yield the gradients of blocks of teachers; those without a record have none. PRIVATE."""
    for block, gradients in teachers.ensemble.image_gradients(images, labels):
        yield gradients * teachers.active[block, None, None]
