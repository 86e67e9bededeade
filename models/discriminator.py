"""The discriminator of a class-conditional DCGAN. It uses GroupNorm, because no layer may mix private records."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.portable.dcgan import DcganConfig
from models.portable.layers import groups_of, initialise, plane


class Discriminator(nn.Module):
    """Maps labelled images to the logit that they are real. Initial weights come from a public seed.

    Input is one tensor (n, c + 1, h, w): an image in [-1, 1] and a plane with its label (`with_planes`). The logit is a
    projection (Miyato & Koyama 2018, arXiv:1802.05637): a linear function of the image's features, plus their product
    with the label's row of a table.
    """

    def __init__(self, config: DcganConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        sizes = config.sizes()
        top = len(sizes) - 1
        self.halvings = nn.ModuleList(
            nn.Conv2d(config.depth(halvings - 1), config.depth(halvings), 5, stride=2, padding=2)
            for halvings in range(1, top + 1)
        )
        self.norms = nn.ModuleList(
            nn.GroupNorm(groups_of(config.depth(halvings)), config.depth(halvings)) for halvings in range(2, top + 1)
        )
        numbers = config.depth(top) * sizes[top][0] * sizes[top][1]
        self.of_image = nn.Linear(numbers, 1)
        self.of_label = nn.Embedding(config.classes, numbers)
        initialise(self, seed)
        with torch.no_grad():
            self.of_label.weight *= numbers**-0.5  # as large as a linear layer's weights

    def forward(self, packed: Tensor) -> Tensor:
        """(n, c + 1, h, w) -> logits (n,)."""
        labels = plane(packed, self.config.channels).long()
        x = functional.leaky_relu(self.halvings[0](packed[:, : self.config.channels]), 0.2)
        for halve, norm in zip(self.halvings[1:], self.norms, strict=True):
            x = functional.leaky_relu(norm(halve(x)), 0.2)
        features = x.flatten(1)  # (n, numbers)
        logits: Tensor = self.of_image(features)[:, 0] + (features * self.of_label(labels)).sum(dim=1)
        return logits
