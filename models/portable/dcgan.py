"""The generator of a class-conditional DCGAN (Radford, Metz & Chintala 2016, arXiv:1511.06434) with GroupNorm.

With GroupNorm, an image depends on its own latent and label alone, not on the other images of its batch.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.portable.drawing import ImageShape
from models.portable.layers import groups_of, initialise

_BLOCK = 256  # images drawn at once; part of the format: another value gives other images for the same seed
_SMALLEST = 4  # pixels a side below which nothing is halved
_HALVINGS_MAX = 4


@dataclasses.dataclass(frozen=True)
class DcganConfig(ImageShape):
    """The shape of generator and discriminator.

    Attributes:
        features: channels after the discriminator's first convolution; they double with every halving of the image.
    """

    latent: int
    features: int

    def sizes(self) -> list[tuple[int, int]]:
        """Return the full size and each halved size, rounded up.

        From the second halving on, sides keep at least four pixels.
        """
        found = [(self.height, self.width)]
        while len(found) <= _HALVINGS_MAX:
            size = -(-found[-1][0] // 2), -(-found[-1][1] // 2)
            if len(found) > 1 and min(size) < _SMALLEST:
                break
            found.append(size)
        return found

    def depth(self, halvings: int) -> int:
        """Return the number of channels after an image has been halved `halvings` times."""
        return self.channels if halvings == 0 else self.features * 2 ** (halvings - 1)


class DcganGenerator(nn.Module):
    """Maps latents and labels to images."""

    def __init__(self, config: DcganConfig, seed: int = 0) -> None:
        """Initialise the weights from a public seed."""
        super().__init__()
        self.config = config
        self._sizes = config.sizes()
        top = len(self._sizes) - 1
        rows, columns = self._sizes[top]
        self.first = nn.Linear(config.latent + config.classes, config.depth(top) * rows * columns)
        self.norms = nn.ModuleList(
            nn.GroupNorm(groups_of(config.depth(halvings)), config.depth(halvings)) for halvings in range(top, 0, -1)
        )
        self.doublings = nn.ModuleList(
            nn.ConvTranspose2d(config.depth(halvings), config.depth(halvings - 1), 4, stride=2, padding=1)
            for halvings in range(top, 0, -1)
        )
        initialise(self, seed)

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Map latents (n, latent) and labels (n,) to images (n, c, h, w) in [-1, 1]."""
        known = torch.cat([latents, functional.one_hot(labels, self.config.classes).to(latents)], dim=1)
        top = len(self._sizes) - 1
        x: Tensor = self.first(known).unflatten(1, (self.config.depth(top), *self._sizes[top]))
        for halvings, norm, double in zip(range(top, 0, -1), self.norms, self.doublings, strict=True):
            height, width = self._sizes[halvings - 1]
            x = double(functional.relu(norm(x)))[:, :, :height, :width]
        return x.tanh()

    @torch.no_grad()
    def sample(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw one image for each label; see `models.released.ReleasedGenerator`."""
        parts = []
        for block in torch.split(labels, _BLOCK):
            z = torch.randn(len(block), self.config.latent, generator=stream).to(labels.device)
            parts.append((self(z, block) + 1) / 2)
        return torch.cat(parts)
