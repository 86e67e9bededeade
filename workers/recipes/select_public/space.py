"""Where pictures stand in a public space, in which a private record votes for what is nearest to it.

Without an extractor the space is made of colours and texture, at 32 x 32 pixels: means of 8 x 8 cells, and the waves of
`models.portable.textured` in 4 x 4 cells. Everything here is a function of one picture and of public ones, and places
are integers, so that distances are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from models.portable.textured import texture

if TYPE_CHECKING:
    from models.extractor import Extractor

Describe = Callable[[Tensor], Sequence[Tensor]]  # pictures (n, c, h, w) in [0, 1] to groups of numbers, (n, any) each
_SIDE, _COLOUR_CELLS, _TEXTURE_CELLS = 32, 8, 4  # pixels and cells to a side
_AXES = 64
_FLOOR = 1e-12
_UNIT = 2.0**-12  # of a place
FAR = 2**20  # in units: further out than any place


class Space:
    """A public Euclidean space: the principal axes of public pictures, in which every group of numbers weighs alike.

    Args:
        public: what describes the public pictures: groups of numbers, (n, any) each, n at least 2.
        describe: describes further pictures likewise.
    """

    def __init__(self, public: Sequence[Tensor], describe: Describe) -> None:
        self._describe = describe
        self._means = [group.mean(0) for group in public]
        spreads = [group.var(0).sum().clamp_min(_FLOOR).sqrt() for group in public]
        self._scales = [1 / spread for spread in spreads]
        rows = self._standard(public)
        _, axes = torch.linalg.eigh((rows.T @ rows).double())  # ascending
        self._axes = axes[:, -_AXES:].float()
        self.public = self._on_grid(rows)  # (n, axes)

    def place(self, pictures: Tensor) -> Tensor:
        """Return where pictures (n, c, h, w) in [0, 1] stand, (n, axes) int64, below half of FAR."""
        return self._on_grid(self._standard(self._describe(pictures)))

    def _on_grid(self, rows: Tensor) -> Tensor:
        places: Tensor = rows @ self._axes / _UNIT
        return places.round().clamp(-FAR / 2, FAR / 2).long()

    def _standard(self, groups: Sequence[Tensor]) -> Tensor:
        parts = zip(groups, self._means, self._scales, strict=True)
        return torch.cat([(group - mean) * scale for group, mean, scale in parts], dim=1)


def describe_with(extractor: Extractor | None) -> Describe:
    """Return what describes pictures: an operator's network, or without one colours and texture."""
    if extractor is None:
        return colours_and_texture
    return partial(_features, extractor)


def _features(extractor: Extractor, pictures: Tensor) -> Sequence[Tensor]:
    return [extractor(pictures)]


def colours_and_texture(pictures: Tensor) -> Sequence[Tensor]:
    """Return the means of 8 x 8 cells by channel, (n, 64 c), and the texture of the brightness in 4 x 4, (n, 256)."""
    small = functional.interpolate(pictures, (_SIDE, _SIDE), mode="bilinear", antialias=True)
    waves = texture(small.mean(1, keepdim=True))  # (n, 16, 8, 8)
    cells = ((small, _COLOUR_CELLS), (waves, _TEXTURE_CELLS))
    return [functional.adaptive_avg_pool2d(maps, count).flatten(1) for maps, count in cells]
