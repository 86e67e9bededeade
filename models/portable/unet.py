"""A small class-conditional U-Net (Ronneberger et al. 2015; Ho et al. 2020, arXiv:2006.11239) for one image size.

It uses each linear layer, convolution, GroupNorm and embedding once in a pass, so that the gradient of each record can
be computed. It uses attention at the smallest size only.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.portable.layers import groups_of, initialise

_SMALLEST = 7  # pixels a side below which nothing is halved
_HALVINGS_MAX = 4


def halvings_of(height: int, width: int) -> int:
    """Return how often an image is halved: at most four times, and no side gets shorter than seven pixels."""
    return max(0, min(_HALVINGS_MAX, math.floor(math.log2(max(1.0, min(height, width) / _SMALLEST)))))


class _Block(nn.Module):
    """Two convolutions and a shortcut. Between the convolutions, the condition (number and label) shifts the channels.

    Before training, only the shortcut has an effect.
    """

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups_of(inputs), inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.shift = nn.Linear(condition, outputs)
        self.norm2 = nn.GroupNorm(groups_of(outputs), outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        changed = self.conv1(functional.silu(self.norm1(x))) + self.shift(condition)[:, :, None, None]
        changed = self.conv2(functional.silu(self.norm2(changed)))
        kept = x if self.shortcut is None else self.shortcut(x)
        found: Tensor = (kept + changed) * 0.5**0.5
        return found


class _Attention(nn.Module):
    """Self-attention over pixels, with one head. Before training, it is the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups_of(channels), channels)
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(2).mT  # (n, h w, channels)
        query, key, value = self.query(tokens), self.key(tokens), self.value(tokens)
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1)  # (n, h w, h w)
        found: Tensor = x + self.out(weights @ value).mT.unflatten(2, x.shape[2:])
        return found


class UNet(nn.Module):
    """Maps noisy images, each with a number and a label, to images of the same size.

    Args:
        features: channels at full size; smaller sizes have twice as many.
        blocks: residual blocks at each size on the way down; there is one more per size on the way up.
        seed: public seed of the initial weights.
    """

    def __init__(
        self, channels: int, height: int, width: int, labels: int, *, features: int, blocks: int, seed: int = 0
    ) -> None:
        super().__init__()
        depths = [features] + [2 * features] * halvings_of(height, width)
        condition = 4 * features
        self._features = features
        self.number = nn.Linear(features, condition)
        self.label = nn.Embedding(labels, condition)
        self.condition = nn.Linear(condition, condition)
        self.stem = nn.Conv2d(channels, features, 3, padding=1)
        kept = [features]  # channels of the skip connections
        self.down, self.halvings = nn.ModuleList(), nn.ModuleList()
        x = features
        for level, depth in enumerate(depths):
            if level > 0:
                self.halvings.append(nn.Conv2d(x, x, 3, stride=2, padding=1))
                kept.append(x)
            steps = nn.ModuleList()
            for _ in range(blocks):
                steps.append(_Block(x, depth, condition))
                x = depth
                kept.append(x)
            self.down.append(steps)
        self.before = _Block(x, x, condition)
        self.attention = _Attention(x)
        self.after = _Block(x, x, condition)
        self.up, self.doublings = nn.ModuleList(), nn.ModuleList()
        for level, depth in reversed(list(enumerate(depths))):
            steps = nn.ModuleList()
            for _ in range(blocks + 1):
                steps.append(_Block(x + kept.pop(), depth, condition))
                x = depth
            self.up.append(steps)
            if level > 0:
                self.doublings.append(nn.Conv2d(x, x, 3, padding=1))
        self.norm = nn.GroupNorm(groups_of(x), x)
        self.out = nn.Conv2d(x, channels, 3, padding=1)
        initialise(self, seed)
        last = [module.conv2 for module in self.modules() if isinstance(module, _Block)]
        layer: Any  # a linear layer or a convolution, each with a bias
        for layer in (*last, self.attention.out, self.out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor, numbers: Tensor, labels: Tensor) -> Tensor:
        """Map images (n, c, h, w), numbers (n,) in about [-5, 5] and labels (n,) to images (n, c, h, w)."""
        frequencies = 2.0 ** torch.linspace(-2, 6, self._features // 2, device=numbers.device)  # from 1/4 to 64
        angles = numbers[:, None] * frequencies  # (n, features / 2)
        waves = torch.cat([angles.sin(), angles.cos()], dim=1)
        condition = functional.silu(self.number(waves) + self.label(labels))
        condition = functional.silu(self.condition(condition))  # (n, condition)
        x = self.stem(images)
        kept = [x]
        for level, steps in enumerate(self.down):
            if level > 0:
                x = self.halvings[level - 1](x)
                kept.append(x)
            for step in steps:  # type: ignore[attr-defined]
                x = step(x, condition)
                kept.append(x)
        x = self.after(self.attention(self.before(x, condition)), condition)
        for level, steps in enumerate(self.up):
            for step in steps:  # type: ignore[attr-defined]
                x = step(torch.cat([x, kept.pop()], dim=1), condition)
            if level < len(self.doublings):
                x = self.doublings[level](functional.interpolate(x, size=kept[-1].shape[2:], mode="nearest"))
        found: Tensor = self.out(functional.silu(self.norm(x)))
        return found
