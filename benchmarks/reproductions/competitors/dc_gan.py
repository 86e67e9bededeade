"""DC-GAN without any privacy (Radford, Metz & Chintala 2016, arXiv:1511.06434): the ceiling of Table 1.

Both networks know the class, as everywhere in this table. There is no release to account for: what is drawn from this
generator may show private records, and it stands in the table to say what the networks can do where nothing is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.reproductions.competitors.players import BETAS, Player, logistic
from benchmarks.small_data import Folder, channels_first, facts_of
from models.discriminator import Discriminator
from models.portable.dcgan import DcganGenerator
from models.portable.layers import with_planes


@dataclass(frozen=True)
class DcGan:
    """Sizes of a training.

    Attributes:
        steps: of discriminator and generator each.
        batch: real images, and generated ones, in a step.
        features: DC-GAN's size.
        latent: numbers in a latent.
        rate: of Adam in both networks.
    """

    steps: int
    batch: int = 64
    features: int = 16
    latent: int = 64
    rate: float = 5e-4


def train_dc_gan(folder: Folder, config: DcGan, seed: int) -> DcganGenerator:
    """Train on a folder's records; nothing here is private."""
    player = Player(facts_of(folder), config.latent, config.features, config.rate, seed)
    critic = Discriminator(player.shape, seed)
    optimiser = torch.optim.Adam(critic.parameters(), lr=config.rate, betas=BETAS)
    images, labels = channels_first(folder.images), torch.from_numpy(folder.labels)
    stream = torch.Generator().manual_seed(seed)
    for _ in range(config.steps):
        chosen = torch.randint(len(labels), (config.batch,), generator=stream)
        real: Tensor = critic(with_planes(images[chosen].float() / 127.5 - 1, labels[chosen]))
        drawn, asked = player.draw(config.batch)
        loss = logistic(real, 1) + logistic(critic(with_planes(drawn.detach(), asked)), 0)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        player.descend(logistic(critic(with_planes(drawn, asked)), 1))
    return player.generator.eval()
