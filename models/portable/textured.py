"""Texture of an image as a few numbers, and images that have a given texture.

A cell of 4 x 4 pixels is described by how strong waves of eight orientations and two lengths are in it: the logarithm
of the mean modulus of two wavelet filters' answers, which is the first order of a scattering transform (Bruna & Mallat
2013). These numbers are close to Gaussian where pixels are not, so a Gaussian over both draws outlines and patterns
that a Gaussian over pixels blurs. `render` finds an image with the drawn numbers by gradient descent (Angles & Mallat
2018 train a network to invert a scattering transform). Nothing here is learned, so all of it is public.

The generator draws images and the texture that they should have by the formula of `models.portable.generator`, in which
the numbers of a texture follow the pixels of v, and makes one image of both.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from models.portable.generator import Generator, GeneratorConfig
from models.sizes import TEXTURE_CELL, TEXTURE_MAPS, texture_size

ORIENTATIONS = TEXTURE_MAPS // 2  # of fine waves, then of coarse ones
FILTER_UNIT = 2.0**-12  # filters are rounded to integers times this, so that sums of products with pixels are exact
MODULUS_FLOOR, LOG_FLOOR = 1e-4, 0.03
CENTRE, SCALE = (
    -2.8,
    0.75,
)  # of a logarithm: about the mean of clip art, whose texture then varies as much as its pixels
_WAVES = ((5, 0.9, 2.2), (7, 1.1, 1.3))  # size, width of the envelope, frequency; the second on half the resolution
_STEPS, _RATE, _MEMORY, _SQUARES = 10, 0.35, 0.8, 0.99  # Adam; more steps add specks
_FAITH = 0.2  # weight of the drawn pixels' coarse half
_BLOCK = 64  # images rendered at once, so that all of it stays in the processor's cache
_EDGE = 0.02  # brightness from which a pixel starts to move


@cache
def filters() -> tuple[Tensor, Tensor]:
    """Return the fine and the coarse wavelets, (16, 1, size, size) each: integers as float64, in FILTER_UNIT.

    An even one is followed by the odd one of the same orientation.
    """
    return tuple(_filters(*wave) for wave in _WAVES)  # type: ignore[return-value]


def _filters(size: int, width: float, frequency: float) -> Tensor:
    place = torch.arange(size, dtype=torch.float64) - size // 2
    found = []
    for turn in range(ORIENTATIONS):
        cosine, sine = math.cos(math.pi * turn / ORIENTATIONS), math.sin(math.pi * turn / ORIENTATIONS)
        along = place[None, :] * cosine + place[:, None] * sine
        across = place[:, None] * cosine - place[None, :] * sine
        envelope = torch.exp(-(along**2 + (across / 2) ** 2) / (2 * width * width))
        envelope /= envelope.sum()
        for wave in (torch.cos(frequency * along), torch.sin(frequency * along)):
            found.append(envelope * wave - envelope * (envelope * wave).sum())  # answers 0 to even brightness
    return (torch.stack(found)[:, None] / FILTER_UNIT).round()


def texture(luma: Tensor) -> Tensor:
    """Return the texture (n, 16, h / 4, w / 4) of brightness (n, 1, h, w) in [0, 1]."""
    return torch.cat([answer.numbers for answer in _answers(luma)], dim=1)


class _Answer:
    """What the filters of one scale say about images, and how that changes with the images."""

    def __init__(self, images: Tensor, bank: Tensor, cell: int) -> None:
        self._bank, self._cell = bank, cell
        n, _, height, width = images.shape
        waves = functional.conv2d(images, bank, padding=bank.shape[-1] // 2)
        self._waves = waves.view(n, ORIENTATIONS, 2, height, width)
        self._modulus = (self._waves.square().sum(2) + MODULUS_FLOOR).sqrt()
        self._mean = functional.avg_pool2d(self._modulus, cell) + LOG_FLOOR
        self.numbers = (self._mean.log() - CENTRE) * SCALE

    def back(self, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to the images, from that with respect to the numbers.

        The turned filters are those of a transposed convolution, which torch computes more slowly.
        """
        each = gradient * SCALE / self._mean / self._cell**2
        each = functional.interpolate(each, scale_factor=self._cell) / self._modulus
        waves = (each[:, :, None] * self._waves).flatten(1, 2)
        return functional.conv2d(waves, self._bank.flip(2, 3).transpose(0, 1), padding=self._bank.shape[-1] // 2)


def _answers(luma: Tensor) -> tuple[_Answer, _Answer]:
    fine, coarse = ((bank * FILTER_UNIT).to(luma) for bank in filters())
    return _Answer(luma, fine, TEXTURE_CELL), _Answer(functional.avg_pool2d(luma, 2), coarse, TEXTURE_CELL // 2)


def texture_gradient(images: Tensor, wanted: Tensor) -> Tensor:
    """Return the gradient (n, c, h, w) of half the squared distance of images' texture to (n, 16, h / 4, w / 4)."""
    fine, coarse = _answers(images.mean(1, keepdim=True))
    at_full = fine.back(fine.numbers - wanted[:, :ORIENTATIONS])
    at_half = coarse.back(coarse.numbers - wanted[:, ORIENTATIONS:])
    return (at_full + functional.interpolate(at_half, scale_factor=2.0) / 4).expand_as(images) / images.shape[1]


def render(images: Tensor, wanted: Tensor) -> Tensor:
    """Return images (n, c, h, w) in [0, 1] near given ones that have the wanted texture.

    Ten steps of Adam on the squared distance to the wanted texture, plus the squared distance of 2 x 2 means to those
    of the given images. The gradient is written out, so that it needs no automatic differentiation.

    Args:
        images: (n, c, h, w), in units of full brightness; where they lie outside [0, 1] they are cut.
        wanted: (n, 16 * h / 4 * w / 4) numbers.
    """
    wanted = wanted.view(len(images), TEXTURE_MAPS, images.shape[2] // TEXTURE_CELL, images.shape[3] // TEXTURE_CELL)
    return torch.cat(list(map(_render, torch.split(images, _BLOCK), torch.split(wanted, _BLOCK))))


def _render(images: Tensor, wanted: Tensor) -> Tensor:
    """Render a block of images (n, c, h, w) to the wanted texture (n, 16, h / 4, w / 4)."""
    coarse = functional.avg_pool2d(images, 2)
    x = images.clamp(_EDGE, 1 - _EDGE)
    w = torch.log(x / (1 - x))  # moves freely, while x stays in [0, 1]
    moment, square = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, _STEPS + 1):
        apart = functional.interpolate(functional.avg_pool2d(x, 2) - coarse, scale_factor=2.0)
        gradient = (texture_gradient(x, wanted) + _FAITH * apart) * x * (1 - x)
        moment += (1 - _MEMORY) * (gradient - moment)
        square += (1 - _SQUARES) * (gradient.square() - square)
        rate = _RATE * (0.55 + 0.45 * math.cos(math.pi * (step - 1) / _STEPS))
        w -= rate * (moment / (1 - _MEMORY**step)) / ((square / (1 - _SQUARES**step)).sqrt() + 1e-8)
        x = torch.sigmoid(w)
    return x


@dataclasses.dataclass(frozen=True)
class TexturedConfig(GeneratorConfig):
    """The shape of a generator with texture; sides are multiples of 4."""

    @property
    def outputs(self) -> int:
        """Numbers in v, of an image and of its texture."""
        return self.pixels + texture_size(self.height, self.width)


class TexturedGenerator(Generator):
    """Draws labelled images; see the module."""

    def decode(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Map bent latents (n, d) of classes (n,) to images (n, c, h, w) in [0, 1]."""
        values, config = self.values(latents, labels), self.config
        images = values[:, : config.pixels].view(-1, config.channels, config.height, config.width)
        return render(images, values[:, config.pixels :])


def new_generator(config: GeneratorConfig, texture: bool) -> Generator:
    """Return a generator of zeros, for Gaussians of images, or of images and their texture."""
    return TexturedGenerator(TexturedConfig(**dataclasses.asdict(config))) if texture else Generator(config)
