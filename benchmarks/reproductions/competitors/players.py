"""What the GANs that are compared have in common: a generator with its optimiser, records in shards, and sizes.

Everything a `Player` holds is public: it sees its own images, and what was released about them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from models.portable.dcgan import DcganConfig, DcganGenerator
from models.shards import Shards
from models.teacher_ensemble import TeacherConfig, TeacherEnsemble
from privacy.mechanisms.noise import derive_key
from privacy.mechanisms.partition import record_units, shard_members, shard_of
from privacy.plans.plan import PublicFacts
from workers.recipes.datalens.teacher_stage import uniform_labels
from workers.recipes.interface import TrustedCurator

BETAS = (0.5, 0.999)  # of Adam (Radford et al. 2016)
_SHARD_BATCH = 15  # records of each teacher in one update


class Player:
    """A class-conditional DC-GAN generator that learns by Adam.

    Args:
        facts: what the owner declared.
        latent: numbers in a latent.
        features: channels before the last doubling; DC-GAN's size.
        rate: of Adam.
        seed: public, of weights, latents and labels.
    """

    def __init__(self, facts: PublicFacts, latent: int, features: int, rate: float, seed: int) -> None:
        self.shape = DcganConfig(len(facts.classes), facts.channels, facts.height, facts.width, latent, features)
        self.generator = DcganGenerator(self.shape, seed)
        self._optimiser = torch.optim.Adam(self.generator.parameters(), lr=rate, betas=BETAS)
        self._stream = torch.Generator().manual_seed(seed)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Return images (count, c, h, w) in [-1, 1], through which gradients pass, and their labels (count,)."""
        labels = uniform_labels(count, self.shape.classes, self._stream)
        images: Tensor = self.generator(torch.randn(count, self.shape.latent, generator=self._stream), labels)
        return images, labels

    def descend(self, loss: Tensor) -> None:
        """Take a step down a loss; other networks that the loss went through get no gradient."""
        parameters = list(self.generator.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        self._optimiser.step()


def logistic(logits: Tensor, target: float) -> Tensor:
    """Return the mean logistic loss of logits that should all say 1 (real) or 0 (generated)."""
    return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))


def unit_pixels(images: Tensor) -> Tensor:
    """Return images (n, c, h, w) in [-1, 1] as rows (n, pixels) in [0, 1], as teachers see records."""
    return ((images + 1) / 2).flatten(1)


def members_of(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], shards: int, secret: bytes
) -> list[npt.NDArray[np.int64]]:
    """Deal records to disjoint shards by a keyed hash of each record alone. PRIVATE."""
    return shard_members(shard_of(record_units(images, labels), derive_key(secret, "shards"), shards), shards)


class Teachers:
    """Small stacked discriminators on disjoint shards, and how they learn. PRIVATE.

    Args:
        images: (n, h, w[, 3]) uint8.
        labels: (n,).
        classes: declared.
        count: of teachers.
        hidden: units of each.
        means: secret randomness.
    """

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.int64],
        classes: int,
        count: int,
        hidden: int,
        means: TrustedCurator,
    ) -> None:
        pixels = np.ascontiguousarray(np.moveaxis(images, 3, 1) if images.ndim == 4 else images)
        rows = torch.from_numpy(pixels).reshape(len(images), -1)
        shards = members_of(images, labels, count, means.secret)
        self._shards = Shards(rows, torch.from_numpy(labels), shards)
        config = TeacherConfig(rows.shape[1], classes, hidden)
        self.ensemble = TeacherEnsemble(config, count, generator=means.generator("teachers"))
        self._rows = means.generator("shard rows")

    @property
    def active(self) -> Tensor:
        """(count,) bool: which have a record."""
        return self._shards.active

    def learn(self, images: Tensor, labels: Tensor, updates: int) -> None:
        """Tell own records from public images (m, pixels) so many times."""
        for _ in range(updates):
            self.ensemble.update(self._shards.batch(_SHARD_BATCH, self._rows), images, labels)
