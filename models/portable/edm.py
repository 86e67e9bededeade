"""A diffusion model in the terms of Karras et al. 2022 (arXiv:2206.00364): preconditioning, losses and a sampler.

A denoiser D(x; sigma, y) = c_skip x + c_out F(c_in x; c_noise, y) estimates the clean image in [-1, 1] from a noisy
one. F is a U-Net. Letters are those of the paper's Table 1 and Algorithm 2.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.portable.drawing import ImageShape
from models.portable.generator import GeneratorConfig
from models.portable.layers import plane, with_planes
from models.portable.textured import new_generator
from models.portable.unet import UNet

SIGMA_DATA = 0.5  # Table 1; of images in [-1, 1]
P_MEAN, P_STD = -1.2, 1.2  # Table 1: ln sigma of the training noise is normal
SIGMA_MIN, SIGMA_MAX, RHO = 0.002, 80.0, 7.0  # Table 1: the sampler's noise levels
_START_TEXTURE = 10, 0.35  # steps and rate by which the sampler's initial images get their texture
_DRAWN_AT_ONCE = 64  # images drawn at once; part of the format: another value gives other images for the same seed


@dataclasses.dataclass(frozen=True)
class EdmConfig(ImageShape):
    """The shape of a denoiser, and the parameters of its sampler.

    Attributes:
        classes: number of declared classes; the label after the last means "of any class".
        sampling_steps: N of the sampler.
        churn: S_churn of the sampler, the amount of fresh noise in its steps; 0 is deterministic DDIM.
        guidance: w of classifier-free guidance (Ho & Salimans 2022, arXiv:2207.12598); 0 turns it off.
        start_latent: length of a latent vector of the generator that draws the sampler's initial image; 0: the sampler
            starts from noise alone.
        start_sigma: noise level added to that image, and the largest level that the denoiser is trained for.
        start_clusters: number of clusters per class in that generator.
        patch: side of the pixel squares that become channels of the U-Net's input. 2 halves height and width and
            quadruples the channels, so a step costs about a third as much.
    """

    features: int
    blocks: int
    sampling_steps: int
    churn: float
    guidance: float
    start_latent: int = 0
    start_sigma: float = SIGMA_MAX
    patch: int = 1
    start_clusters: int = 1
    start_texture: bool = False


class EdmDenoiser(nn.Module):
    """A denoiser, which is also the released generator.

    `forward` accepts one tensor: noisy images, a plane with each image's sigma and a plane with its label. Train its
    output F with `losses`. The generator `first` draws the sampler's initial image. Its values are released, not
    learned. Initial weights come from a public seed.
    """

    def __init__(self, config: EdmConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.unet = UNet(
            config.channels * config.patch**2,
            -(-config.height // config.patch),
            -(-config.width // config.patch),
            config.classes + 1,
            features=config.features,
            blocks=config.blocks,
            seed=seed,
        )
        if config.start_latent:
            sizes = (config.classes, config.channels, config.height, config.width, config.start_latent)
            first = GeneratorConfig(*sizes, clusters=config.start_clusters)
            self.first = new_generator(first, config.start_texture, *_START_TEXTURE)

    def forward(self, packed: Tensor) -> Tensor:
        """Map noisy images with planes of sigma and label, (n, c + 2, h, w), to F (n, c, h, w)."""
        channels = self.config.channels
        sigma, labels = plane(packed, channels), plane(packed, channels + 1).long()  # (n,)
        c_in = (sigma.square() + SIGMA_DATA**2).rsqrt()
        c_noise = sigma.log() / 4
        patch, (height, width) = self.config.patch, packed.shape[2:]
        images = c_in[:, None, None, None] * packed[:, :channels]
        images = functional.pad(images, (0, -width % patch, 0, -height % patch), mode="replicate")
        found = self.unet(functional.pixel_unshuffle(images, patch), c_noise, labels)
        return functional.pixel_shuffle(found, patch)[:, :, :height, :width]

    def denoise(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """Return denoised images D (n, c, h, w), given noisy images (n, c, h, w), noise levels and labels (n,) each."""
        c_skip, c_out = _scales(sigma)
        found: Tensor = c_skip * noisy + c_out * self(with_planes(noisy, sigma, labels))
        return found

    @torch.no_grad()
    def sample(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw one image for each label; see `models.released.ReleasedGenerator`."""
        parts = [self._draw(block, stream) for block in torch.split(labels, _DRAWN_AT_ONCE)]
        return ((torch.cat(parts) + 1) / 2).clamp(0, 1)

    def _draw(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        # Algorithm 2 of Karras et al. with Euler steps: DDIM, made stochastic by churn.
        cfg = self.config
        shape = (len(labels), cfg.channels, cfg.height, cfg.width)

        def normal() -> Tensor:
            return torch.randn(shape, generator=stream).to(labels.device)

        t = noise_levels(cfg.sampling_steps, cfg.start_sigma)
        gamma = min(cfg.churn / cfg.sampling_steps, math.sqrt(2) - 1)
        x = t[0] * normal() + (2 * self.first.sample(labels, stream) - 1 if cfg.start_latent else 0.0)
        for t_i, t_next in itertools.pairwise(t):
            t_hat = t_i * (1 + gamma)
            if cfg.start_latent:
                t_hat = min(t_hat, cfg.start_sigma)  # the denoiser is not trained for higher levels
            if t_hat > t_i:
                x = x + math.sqrt(t_hat**2 - t_i**2) * normal()
            sigma = torch.full((len(labels),), t_hat, device=labels.device)
            clean = self.denoise(x, sigma, labels)
            if cfg.guidance:
                any_class = self.denoise(x, sigma, torch.full_like(labels, cfg.classes))
                clean = clean + cfg.guidance * (clean - any_class)
            d = (x - clean) / t_hat
            x = x + (t_next - t_hat) * d
        return x


def noise_levels(steps: int, largest: float = SIGMA_MAX) -> list[float]:
    """Return the sampler's noise levels t_0 = largest > ... > t_{N-1} = SIGMA_MIN > t_N = 0 (equation 5)."""
    high, low = largest ** (1 / RHO), SIGMA_MIN ** (1 / RHO)
    return [(high + i / max(1, steps - 1) * (low - high)) ** RHO for i in range(steps)] + [0.0]


def noisy_rows(
    images: Tensor, labels: Tensor, any_class: int, drop: float, stream: torch.Generator, largest: float = SIGMA_MAX
) -> tuple[Tensor, Tensor]:
    """Make one training row of each image: draw a noise level, add noise of that level, and drop the label at random.

    Args:
        images: (n, c, h, w) in [-1, 1].
        any_class: the label that means "of any class"; it replaces a row's label with probability `drop`.
        stream: source of noise levels, noise and drops, on the images' device.

    Returns:
        The denoiser's input (n, c + 2, h, w), and the target of F (n, c, h, w).
    """
    n, device = len(images), images.device
    below = 0.5 * (1 + math.erf((math.log(largest) - P_MEAN) / (P_STD * math.sqrt(2))))  # share of levels
    uniform = torch.rand(n, generator=stream, device=device, dtype=torch.float64)
    normal = torch.special.ndtri(below * uniform.clamp(1e-9, 1 - 1e-9)).float()
    sigma = (P_STD * normal + P_MEAN).exp()  # (n,)
    noisy = images + sigma[:, None, None, None] * torch.randn(images.shape, generator=stream, device=device)
    dropped = torch.rand(n, generator=stream, device=device) < drop  # (n,)
    labels = torch.where(dropped, torch.full_like(labels, any_class), labels)
    c_skip, c_out = _scales(sigma)
    return with_planes(noisy, sigma, labels), (images - c_skip * noisy) / c_out


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return each row's mean squared error of F. It equals the paper's loss of D with lambda(sigma) = 1 / c_out^2."""
    return (outputs - targets).square().flatten(1).mean(dim=1)


def _scales(sigma: Tensor) -> tuple[Tensor, Tensor]:
    sigma = sigma[:, None, None, None]
    total = sigma.square() + SIGMA_DATA**2
    return SIGMA_DATA**2 / total, sigma * SIGMA_DATA * total.rsqrt()
