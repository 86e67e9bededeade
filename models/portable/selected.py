"""Draws public images at random with released weights, and varies them slightly. No pixel values are learned.

The release contains the public images. Private records determined only the weights with which these images are drawn.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from models.portable.drawing import ImageShape

_BLOCK = 64  # images varied at once


@dataclasses.dataclass(frozen=True)
class SelectedConfig(ImageShape):
    """The shape of a selection, and how strongly its images vary.

    Attributes:
        choices: number of images from which each class draws.
        shift: largest shift in each direction, as a fraction of that side; border pixels are repeated.
        tint: a channel's brightness is raised to a power from exp(-tint) to exp(tint). Black and white do not change.
        mirror: True to mirror half of the images left to right, at random.
    """

    choices: int
    shift: float = 0.0
    tint: float = 0.0
    mirror: bool = False


class SelectedPictures(nn.Module):
    """Draws labelled images; see the module.

    Attributes:
        pictures: (classes, choices, c, h, w) uint8, public images or variations of them.
        weights: (classes, choices), released shares; those of a class add up to 1.
    """

    pictures: Tensor
    weights: Tensor

    def __init__(self, config: SelectedConfig) -> None:
        super().__init__()
        self.config = config
        shape = (config.classes, config.choices)
        picture = (config.channels, config.height, config.width)
        self.register_buffer("pictures", torch.zeros(*shape, *picture, dtype=torch.uint8))
        self.register_buffer("weights", torch.full(shape, 1 / config.choices))

    @torch.no_grad()
    def sample(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw one image for each label; see `models.released.ReleasedGenerator`."""
        up_to = self.weights.cumsum(1)[labels]  # (n, choices)
        drawn = torch.rand(len(labels), 1, generator=stream).to(labels.device) * up_to[:, -1:]
        chosen = (drawn >= up_to[:, :-1]).sum(1)
        images = torch.empty(len(labels), *self.pictures.shape[2:], device=labels.device)
        for at in range(0, len(labels), _BLOCK):
            rows = slice(at, at + _BLOCK)
            images[rows] = vary(self.pictures[labels[rows], chosen[rows]], self.config, stream)
        return images


def vary(pictures: Tensor, config: SelectedConfig, stream: torch.Generator) -> Tensor:
    """Shift, recolour and maybe mirror images (n, c, h, w) uint8 at random. Return float32 images in [0, 1]."""
    n, channels, height, width = pictures.shape
    random = torch.rand(n, 3 + channels, generator=stream).to(pictures.device) * 2 - 1  # in [-1, 1)
    down, right = (random[:, [0]] * config.shift * height).round(), (random[:, [1]] * config.shift * width).round()
    y = (torch.arange(height, device=pictures.device) + down).clamp(0, height - 1).long()  # (n, h)
    x = (torch.arange(width, device=pictures.device) + right).clamp(0, width - 1).long()  # (n, w)
    if config.mirror:
        x = torch.where(random[:, [2]] < 0, width - 1 - x, x)
    picture = torch.arange(n, device=pictures.device)[:, None, None]
    moved = pictures.permute(0, 2, 3, 1)[picture, y[:, :, None], x[:, None, :]]  # (n, h, w, c)
    exponents = torch.exp(random[:, None, None, 3:] * config.tint)
    return ((moved.float() / 255) ** exponents).permute(0, 3, 1, 2)
