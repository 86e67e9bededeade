"""How images were rendered until November 2026: ten steps, whose gradient two convolutions compute at each scale.

Kept as what `models.portable.textured` is compared with, in speed, in pixels and in what classifiers learn.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from models.portable.textured import (
    CENTRE,
    FILTER_UNIT,
    LOG_FLOOR,
    MODULUS_FLOOR,
    ORIENTATIONS,
    SCALE,
    TexturedGenerator,
    filters,
)
from models.sizes import TEXTURE_CELL, TEXTURE_MAPS

_STEPS, _RATE, _MEMORY, _SQUARES, _FAITH, _EDGE, _BLOCK = 10, 0.35, 0.8, 0.99, 0.2, 0.02, 64


class _Answer:
    """What the filters of one scale say about images, and how that changes with the images."""

    def __init__(self, images: Tensor, bank: Tensor, cell: int) -> None:
        self._bank, self._cell = bank, cell
        waves = functional.conv2d(images, bank, padding=bank.shape[-1] // 2)
        self._waves = waves.unflatten(1, (ORIENTATIONS, 2))
        self._modulus = (self._waves.square().sum(2) + MODULUS_FLOOR).sqrt()
        self._mean = functional.avg_pool2d(self._modulus, cell) + LOG_FLOOR
        self.numbers = (self._mean.log() - CENTRE) * SCALE

    def back(self, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to the images, from that with respect to the numbers."""
        each = gradient * SCALE / self._mean / self._cell**2
        each = functional.interpolate(each, scale_factor=self._cell) / self._modulus
        waves = (each[:, :, None] * self._waves).flatten(1, 2)
        return functional.conv2d(waves, self._bank.flip(2, 3).transpose(0, 1), padding=self._bank.shape[-1] // 2)


def texture_gradient(images: Tensor, wanted: Tensor) -> Tensor:
    """Return the gradient (n, c, h, w) of half the squared distance of images' texture to (n, 16, h / 4, w / 4)."""
    luma = images.mean(1, keepdim=True)
    banks = ((bank * FILTER_UNIT).to(luma) for bank in filters())
    seen = (luma, TEXTURE_CELL), (functional.avg_pool2d(luma, 2), TEXTURE_CELL // 2)
    fine, coarse = (_Answer(each, bank, cell) for (each, cell), bank in zip(seen, banks, strict=True))
    at_full = fine.back(fine.numbers - wanted[:, :ORIENTATIONS])
    at_half = coarse.back(coarse.numbers - wanted[:, ORIENTATIONS:])
    return (at_full + functional.interpolate(at_half, scale_factor=2.0) / 4).expand_as(images) / images.shape[1]


def render(images: Tensor, wanted: Tensor) -> Tensor:
    """Return images (n, c, h, w) near given ones that have the wanted texture, in ten steps of Adam."""
    wanted = wanted.view(len(images), TEXTURE_MAPS, images.shape[2] // TEXTURE_CELL, images.shape[3] // TEXTURE_CELL)
    return torch.cat(list(map(_render, torch.split(images, _BLOCK), torch.split(wanted, _BLOCK))))


def _render(images: Tensor, wanted: Tensor) -> Tensor:
    coarse = functional.avg_pool2d(images, 2)
    x = images.clamp(_EDGE, 1 - _EDGE)
    w = torch.log(x / (1 - x))
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


class FormerGenerator(TexturedGenerator):
    """Draws as releases were drawn until then."""

    def decode(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Map bent latents (n, d) of classes (n,) to images (n, c, h, w) in [0, 1]."""
        values, config = self.values(latents, labels), self.config
        images = values[:, : config.pixels].view(-1, config.channels, config.height, config.width)
        return render(images, values[:, config.pixels :])
