"""Coefficients of large images: two small products for each image, and no matrix of coefficients x pixels.

A cosine wave over an image is the product of one over its rows and one over its columns (the two-dimensional DCT is
separable: Ahmed, Natarajan and Rao 1974, "Discrete cosine transform"). So an image is multiplied by the waves over
rows, what is left by those over columns, and channels are mixed last. Pixels and mixes are integers, and waves are
rounded to integers of so few bits that nothing in between is rounded at all (the proof is at `SeparableWaves.of`).

That rounded waves are not quite orthonormal costs no privacy: numbers of records are clipped after they are computed,
and sensitivities are those of the clipped ones (`workers.recipes.moments.released_sums`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from privacy.plans.moments.detail import COLOUR_MIX, Coefficients
from privacy.plans.moments.symmetry import Symmetry
from workers.recipes.blocks import computed_alike

Array = npt.NDArray[np.float64]
_EXACT = 53  # bits of an integer that float64 holds, and so may every partial sum have
_PIXEL, _MIX = 8, 2  # bits of a pixel, and of what the channels' factors add up to at most (4)
_BLOCK_NUMBERS = 2**18  # pixels of the images that are floats at once, so that caches hold them
_DRAWN_NUMBERS = 2**20  # likewise, of those that are drawn


def integer_waves(length: int, frequencies: int, bits: int) -> Array:
    """Return the first cosine waves (DCT-II) of `length` samples as integers (frequencies, length) up to 2^bits.

    The second half of a wave is the first one mirrored, with its sign, so that mirroring is exact.
    """
    half, frequency = (length + 1) // 2, np.arange(frequencies)[:, None]
    first = np.rint(np.cos(frequency * (np.arange(half) + 0.5)[None, :] * np.pi / length) * 2.0**bits)
    return np.concatenate([first, (-1.0) ** frequency * first[:, : length // 2][:, ::-1]], axis=1)


@dataclass(frozen=True)
class SeparableWaves:
    """The public basis of cosine waves as its factors.

    Attributes:
        down: waves over rows: integers (frequencies, height).
        across: likewise over columns, (frequencies, width).
        mix: integers (planes, channels), what channels are multiplied by in a plane.
        seen: which products of them are coefficients, (f,).
        symmetry: declared; `Waves.paired` makes sums and differences of what it swaps.
    """

    down: Array
    across: Array
    mix: Array
    seen: Coefficients
    symmetry: Symmetry

    @classmethod
    def of_size(
        cls, seen: Coefficients, height: int, width: int, channels: int, colour: str, symmetry: Symmetry
    ) -> SeparableWaves:
        """Return the waves that coefficients name, of images of one size."""
        bits = (_EXACT - _PIXEL - _MIX - math.ceil(math.log2(height)) - math.ceil(math.log2(width))) // 2
        down, across = (
            integer_waves(length, int(at.max()) + 1, bits) for length, at in ((height, seen.row), (width, seen.column))
        )
        mix = COLOUR_MIX if colour == "luma_chroma" else np.eye(channels)
        return cls(down, across, mix, seen, symmetry)

    def __len__(self) -> int:
        return len(self.seen)

    def of(self, private_images: npt.NDArray[np.uint8], centre: float) -> Array:
        """Return the coefficients (n, f) of images (n, h, w[, c]) uint8 around a public brightness. Private.

        Privacy:
            A record's numbers are a function of that record and public ones alone, to the last bit, on every machine
            whose float64 is IEEE arithmetic. *Proof.* With waves of at most 2^b, b as in `of_size`, every sum or
            partial sum of the products has magnitude at most 2^8 * (h * 2^b) * (w * 2^b) * 2^2 <= 2^53, and it is an
            integer: float64 holds it exactly, so any order of addition, with or without fused multiplication, gives
            the same integer. What follows is done with each number by itself (a product, a difference, for `square` a
            sum or difference of two of the same record), rounded as IEEE 754 says.
        """
        scale = 1.0 / self._norms()
        factors = self.mix.sum(axis=1)[self.seen.plane], self.down.sum(axis=1), self.across.sum(axis=1)
        whole = factors[0] * factors[1][self.seen.row] * factors[2][self.seen.column]  # what even brightness 1 has
        middle = whole * scale * centre

        def compute(images: npt.NDArray[np.uint8]) -> Tensor:
            return torch.from_numpy(self._integers(images) * (scale / 255.0) - middle)

        found = computed_alike(private_images, compute, max(1, _BLOCK_NUMBERS // self._pixels)).numpy()
        return self._paired(found)

    def drawn(self, rows: Array) -> Array:
        """Turn coefficients (n, f) into pixels (n, channels * h * w), ordered (channel, row, column)."""
        scaled, (planes, channels) = self._paired(rows) / self._norms(), self.mix.shape
        height, width = self.down.shape[1], self.across.shape[1]
        found = np.empty((len(rows), channels, height, width))
        block = max(1, _DRAWN_NUMBERS // self._pixels)
        for at in range(0, len(rows), block):
            part = scaled[at : at + block]
            grid = np.zeros((len(part), planes, len(self.down), len(self.across)))
            grid[:, self.seen.plane, self.seen.row, self.seen.column] = part
            mixed = np.einsum("npij,pc->ncij", grid, self.mix)
            np.matmul(self.down.T, mixed @ self.across, out=found[at : at + block])
        return found.reshape(len(rows), self._pixels)

    def _integers(self, images: npt.NDArray[np.uint8]) -> Array:
        """Return the sums (b, f) of pixels of images (b, h, w[, c]), times integers; exact."""
        b, height, width = images.shape[:3]
        channels = self.mix.shape[1]
        rows = images.reshape(b, height, width * channels).astype(np.float64)
        left = (self.down @ rows).reshape(b, len(self.down), width, channels)
        planes = np.moveaxis(left, 3, 1) @ self.across.T  # (b, c, frequencies, frequencies)
        mixed = self.mix @ planes.reshape(b, channels, -1)
        at = (self.seen.plane * len(self.down) + self.seen.row) * len(self.across) + self.seen.column
        found: Array = mixed.reshape(b, -1)[:, at]
        return found

    @property
    def _pixels(self) -> int:
        """Numbers in one image."""
        return math.prod(each.shape[1] for each in (self.mix, self.down, self.across))

    def _norms(self) -> Array:
        """Return the norm (f,) of each wave, in the integers' units."""
        plane, row, column = (np.square(each).sum(axis=1) for each in (self.mix, self.down, self.across))
        norms: Array = np.sqrt(plane[self.seen.plane] * row[self.seen.row] * column[self.seen.column])
        return norms

    def _paired(self, rows: Array) -> Array:
        """Replace numbers (n, f) of waves by those of the basis in which symmetries change signs and swap pairs alone.

        It is its own inverse and its own transpose.
        """
        return self.seen.waves.paired(rows.T, self.symmetry).T
