"""The released generator: an affine map per class, bent by a small network that starts at zero.

v = mean_y + factor_y (z + W_y psi(z)),   z ~ N(0, I_d),   psi(z) = [1, z, tanh(R z + b)]

v is an image, cut to [0, 1]. With W = 0 this is one Gaussian per class: the warm start. Where classes have clusters, z
is drawn around the centre of one of them, which makes a class a mixture of Gaussians of one covariance. The network
acts on the latent, where a class has unit variance in every direction, so one step size fits all of them. R and b are
public random numbers.
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
        components: d, numbers in a latent.
        features: H, tanh features of the bending network; its input has 1 + d + H numbers.
        feature_seed: public seed of R and b.
        clusters: centres around which a class's latents are drawn; 1: around zero.
    """

    components: int
    features: int
    feature_seed: int = 0
    clusters: int = 1

    @property
    def outputs(self) -> int:
        """Numbers in v."""
        return self.pixels

    @property
    def basis(self) -> int:
        """Numbers in psi(z)."""
        return 1 + self.components + self.features


class Generator(nn.Module):
    """Draws labelled images; see the module's formula. Buffers are released values or public constants."""

    mean: Tensor
    factor: Tensor
    bend: Tensor
    directions: Tensor
    offsets: Tensor
    centres: Tensor
    shares: Tensor

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        self.config = config
        stream = torch.Generator().manual_seed(config.feature_seed)
        d = max(1, config.components)
        directions = torch.randn(config.features, config.components, generator=stream) * (1.5 / d**0.5)
        self.register_buffer("mean", torch.zeros(config.classes, config.outputs))
        self.register_buffer("factor", torch.zeros(config.classes, config.outputs, config.components))
        self.register_buffer("bend", torch.zeros(config.classes, config.components, config.basis))
        self.register_buffer("directions", directions)
        self.register_buffer("offsets", torch.rand(config.features, generator=stream) * 2 - 1)
        if config.clusters > 1:
            shape = (config.classes, config.clusters)
            self.register_buffer("centres", torch.zeros(*shape, config.components))
            self.register_buffer("shares", torch.full(shape, 1 / config.clusters))  # of a class's images

    def psi(self, z: Tensor) -> Tensor:
        """Evaluate the bending network's features: (n, d) -> (n, 1 + d + H)."""
        return torch.cat([torch.ones_like(z[:, :1]), z, torch.tanh(z @ self.directions.T + self.offsets)], dim=1)

    def latent(self, z: Tensor, labels: Tensor) -> Tensor:
        """Bend latents: (n, d) and (n,) -> z + W_y psi(z), (n, d)."""
        basis = self.psi(z)  # (n, B)
        bent = z.clone()
        for label in range(self.config.classes):
            rows = labels == label
            bent[rows] += basis[rows] @ self.bend[label].T
        return bent

    def values(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Map bent latents (n, d) of classes (n,) to v, (n, outputs)."""
        values = self.mean[labels].clone()
        for label in range(self.config.classes):
            rows = labels == label
            values[rows] += latents[rows] @ self.factor[label].T
        return values

    def decode(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Map bent latents (n, d) of classes (n,) to images (n, c, h, w) in [0, 1]."""
        shape = (len(labels), self.config.channels, self.config.height, self.config.width)
        return self.values(latents, labels).clamp_(0, 1).view(shape)

    def draw(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw unbent latents (n, d) of classes (n,) from a CPU generator, each around a centre of its class."""
        z = torch.randn(len(labels), self.config.components, generator=stream).to(labels.device)
        if self.config.clusters > 1:
            up_to = self.shares.cumsum(1)[labels]  # (n, clusters)
            drawn = torch.rand(len(labels), 1, generator=stream).to(labels.device) * up_to[:, -1:]
            z += self.centres[labels, (drawn >= up_to[:, :-1]).sum(1)]
        return z

    @torch.no_grad()
    def sample(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw one image for each label; see `models.released.ReleasedGenerator`."""
        return self.decode(self.latent(self.draw(labels, stream), labels), labels)
