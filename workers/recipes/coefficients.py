"""Coefficients of private images for a warm start (`workers.recipes.warm_start`), exact to the last bit.

A record's numbers are its coefficients in a public basis of cosine waves, then of texture. The texture is that of
`models.portable.textured.texture`, computed in different arithmetic. Filters and pixels are integers, so sums of their
products are exact in any order. Squares, sums of two numbers and roots are rounded by IEEE 754, identically at every
position in a block. Moduli are rounded to integers before they are added. Logarithms, which libraries round
differently, come from one table.

Large images need no matrix of coefficients x pixels: a cosine wave over an image is the product of one over its rows
and one over its columns (the two-dimensional DCT is separable: Ahmed, Natarajan and Rao 1974, "Discrete cosine
transform"). So rows are multiplied first, then columns, and channels are mixed last. Rounded waves are not quite
orthonormal, which costs no privacy: records' numbers are clipped after they are computed, and sensitivities refer to
the clipped numbers (`workers.recipes.released_sums`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from models.portable.textured import CENTRE, FILTER_UNIT, LOG_FLOOR, MODULUS_FLOOR, ORIENTATIONS, SCALE, filters
from models.sizes import TEXTURE_CELL, texture_size
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import PublicFacts
from privacy.plans.symmetry import Action
from privacy.plans.warm_start import COLOUR_MIX, LUMA_CHROMA, action_of, coefficients_of, power_of, texture_waves
from workers.recipes.records import computed_alike

Array = npt.NDArray[np.float64]
_BLOCK, _BLOCK_NUMBERS = 512, 2**23  # records multiplied at once; fewer if they are large
_PRODUCT_BLOCK = 8192  # rows rounded at once: bounds memory
LARGE = 64 * 64  # pixels; above it, coefficients are computed with `SeparableWaves`
_ROW_BITS = 24  # bits to which records are rounded before a product
TEXTURE_LARGEST = 4.0  # larger than any number of a texture
_GRID = 2**12  # steps of a modulus from 0 to full brightness
_TEXTURE_BLOCK = 64  # images whose windows are in memory together
_EXACT = 53  # bits of an integer that float64 represents exactly; every partial sum fits into them
_PIXEL, _MIX = 8, 2  # bits of a pixel, and of the largest sum of the channels' factors (4)
_WAVES_NUMBERS = 2**18  # pixels converted to floats at once, so that they fit into caches
_DRAWN_NUMBERS = 2**20  # likewise, for generated images


def cosine_basis(length: int, frequencies: int) -> Array:
    """Return the first `frequencies` orthonormal cosine waves (DCT-II) of `length` samples, as rows."""
    positions = (np.arange(length) + 0.5) * np.pi / length
    waves = np.cos(np.arange(frequencies)[:, None] * positions[None, :])
    basis: Array = waves / np.linalg.norm(waves, axis=1, keepdims=True)
    return basis


@dataclass(frozen=True)
class MatrixWaves:
    """The public basis of cosine waves as one matrix: orthonormal rows (f, pixels)."""

    basis: Array

    def __len__(self) -> int:
        return len(self.basis)

    def of(self, private_images: npt.NDArray[np.uint8], centre: float) -> Array:
        """Return the coefficients (n, f) of images (n, h, w[, c]) uint8 less the brightness `centre`. Private."""
        rounded = RoundedMatrix(self.basis.T)

        def compute(images: npt.NDArray[np.uint8]) -> Tensor:
            flat = (np.moveaxis(images, 3, 1) if images.ndim == 4 else images).reshape(len(images), -1)
            return torch.from_numpy(rounded.exact_product(flat / 255.0 - centre, largest=1.0))

        block = max(1, min(_BLOCK, _BLOCK_NUMBERS // self.basis.shape[1]))
        return computed_alike(private_images, compute, block).numpy()

    def drawn(self, rows: Array) -> Array:
        """Turn coefficients (n, f) into pixels (n, pixels)."""
        return rows @ self.basis


@dataclass(frozen=True)
class Numbers:
    """The public bases in which a record is described.

    `texture` has shape (waves, numbers of a texture), or (0, 0) if there is none; `power` (f,) is the mean square that
    the public prior expects of each number.
    """

    waves: MatrixWaves | SeparableWaves
    texture: Array
    centre: float
    power: Array
    action: Action

    def of(self, private_images: npt.NDArray[np.uint8]) -> Array:
        """Return the numbers (n, f) that describe images (n, h, w[, c]) uint8. Private."""
        found = self.waves.of(private_images, self.centre)
        if not len(self.texture):
            return found
        return np.concatenate([found, texture_coefficients(private_images, self.texture)], axis=1)

    def drawn(self, rows: Array) -> Array:
        """Convert deviations (n, f) to deviations of pixels, followed by those of texture, if there is texture."""
        pixels, of_texture = self.waves.drawn(rows[:, : len(self.waves)]), rows[:, len(self.waves) :]
        return np.concatenate([pixels, of_texture @ self.texture], axis=1) if len(self.texture) else pixels


class Factors(Sequence[Array]):
    """A sequence of matrices (outputs, d), one per class, which map latents to images.

    Args:
        components: (f, d), the principal components in the numbers of a record.
        roots: (d, d) for each class, the root of its covariance.

    The factors of large images take most of the memory, so each is computed on access.
    """

    def __init__(self, numbers: Numbers, components: Array, roots: Sequence[Array]) -> None:
        self._numbers, self._components, self._roots = numbers, components, roots
        # `drawn` is slow with one large matrix, so call it once for all classes; with factored waves it is fast.
        self._drawn = numbers.drawn(components.T).T if isinstance(numbers.waves, MatrixWaves) else None

    def __len__(self) -> int:
        return len(self._roots)

    def __getitem__(self, label: Any) -> Any:
        root = self._roots[label]
        if self._drawn is None:
            return self._numbers.drawn((self._components @ root).T).T
        return self._drawn @ root


def numbers_of(config: MomentsConfig, facts: PublicFacts) -> Numbers:
    """Return the public bases of a configuration, with `SeparableWaves` for large images."""
    small = facts.height * facts.width <= LARGE
    waves = MatrixWaves(image_basis(config, facts)) if small else SeparableWaves(config, facts)
    texture = texture_basis(config, facts)
    return Numbers(waves, texture, config.centre, power_of(config, facts), action_of(config, facts))


def image_basis(config: MomentsConfig, facts: PublicFacts) -> Array:
    """Return the public basis as orthonormal rows (coefficients, pixels), pixels ordered (channel, row, column).

    The transform of the channels to luma and chroma is orthonormal, so it preserves an image's norm.
    """
    seen = coefficients_of(config, facts)
    rows = cosine_basis(facts.height, facts.height)[seen.row]
    columns = cosine_basis(facts.width, facts.width)[seen.column]
    planes = LUMA_CHROMA if config.colour == "luma_chroma" else np.eye(facts.channels)
    plane = (rows[:, :, None] * columns[:, None, :]).reshape(len(seen), 1, -1)
    basis = (planes[seen.kind][:, :, None] * plane).reshape(len(seen), facts.pixels)
    return seen.paired(basis, config.symmetry)


class RoundedMatrix:
    """A public or released matrix (p, f) for products whose rounding does not depend on other rows.

    A matrix product may add in another order if a row is inserted above. The last bit of a row's result would then
    depend on another record's presence. Here both factors are first rounded to short binary fractions, so that every
    partial sum fits into 53 bits: any order gives the same bits.
    """

    def __init__(self, matrix: Array) -> None:
        bits = 52 - _ROW_BITS - math.ceil(math.log2(max(2, len(matrix))))
        peak = float(max(-matrix.min(initial=0.0), matrix.max(initial=0.0)))
        self._unit = 2.0 ** (math.frexp(peak)[1] - bits)
        integers = matrix / self._unit
        self._integers: Array = np.rint(integers, out=integers)

    def exact_product(self, private_rows: Array, largest: float) -> Array:
        """Multiply private rows (n, p), whose entries are clipped to a public bound `largest`; return (n, f).

        Each result row is a function of its own row, the matrix and `largest` alone.
        """
        row_unit = 2.0 ** (math.frexp(largest)[1] - _ROW_BITS)
        product = np.empty((len(private_rows), self._integers.shape[1]))
        for at in range(0, len(private_rows), _PRODUCT_BLOCK):
            block = private_rows[at : at + _PRODUCT_BLOCK]
            rows = np.rint(np.clip(block, -largest, largest) / row_unit)
            product[at : at + _PRODUCT_BLOCK] = (rows @ self._integers) * (row_unit * self._unit)
        return product


def exact_product(private_rows: Array, matrix: Array, largest: float) -> Array:
    """Multiply rows (n, p) by a matrix (p, f) that is used only once; see `RoundedMatrix`."""
    return RoundedMatrix(matrix).exact_product(private_rows, largest)


def texture_basis(config: MomentsConfig, facts: PublicFacts) -> Array:
    """Return the public basis of a texture as orthonormal rows (waves, maps * rows * columns).

    The basis combines cosine waves over the cells' rows and columns, real Fourier waves over orientations, and sums or
    differences of scales. Textures are smooth in all of them, so few numbers describe most of a texture.
    """
    seen = texture_waves(config, facts)
    at, half = 2.0 * np.pi * np.arange(ORIENTATIONS) / ORIENTATIONS, ORIENTATIONS // 2
    between = (wave(k * at) for k in range(1, half) for wave in (np.cos, np.sin))
    turns = np.stack([np.ones(ORIENTATIONS), *between, np.cos(half * at)])  # 1, cos, sin, cos 2, ...
    turns /= np.linalg.norm(turns, axis=1, keepdims=True)
    lengths = np.array([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(2.0)
    down, across = (cosine_basis(side // TEXTURE_CELL, side // TEXTURE_CELL) for side in (facts.height, facts.width))
    factors = (lengths[seen.kind], turns[seen.turn], down[seen.row], across[seen.column])
    basis: Array = np.einsum("kl,ko,ki,kj->kloij", *factors)
    flat = basis.reshape(len(seen), texture_size(facts.height, facts.width) if config.texture else 0)
    return seen.paired(flat, config.symmetry)


def texture_coefficients(private_images: npt.NDArray[np.uint8], basis: Array) -> Array:
    """Return the coefficients (n, waves) of the images' textures in a public basis. Private."""
    rounded = RoundedMatrix(basis.T)

    def compute(images: npt.NDArray[np.uint8]) -> Tensor:
        return torch.from_numpy(rounded.exact_product(_texture(images), largest=TEXTURE_LARGEST))

    return computed_alike(private_images, compute, _TEXTURE_BLOCK).numpy()


def _texture(images: npt.NDArray[np.uint8]) -> Array:
    """Return the texture (b, maps * rows * columns) of a block of images (b, h, w[, 3]); sides are multiples of 4."""
    height, width = images.shape[1:3]
    block = images.astype(np.float64)
    luma = block.sum(axis=3) if block.ndim == 4 else block
    full = 255.0 * (block.shape[3] if block.ndim == 4 else 1)
    half = luma.reshape(len(luma), height // 2, 2, width // 2, 2).sum(axis=(2, 4))  # in units of 4 pixels
    fine, coarse = (bank[:, 0].numpy() for bank in filters())
    parts = (_numbers(luma, fine, full, TEXTURE_CELL), _numbers(half, coarse, 4 * full, TEXTURE_CELL // 2))
    return np.concatenate(parts, axis=1).reshape(len(luma), -1)


def _numbers(images: Array, bank: Array, full: float, cell: int) -> Array:
    """Return the texture (b, ORIENTATIONS, rows, columns) of integer images (b, h, w); `full` is full brightness."""
    b, height, width = images.shape
    size = bank.shape[-1]
    around = np.pad(images, ((0, 0), (size // 2,) * 2, (size // 2,) * 2))
    windows = sliding_window_view(around, (size, size), axis=(1, 2)).reshape(-1, size * size)
    waves = windows @ bank.reshape(len(bank), -1).T  # integers below 2^53: exact
    unit = full / FILTER_UNIT
    modulus = np.sqrt(waves[:, 0::2] ** 2 + waves[:, 1::2] ** 2 + MODULUS_FLOOR * unit * unit) * (_GRID / unit)
    cells = np.rint(modulus).reshape(b, height // cell, cell, width // cell, cell, ORIENTATIONS).sum(axis=(2, 4))
    index = np.minimum(cells, cell * cell * _GRID).astype(np.int64) * (TEXTURE_CELL // cell) ** 2
    return np.moveaxis(_logarithms()[index], 3, 1)


@cache
def _logarithms() -> Array:
    means = np.arange(TEXTURE_CELL * TEXTURE_CELL * _GRID + 1) / (TEXTURE_CELL * TEXTURE_CELL * _GRID)
    return np.array([(math.log(mean + LOG_FLOOR) - CENTRE) * SCALE for mean in means])


def integer_waves(length: int, frequencies: int, bits: int) -> Array:
    """Return the first cosine waves (DCT-II) of `length` samples as integers (frequencies, length) up to 2^bits.

    The second half of a wave mirrors the first half, with its sign, so that mirroring is exact.
    """
    half, frequency = (length + 1) // 2, np.arange(frequencies)[:, None]
    first = np.rint(np.cos(frequency * (np.arange(half) + 0.5)[None, :] * np.pi / length) * 2.0**bits)
    return np.concatenate([first, (-1.0) ** frequency * first[:, : length // 2][:, ::-1]], axis=1)


class SeparableWaves:
    """The public basis of cosine waves, in factored form.

    In this basis, declared symmetries only change signs of coefficients and swap pairs. `Waves.paired` converts
    coefficients of cosine waves to this basis, and back, because its matrix is symmetric and its own inverse.

    Attributes:
        down: (frequencies, height) integers, waves over rows.
        across: (frequencies, width) integers, waves over columns.
        mix: (planes, channels) integers, factors of the channels in each plane.
        seen: (f,) indices of the products that are used as coefficients.
    """

    def __init__(self, config: MomentsConfig, facts: PublicFacts) -> None:
        self.seen = seen = coefficients_of(config, facts)
        height, width = facts.height, facts.width
        bits = (_EXACT - _PIXEL - _MIX - math.ceil(math.log2(height)) - math.ceil(math.log2(width))) // 2
        self.down = integer_waves(height, int(seen.row.max()) + 1, bits)
        self.across = integer_waves(width, int(seen.column.max()) + 1, bits)
        self.mix = COLOUR_MIX if config.colour == "luma_chroma" else np.eye(facts.channels)
        self._symmetry, self._pixels = config.symmetry, facts.pixels
        plane, row, column = (np.square(each).sum(axis=1) for each in (self.mix, self.down, self.across))
        self._norms: Array = np.sqrt(plane[seen.kind] * row[seen.row] * column[seen.column])

    def __len__(self) -> int:
        return len(self.seen)

    def of(self, private_images: npt.NDArray[np.uint8], centre: float) -> Array:
        """Return the coefficients (n, f) of images (n, h, w[, c]) uint8 less the brightness `centre`. Private.

        Privacy:
            A record's numbers are a function of that record and public ones alone, to the last bit, on every machine
            whose float64 is IEEE arithmetic. *Proof.* Waves are at most 2^b, where b is `bits` in `__init__`. Every sum
            or partial sum of the products is an integer. Its magnitude is at most 2^8 * (h * 2^b) * (w * 2^b) * 2^2 <=
            2^53: float64 holds it exactly, so any order of addition, with or without fused multiplication, gives the
            same integer. Further operations are on each number by itself (a product, a difference). For `square`, two
            numbers of the same record are added or subtracted. All results are rounded as IEEE 754 says.
        """
        scale = 1.0 / self._norms
        factors = self.mix.sum(axis=1)[self.seen.kind], self.down.sum(axis=1), self.across.sum(axis=1)
        whole = factors[0] * factors[1][self.seen.row] * factors[2][self.seen.column]  # for uniform brightness 1
        middle = whole * scale * centre
        found = computed_alike(
            private_images,
            lambda images: torch.from_numpy(self._integers(images) * (scale / 255.0) - middle),
            max(1, _WAVES_NUMBERS // self._pixels),
        ).numpy()
        return self.seen.paired(found.T, self._symmetry).T

    def drawn(self, rows: Array) -> Array:
        """Turn coefficients (n, f) into pixels (n, channels * h * w), ordered (channel, row, column)."""
        scaled = self.seen.paired(rows.T, self._symmetry).T / self._norms
        planes, channels = self.mix.shape
        height, width = self.down.shape[1], self.across.shape[1]
        found = np.empty((len(rows), channels, height, width))
        block = max(1, _DRAWN_NUMBERS // self._pixels)
        for at in range(0, len(rows), block):
            part = scaled[at : at + block]
            grid = np.zeros((len(part), planes, len(self.down), len(self.across)))
            grid[:, self.seen.kind, self.seen.row, self.seen.column] = part
            mixed = np.einsum("npij,pc->ncij", grid, self.mix)
            np.matmul(self.down.T, mixed @ self.across, out=found[at : at + block])
        return found.reshape(len(rows), self._pixels)

    def _integers(self, images: npt.NDArray[np.uint8]) -> Array:
        b, height, width = images.shape[:3]
        channels = self.mix.shape[1]
        rows = images.reshape(b, height, width * channels).astype(np.float64)
        left = (self.down @ rows).reshape(b, len(self.down), width, channels)
        planes = np.moveaxis(left, 3, 1) @ self.across.T  # (b, c, frequencies, frequencies)
        mixed = self.mix @ planes.reshape(b, channels, -1)
        at = (self.seen.kind * len(self.down) + self.seen.row) * len(self.across) + self.seen.column
        return mixed.reshape(b, -1)[:, at]
