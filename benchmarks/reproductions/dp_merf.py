"""DP-MERF (Harder, Adamczewski & Park 2021, arXiv:2002.11603): a generator fitted to one noisy mean embedding.

1. A public random feature map phi sends an image to D numbers of norm 1 (random Fourier features of a Gaussian kernel).
2. Each class's sum of phi over its records is released once, with noise.
3. A conditional generator is trained until its own sums look like the released ones; this is post-processing.

Adjacency add/remove of one record. A record adds one integer vector of norm at most Q to its class's row and nothing to
the others. So the sums' L2 sensitivity is Q; all classes together are one discrete Gaussian release. Sums are divided
by the declared number of records, which is public. The kernel's width follows from the number of pixels, not from the
private images: the paper's 127 for 784 pixels, in proportion for others.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import stddev_for
from privacy.mechanisms.clipping import clip_integer_rows
from privacy.mechanisms.noise import SecureNoise
from workers.recipes.coefficients import exact_product
from workers.recipes.interface import Budget

Array = npt.NDArray[np.float64]
STAGE = "mean_embedding"
UNIT = 2**20  # Q, what a norm of 1 is in integers
_SQUARED_WIDTH_PER_PIXEL = 127 / 784
_BLOCK, _BATCH, _LATENT, _HIDDEN, _RATE, _DECAY = 4096, 500, 10, 256, 1e-2, 0.9


def frequencies(pixels: int, features: int, seed: int) -> Array:
    """Return the public directions of the feature map, (pixels, D / 2)."""
    width = math.sqrt(_SQUARED_WIDTH_PER_PIXEL * pixels)
    return np.random.default_rng(seed).standard_normal((pixels, features // 2)) / width


def embedded_sums(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], waves: Array, classes: int) -> Array:
    """Return each class's sum of integer features, (classes, D). PRIVATE."""
    sums = np.zeros((classes, 2 * waves.shape[1]), dtype=np.int64)
    for at in range(0, len(images), _BLOCK):
        block = images[at : at + _BLOCK]
        pixels = np.moveaxis(block, 3, 1) if block.ndim == 4 else block
        angles = exact_product(pixels.reshape(len(block), -1) / 255.0, waves, largest=1.0)
        features = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / math.sqrt(waves.shape[1])  # norm 1
        np.add.at(sums, labels[at : at + _BLOCK], clip_integer_rows(np.rint(features * UNIT).astype(np.int64), UNIT))
    return sums


def privatise_embedding(sums: Array, budget_nano: int, budget: Budget, noise: SecureNoise) -> Array:
    """Pay for the noisy sums, and return them in units of one record, (classes, D)."""
    stddev = stddev_for(UNIT, budget_nano)
    budget.charge(GaussianEvent.of_discrete_noise(UNIT, stddev), STAGE)
    released: Array = (sums + noise.discrete_gaussian(sums.shape, stddev)) / UNIT
    return released


class MerfGenerator(nn.Module):
    """A latent and a class to an image (n, pixels) in [0, 1]: two hidden layers."""

    def __init__(self, classes: int, pixels: int) -> None:
        super().__init__()
        self.classes = classes
        self.layers = nn.Sequential(
            nn.Linear(_LATENT + classes, _HIDDEN),
            nn.BatchNorm1d(_HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.BatchNorm1d(_HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, pixels),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        images: Tensor = self.layers(torch.cat([z, nn.functional.one_hot(labels, self.classes).float()], dim=1))
        return images

    @torch.no_grad()
    def sample(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw images (n, pixels) of given classes."""
        self.eval()
        return self(torch.randn(len(labels), _LATENT, generator=stream), labels)


def fit_generator(released: Array, declared: int, waves: Array, steps: int, seed: int) -> MerfGenerator:
    """Train a generator whose mean embedding is the released one: least squared distance, by Adam."""
    stream = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generator = MerfGenerator(len(released), len(waves))
    target, directions = torch.from_numpy(released / declared).float(), torch.from_numpy(waves).float()
    optimizer = torch.optim.Adam(generator.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, max(1, steps // 10), gamma=_DECAY)
    for _ in range(steps):
        labels = torch.randint(len(released), (_BATCH,), generator=stream)
        angles = generator(torch.randn(_BATCH, _LATENT, generator=stream), labels) @ directions
        features = torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(directions.shape[1])
        embedding = nn.functional.one_hot(labels, len(released)).float().T @ features / _BATCH
        loss = (embedding - target).square().sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return generator
