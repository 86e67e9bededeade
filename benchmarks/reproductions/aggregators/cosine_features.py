"""Public features of images for teachers that are linear in them: the lowest cosine waves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from privacy.plans.plan import PublicFacts
from workers.recipes.blocks import computed_alike
from workers.recipes.moments.coefficients import cosine_basis

_CENTRE_BYTE = 64  # public constant near the mean brightness of pictures
_STEPS = 2**20  # steps per unit of a cosine wave's integers
_FEATURES_BLOCK = 512  # images whose features are computed together


@dataclass(frozen=True)
class CosineFeatures:
    """Public: the lowest cosine waves as rows (F, pixels), and the scale that images' coefficients have (F,)."""

    basis: torch.Tensor
    scale: torch.Tensor

    def __call__(self, images: npt.NDArray[np.uint8]) -> torch.Tensor:
        """Return scaled coefficients (n, F) of images (n, h, w[, c]) around mid-grey.

        Integer arithmetic in float64 is exact, so a record's coefficients do not depend on how a matrix product
        groups the records around it: one record cannot change another's features even in the last bit.
        """
        waves = (self.basis.double() * _STEPS).round().T  # (pixels, F) integers; sums stay below 2^53
        unit = self.scale.double() * (255 * _STEPS)

        def compute(block: npt.NDArray[np.uint8]) -> torch.Tensor:
            flat = (np.moveaxis(block, 3, 1) if block.ndim == 4 else block).reshape(len(block), -1)
            rows = torch.from_numpy(flat.astype(np.float64)) - _CENTRE_BYTE
            return (rows @ waves / unit).float()

        return computed_alike(images, compute, _FEATURES_BLOCK)


def cosine_features(facts: PublicFacts, coefficients: int) -> CosineFeatures:
    """Choose the `coefficients` lowest frequencies; amplitudes fall off like 1 / frequency, as in natural pictures."""
    rows, columns = np.arange(facts.height), np.arange(facts.width)
    frequency = np.hypot(rows[:, None] * 28 / facts.height, columns[None, :] * 28 / facts.width).ravel()
    chosen = np.argsort(np.tile(frequency, facts.channels), kind="stable")[:coefficients]
    pixels = facts.height * facts.width
    row, column = np.divmod(chosen % pixels, facts.width)
    down, across = cosine_basis(facts.height, facts.height)[row], cosine_basis(facts.width, facts.width)[column]
    basis = np.zeros((len(chosen), facts.channels, pixels))
    waves = down[:, :, None] * across[:, None, :]  # (F, height, width)
    basis[np.arange(len(chosen)), chosen // pixels] = waves.reshape(len(chosen), pixels)
    scale = math.sqrt(pixels / 784) * 3.0 / (1.0 + frequency[chosen % pixels])
    return CosineFeatures(torch.from_numpy(basis.reshape(len(chosen), -1)).float(), torch.from_numpy(scale).float())
