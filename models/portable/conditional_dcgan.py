"""A DCGAN generator with the class as input to every layer, as published by DataLens' authors.

Two dense layers and two transposed convolutions, with BatchNorm between them. In training, BatchNorm uses the
statistics of the batch. The released generator uses fixed statistics, measured once on public latents, so an image
depends on its own latent and label alone.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.portable.drawing import ImageShape
from models.portable.layers import initialise, with_planes

_BLOCK = 256  # images drawn at once; part of the format: another value gives other images for the same seed
_SETTLED_ON = 1024  # public latents, of all classes in turn, on which the fixed statistics are measured
_DEVIATION, _KERNEL = 0.02, 5  # of the initial weights; of the convolutions
_MOMENTUM = 1.0  # keep only the last batch's statistics


@dataclasses.dataclass(frozen=True)
class ConditionalDcganConfig(ImageShape):
    """The shape of a generator; the defaults are the published ones.

    Attributes:
        latent: length of a latent vector, whose numbers are uniform in [-1, 1].
        features: half the channels before the last convolution.
    """

    latent: int = 50
    features: int = 64
    dense: int = 1024


class ConditionalDcganGenerator(nn.Module):
    """Maps latents and labels to images."""

    def __init__(self, config: ConditionalDcganConfig, seed: int = 0) -> None:
        """Initialise the weights from a public seed."""
        super().__init__()
        self.config = c = config
        self._quarter = -(-c.height // 4), -(-c.width // 4)
        wide = 2 * c.features
        cells = wide * self._quarter[0] * self._quarter[1]
        double = (_KERNEL, 2, 2, 1)  # kernel, stride, padding, output padding: doubles both sides
        self.first = nn.Linear(c.latent + c.classes, c.dense)
        self.second = nn.Linear(c.dense + c.classes, cells)
        self.third = nn.ConvTranspose2d(wide + c.classes, wide, *double)
        self.last = nn.ConvTranspose2d(wide + c.classes, c.channels, *double)
        norms = (nn.BatchNorm1d(c.dense, momentum=_MOMENTUM), nn.BatchNorm1d(cells, momentum=_MOMENTUM))
        self.norms = nn.ModuleList([*norms, nn.BatchNorm2d(wide, momentum=_MOMENTUM)])
        initialise(self, seed)
        stream = torch.Generator().manual_seed(seed)
        for layer in (self.first, self.second, self.third, self.last):
            nn.init.normal_(layer.weight, std=_DEVIATION, generator=stream)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Map latents (n, latent) and labels (n,) to images (n, c, h, w) in [0, 1]."""
        known = functional.one_hot(labels, self.config.classes).to(latents)
        x = functional.relu(self.norms[0](self.first(torch.cat([latents, known], dim=1))))
        x = functional.relu(self.norms[1](self.second(torch.cat([x, known], dim=1))))
        x = torch.unflatten(x, 1, (-1, *self._quarter))
        x = functional.relu(self.norms[2](self.third(with_planes(x, *known.unbind(1)))))
        image: Tensor = self.last(with_planes(x, *known.unbind(1))).sigmoid()
        return image[:, :, : self.config.height, : self.config.width]

    def latents(self, count: int, stream: torch.Generator) -> Tensor:
        """Draw latents (count, latent) from a CPU generator."""
        return torch.rand(count, self.config.latent, generator=stream) * 2 - 1

    @torch.no_grad()
    def settle(self, seed: int = 0) -> None:
        """Fix BatchNorm's statistics, measured on public latents of evenly mixed classes, and leave training mode."""
        device = self.first.weight.device
        z = self.latents(_SETTLED_ON, torch.Generator().manual_seed(seed)).to(device)
        self.train()(z, torch.arange(_SETTLED_ON, device=device) % self.config.classes)
        self.eval()

    @torch.no_grad()
    def sample(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw one image for each label; see `models.released.ReleasedGenerator`."""
        blocks = torch.split(labels, _BLOCK)
        return torch.cat([self(self.latents(len(block), stream).to(labels.device), block) for block in blocks])
