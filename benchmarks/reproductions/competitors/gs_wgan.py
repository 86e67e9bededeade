"""GS-WGAN (Chen, Orekondy & Fritz 2020, arXiv:2006.08265): the gradient with which images answer a critic is noised.

Critics learn on disjoint shards without noise (Wasserstein, with gradient penalty). In every iteration one of them is
asked about a batch of generated images: its gradient with respect to each image is clipped to norm 1, noised, and sent
on into the generator.

Adjacency add/remove of one record, which lies in one shard: it changes what one critic says, and that about every image
of a batch, from any u to any v of norm 1 at most, hence by 2 at most, attained by v = -u. **Each row of a batch is a
release**: the published code counts a batch as one, which understates what is spent by the batch's size.

Which critic is asked when is public here: all in turn, one visit each before any gets a second. A record then has no
part in the visits to other critics, and what it may lose is the sum over the visits to its own: `visits` times `batch`
releases, not `iterations` times as many. That is parallel composition, adaptively: given all that was released before,
the releases of other critics are the same functions of the same shards on both neighbours. So one charge covers a round
of visits to all critics. The paper instead counts on amplification by a random choice of critics. That would hold for a
choice by a secret Poisson coin for each critic and iteration, which must stay secret; published schedules give nothing
away and need no such argument. Critics warm up before the first visit, which releases nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.reproductions.aggregators.gaussian import ClippedSum
from benchmarks.reproductions.aggregators.release import STAGE
from benchmarks.reproductions.competitors.players import Player, members_of
from benchmarks.small_data import Folder, channels_first, facts_of
from models.portable.dcgan import DcganGenerator
from models.portable.layers import initialise
from privacy.mechanisms.noise import SecureNoise
from workers.recipes.interface import TrustedCurator

CLIP = 1.0  # the norm that a critic's gradient has nearly everywhere, by its penalty
_PENALTY = 10.0
_CRITIC_BETAS = (0.5, 0.9)


@dataclass(frozen=True)
class GsWgan:
    """Sizes of a training.

    Attributes:
        critics: K, each on a shard of its own.
        visits: to each of them; iterations are `critics` times as many.
        batch: images in each iteration, all of them released.
        warm_up: updates of each critic before anything is released.
        critic_steps: updates of the critic that is asked, in each iteration.
        hidden: units of a critic.
        features: DC-GAN's size, of the generator.
        latent: numbers in a latent.
        rate: of Adam in all networks.
    """

    critics: int
    visits: int
    batch: int = 8
    warm_up: int = 10
    critic_steps: int = 5
    hidden: int = 64
    features: int = 16
    latent: int = 64
    rate: float = 1e-3

    @property
    def releases(self) -> int:
        """Releases that one record has a part in."""
        return self.visits * self.batch


class Critic:
    """A small Wasserstein critic of images and their classes, and its records. PRIVATE."""

    def __init__(self, images: Tensor, labels: Tensor, classes: int, hidden: int, rate: float, seed: int) -> None:
        self._images, self._labels, self._classes = images, labels, classes
        pixels = images[0].numel() if len(images) else int(np.prod(images.shape[1:]))
        layers = (nn.Linear(pixels + classes, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1))
        self._network = initialise(nn.Sequential(*layers), seed)
        self._optimiser = torch.optim.Adam(self._network.parameters(), lr=rate, betas=_CRITIC_BETAS)
        self._stream = torch.Generator().manual_seed(seed)

    def _scores(self, images: Tensor, labels: Tensor) -> Tensor:
        known = nn.functional.one_hot(labels, self._classes).to(images)
        scores: Tensor = self._network(torch.cat([images.flatten(1), known], dim=1))[:, 0]
        return scores

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Take a step on own records against as many public images; without records there is nothing to learn."""
        if not len(self._labels):
            return
        chosen = torch.randint(len(self._labels), (len(labels),), generator=self._stream)
        real, asked = self._images[chosen].float() / 127.5 - 1, self._labels[chosen]
        between = torch.rand(len(labels), 1, 1, 1, generator=self._stream)
        mixed = (between * real + (1 - between) * images).requires_grad_()
        (slope,) = torch.autograd.grad(self._scores(mixed, asked).sum(), mixed, create_graph=True)
        penalty = (torch.linalg.vector_norm(slope.flatten(1), dim=1) - 1).square().mean()
        loss = self._scores(images, labels).mean() - self._scores(real, asked).mean() + _PENALTY * penalty
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return how each image (m, c, h, w) would look more real, (m, pixels)."""
        asked = images.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self._scores(asked, labels).sum(), asked)
        return slope.flatten(1) if len(self._labels) else torch.zeros_like(slope).flatten(1)


def privatise_gradients(gradients: Tensor, clipped: ClippedSum, noise: SecureNoise) -> Tensor:
    """Clip and noise one critic's gradients (m, d): m releases, which the charge of their round has paid for."""
    shares = clipped.shares(gradients, 0)
    drawn = noise.discrete_gaussian(tuple(shares.shape), clipped.stddev)
    return clipped.direction(shares + torch.from_numpy(drawn))


def train_gs_wgan(folder: Folder, config: GsWgan, budget_nano: int, means: TrustedCurator, seed: int) -> DcganGenerator:
    """Train within a budget, all of which the visits take; arguments as in `train_pate_gan`."""
    facts = facts_of(folder)
    clipped = ClippedSum(teachers=1, dimension=facts.pixels, stddev=1.0, clip=CLIP)
    clipped = clipped.affording(budget_nano, config.releases)
    player = Player(facts, config.latent, config.features, config.rate, seed)
    images, labels = channels_first(folder.images), torch.from_numpy(folder.labels)
    seeds = torch.randint(1 << 62, (config.critics,), generator=means.generator("critics")).tolist()
    critics = [
        Critic(images[own], labels[own], len(folder.classes), config.hidden, config.rate, own_seed)
        for own, own_seed in zip(
            members_of(folder.images, folder.labels, config.critics, means.secret), seeds, strict=True
        )
    ]
    for critic in critics:
        for _ in range(config.warm_up):
            drawn, asked = player.draw(config.batch)
            critic.learn(drawn.detach(), asked)
    for visit in range(config.visits):
        means.budget.charge(clipped.event(config.batch), STAGE)  # of every critic's shard: a round of visits
        for turn, critic in enumerate(critics):
            for _ in range(config.critic_steps):
                drawn, asked = player.draw(config.batch)
                critic.learn(drawn.detach(), asked)
            drawn, asked = player.draw(config.batch)
            noise = means.noise("gradients", visit, turn)
            follow = privatise_gradients(critic.gradients(drawn, asked), clipped, noise)
            player.descend(-(drawn.flatten(1) * follow).sum(dim=1).mean())
    return player.generator.eval()
