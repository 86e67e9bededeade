"""Texture of private images: each record's numbers depend on that record alone, to the last bit.

The same numbers as `portable.textured.texture`, in another arithmetic. Filters and pixels are integers, so that sums of
their products are exact in whatever order they are added; squares, sums of two and roots are rounded as IEEE 754 says,
wherever in a block a number stands; moduli are rounded to integers before they are added; and logarithms, which
libraries round as they like, come from one table.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from models.portable.textured import (
    CENTRE,
    FILTER_UNIT,
    LOG_FLOOR,
    MODULUS_FLOOR,
    ORIENTATIONS,
    SCALE,
    filters,
)
from models.sizes import TEXTURE_CELL as CELL
from models.sizes import texture_size
from privacy.plans.datalens.options import DataLensConfig
from privacy.plans.moments.detail import texture_waves
from privacy.plans.plan import PublicFacts
from workers.recipes.blocks import computed_alike
from workers.recipes.moments.coefficients import cosine_basis, exact_product

Array = npt.NDArray[np.float64]
LARGEST = 4.0  # beyond any number of a texture
_GRID = 2**12  # steps of a modulus from 0 to full brightness
_BLOCK = 64  # images whose windows are in memory at once


def texture_basis(config: DataLensConfig, facts: PublicFacts) -> Array:
    """Return the public basis of a texture as orthonormal rows (waves, maps * rows * columns).

    Cosine waves over the cells' rows and columns, real Fourier waves over orientations, and the sum or the difference
    of fine and coarse: a texture is smooth in all of them, so that few numbers hold most of it.
    """
    seen = texture_waves(config, facts)
    turns, lengths = _fourier_basis(ORIENTATIONS), np.array([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(2.0)
    down, across = (cosine_basis(side // CELL, side // CELL) for side in (facts.height, facts.width))
    factors = (lengths[seen.length], turns[seen.turn], down[seen.row], across[seen.column])
    basis: Array = np.einsum("kl,ko,ki,kj->kloij", *factors)
    return basis.reshape(len(seen.power), texture_size(facts.height, facts.width) if config.texture else 0)


def _fourier_basis(length: int) -> Array:
    """Return the orthonormal real Fourier waves of an even number of samples, as rows: 1, cos, sin, cos 2, ..."""
    at = 2.0 * np.pi * np.arange(length) / length
    waves = [np.ones(length)]
    for k in range(1, length // 2):
        waves += [np.cos(k * at), np.sin(k * at)]
    waves.append(np.cos(length // 2 * at))
    basis = np.stack(waves)
    found: Array = basis / np.linalg.norm(basis, axis=1, keepdims=True)
    return found


def texture_coefficients(private_images: npt.NDArray[np.uint8], basis: Array) -> Array:
    """Return the images' texture in a public basis, (n, waves). Private."""

    def compute(images: npt.NDArray[np.uint8]) -> Tensor:
        return torch.from_numpy(exact_product(_texture(images), basis.T, largest=LARGEST))

    found: Array = computed_alike(private_images, compute, _BLOCK).numpy()
    return found


def _texture(images: npt.NDArray[np.uint8]) -> Array:
    """Return the texture (b, maps * rows * columns) of a block of images (b, h, w[, 3]); sides are multiples of 4."""
    height, width = images.shape[1:3]
    block = images.astype(np.float64)
    luma = block.sum(axis=3) if block.ndim == 4 else block
    full = 255.0 * (block.shape[3] if block.ndim == 4 else 1)
    half = luma.reshape(len(luma), height // 2, 2, width // 2, 2).sum(axis=(2, 4))  # in units of 4 pixels
    fine, coarse = (bank[:, 0].numpy() for bank in filters())
    parts = (_numbers(luma, fine, full, CELL), _numbers(half, coarse, 4 * full, CELL // 2))
    found: Array = np.concatenate(parts, axis=1).reshape(len(luma), -1)
    return found


def _numbers(images: Array, bank: Array, full: float, cell: int) -> Array:
    """Return (b, ORIENTATIONS, rows, columns) of integer images (b, h, w), in which `full` is full brightness."""
    b, height, width = images.shape
    size = bank.shape[-1]
    around = np.pad(images, ((0, 0), (size // 2,) * 2, (size // 2,) * 2))
    windows = sliding_window_view(around, (size, size), axis=(1, 2)).reshape(-1, size * size)
    waves = windows @ bank.reshape(len(bank), -1).T  # integers below 2^53: exact
    unit = full / FILTER_UNIT
    modulus = np.sqrt(waves[:, 0::2] ** 2 + waves[:, 1::2] ** 2 + MODULUS_FLOOR * unit * unit) * (_GRID / unit)
    cells = np.rint(modulus).reshape(b, height // cell, cell, width // cell, cell, ORIENTATIONS).sum(axis=(2, 4))
    index = np.minimum(cells, cell * cell * _GRID).astype(np.int64) * (CELL // cell) ** 2
    return np.moveaxis(_logarithms()[index], 3, 1)


@cache
def _logarithms() -> Array:
    """Return the number of each sum of 16 rounded moduli."""
    means = np.arange(CELL * CELL * _GRID + 1) / (CELL * CELL * _GRID)
    return np.array([(math.log(mean + LOG_FLOOR) - CENTRE) * SCALE for mean in means])
