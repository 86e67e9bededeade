"""A small transformer (Vaswani et al. 2017) over fixed word vectors, made of layers that have gradients by record."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

_HIDDEN = -1e9  # what a place without a word weighs, before the softmax


class Block(nn.Module):
    """Self-attention and two dense layers, each after a norm and beside a shortcut: (n, t, width) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attended, self.dense = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, places: Tensor, hidden: Tensor) -> Tensor:
        """Take places (n, t, width), and (n, t) of what is added to the weight of each."""
        normed = self.attended(places)
        query, key, value = (self._parted(layer(normed)) for layer in (self.query, self.key, self.value))
        weights = query @ key.mT / math.sqrt(query.shape[-1]) + hidden[:, None, None, :]
        mixed = (weights.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        places = places + self.out(mixed)
        found: Tensor = places + self.down(functional.gelu(self.up(self.dense(places))))
        return found

    def _parted(self, places: Tensor) -> Tensor:
        """(n, t, width) -> (n, heads, t, width / heads)."""
        return places.view(*places.shape[:2], self.heads, -1).transpose(1, 2)


class Transformer(nn.Module):
    """Sentences (n, t) int64, rows of the word vectors of which 0 is no word, to logits (n, classes)."""

    vectors: Tensor
    positions: Tensor

    def __init__(
        self, vectors: Tensor, length: int, width: int = 64, heads: int = 4, blocks: int = 2, classes: int = 2
    ) -> None:
        """Build it.

        Args:
            vectors: (words, d), fixed and public.
            length: t.
            width: numbers at each place.
            heads: of attention.
            blocks: how many.
            classes: how many.
        """
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)
        self.register_buffer("positions", _waves(length, width), persistent=False)
        self.enter = nn.Linear(vectors.shape[1], width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        present = (words > 0).float()  # (n, t)
        places = self.enter(self.vectors[words]) + self.positions
        for block in self.blocks:
            places = block(places, (1 - present) * _HIDDEN)
        total = (self.norm(places) * present[:, :, None]).sum(dim=1)
        logits: Tensor = self.head(total / present.sum(dim=1, keepdim=True).clamp(min=1))
        return logits


def _waves(length: int, width: int) -> Tensor:
    """Return sines and cosines of each position, (length, width): Vaswani et al., section 3.5."""
    rates = 10_000 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
