"""The released generator: an affine map per class, so that a class is one Gaussian.

v = mean_y + factor_y z,   z ~ N(0, I_d)

v is an image, clipped to [0, 1]. If classes have clusters, z is drawn around the centre of one of them, so a class is a
mixture of Gaussians with one covariance.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from models.portable.drawing import ImageShape


@dataclasses.dataclass(frozen=True)
class GeneratorConfig(ImageShape):
    """The shape of a generator.

    Attributes:
        components: d, the length of a latent vector.
        clusters: number of centres around which a class's latents are drawn; 1: all are drawn around zero.
    """

    components: int
    clusters: int = 1

    @property
    def outputs(self) -> int:
        """Length of v."""
        return self.pixels


class Generator(nn.Module):
    """Draws labelled images; see the module's formula. Buffers are released values."""

    mean: Tensor
    factor: Tensor
    centres: Tensor
    shares: Tensor

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("mean", torch.zeros(config.classes, config.outputs))
        self.register_buffer("factor", torch.zeros(config.classes, config.outputs, config.components))
        if config.clusters > 1:
            shape = (config.classes, config.clusters)
            self.register_buffer("centres", torch.zeros(*shape, config.components))
            self.register_buffer("shares", torch.full(shape, 1 / config.clusters))  # of a class's images

    def values(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Map latents (n, d) of classes (n,) to v, (n, outputs)."""
        values = self.mean[labels].clone()
        for label in range(self.config.classes):
            rows = labels == label
            values[rows] += latents[rows] @ self.factor[label].T
        return values

    def decode(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Map latents (n, d) of classes (n,) to images (n, c, h, w) in [0, 1]."""
        shape = (len(labels), self.config.channels, self.config.height, self.config.width)
        return self.values(latents, labels).clamp_(0, 1).view(shape)

    @torch.no_grad()
    def sample(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw one image for each label; see `models.released.ReleasedGenerator`."""
        z = torch.randn(len(labels), self.config.components, generator=stream).to(labels.device)
        if self.config.clusters > 1:
            up_to = self.shares.cumsum(1)[labels]  # (n, clusters)
            drawn = torch.rand(len(labels), 1, generator=stream).to(labels.device) * up_to[:, -1:]
            z += self.centres[labels, (drawn >= up_to[:, :-1]).sum(1)]
        return self.decode(z, labels)
