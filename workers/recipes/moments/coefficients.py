"""What the warm start sees of private images: coefficients in a public basis, each record's exact to the last bit."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from privacy.plans.datalens.options import DataLensConfig
from privacy.plans.moments.detail import LUMA_CHROMA, coefficients_of
from privacy.plans.plan import PublicFacts
from workers.recipes.blocks import computed_alike

Array = npt.NDArray[np.float64]
_BLOCK = 512  # records whose products are formed at once
_ROW_BITS = 24  # to which records are rounded before a product


def cosine_basis(length: int, frequencies: int) -> Array:
    """Return the first `frequencies` orthonormal cosine waves (DCT-II) of `length` samples, as rows."""
    positions = (np.arange(length) + 0.5) * np.pi / length
    waves = np.cos(np.arange(frequencies)[:, None] * positions[None, :])
    basis: Array = waves / np.linalg.norm(waves, axis=1, keepdims=True)
    return basis


def image_basis(config: DataLensConfig, facts: PublicFacts) -> Array:
    """Return the public basis as orthonormal rows (coefficients, pixels), pixels ordered (channel, row, column).

    Luma and chroma are an orthonormal change of the channels, so that a norm means the same in either.
    """
    seen = coefficients_of(config, facts)
    rows, columns = (
        cosine_basis(facts.height, facts.height)[seen.row],
        cosine_basis(facts.width, facts.width)[seen.column],
    )
    planes = LUMA_CHROMA if config.colour == "luma_chroma" else np.eye(facts.channels)
    plane = (rows[:, :, None] * columns[:, None, :]).reshape(len(seen), 1, -1)
    return (planes[seen.plane][:, :, None] * plane).reshape(len(seen), facts.pixels)


def coefficients(private_images: npt.NDArray[np.uint8], basis: Array, centre: float = 0.25) -> Array:
    """Return the images' coefficients around a public brightness, (n, coefficients). Private."""

    def compute(images: npt.NDArray[np.uint8]) -> Tensor:
        flat = (np.moveaxis(images, 3, 1) if images.ndim == 4 else images).reshape(len(images), basis.shape[1])
        return torch.from_numpy(exact_product(flat / 255.0 - centre, basis.T, largest=1.0))

    found: Array = computed_alike(private_images, compute, _BLOCK).numpy()
    return found


def exact_product(private_rows: Array, matrix: Array, largest: float) -> Array:
    """Multiply rows by a public or released matrix without rounding that depends on the other rows.

    A matrix product may add in another order when a row is inserted above, and the last bit of a neighbour's result
    would then depend on a record's presence. Here both factors are first rounded to binary fractions so short that
    every partial sum fits into 53 bits: any order gives the same bits.

    Args:
        private_rows: (n, p); entries beyond `largest` are cut.
        matrix: (p, f).
        largest: public bound of an entry.

    Returns:
        (n, f), each row a function of that row, the matrix and `largest` alone.
    """
    row_unit = 2.0 ** (math.frexp(largest)[1] - _ROW_BITS)
    matrix_bits = 52 - _ROW_BITS - math.ceil(math.log2(max(2, len(matrix))))
    peak = float(np.abs(matrix).max(initial=0.0))
    matrix_unit = 2.0 ** (math.frexp(peak)[1] - matrix_bits)
    rows = np.rint(np.clip(private_rows, -largest, largest) / row_unit)
    product: Array = (rows @ np.rint(matrix / matrix_unit)) * (row_unit * matrix_unit)
    return product
