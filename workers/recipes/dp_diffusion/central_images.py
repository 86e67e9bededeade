"""Central images (Gong et al. 2025, DP-FETA): noisy means of each class, from which a diffusion model starts.

The published code divides by the number of records that were drawn; here the noisy sum is divided by a public constant,
so nothing about that number leaves.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from privacy.gradients.arithmetic import exact_arithmetic
from privacy.gradients.integers import noisy_sum
from privacy.mechanisms.clipping import clip_integer_rows
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.sampling import deal_passes, poisson_sample
from workers.recipes.units import Units, labels_of, pixels_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from privacy.accounting.events import PoissonGaussianEvent
    from workers.recipes.interface import TrainingData

_PASS_ROWS = 2048  # of images at once
_STEPS = 2.0**18  # integers of full brightness: as fine as the widest noise of a plan can be drawn for


@dataclasses.dataclass(frozen=True)
class CentralConfig:
    """Public parameters of one release.

    Attributes:
        classes: number of declared classes.
        channels: 1 or 3.
        size: height and width of a central image.
        bound: C, the largest L2 norm of one unit's part.
        event: Poisson sampling and noise; its count does not matter here.
        expected_each: units of each class that a sample would have if classes were equally frequent.
    """

    classes: int
    channels: int
    size: tuple[int, int]
    bound: float
    event: PoissonGaussianEvent
    expected_each: float

    @property
    def sensitivity(self) -> float:
        """C: each of a unit's rows adds an image of norm at most C / rows to one class's sum, in whole numbers."""
        return self.bound


def noisy_central_images(
    config: CentralConfig, data: TrainingData, units: Units, coins: SecureNoise, noise: SecureNoise
) -> Tensor:
    """Draw one noisy mean image of every class.

    Args:
        config: public parameters.
        data: PRIVATE.
        units: who owns which record. PRIVATE.
        coins: of the Poisson sample, for this release alone.
        noise: for this release alone.

    Returns:
        (classes, c, h, w) float32 in [0, 1]. Released.

    Privacy:
        Add or remove one unit. The sum over the sample changes by at most `config.sensitivity` in L2 norm when one unit
        is added to the sample: a row is clipped to norm C and lands in one class, and the rows of a unit are averaged.
        Charge `config.event` once before the call.
    """
    drawn = poisson_sample(units.count, config.event.sampling_probability, coins)
    sums = torch.zeros(config.classes, config.channels, *config.size, dtype=torch.int64)
    (passes,) = deal_passes(drawn, units.count, max(1, _PASS_ROWS // units.rows_each), 1, coins)
    for some in passes:
        sums += private_sums(config, data, units.records(some, coins), units.rows_each)
    noisy = noisy_sum(
        sums,
        bound=config.sensitivity * _STEPS,
        noise_multiplier=config.event.noise_multiplier,
        noise=noise,
    )
    return (noisy.double() / (config.expected_each * _STEPS)).clamp(0, 1).float()


def private_sums(config: CentralConfig, data: TrainingData, records: npt.NDArray[np.int64], rows_each: int) -> Tensor:
    """Return the sums (classes, c, h, w) int64 of clipped half-size images of some units' records. PRIVATE.

    In steps of 2^-18 of full brightness. Each of a unit's rows counts for a part of one, and is clipped as such.
    """
    with exact_arithmetic():
        images = functional.adaptive_avg_pool2d(pixels_of(data.private_images, records).double(), config.size)
    rows = (images.flatten(1) * (_STEPS / rows_each)).round().long().numpy()  # (records, d)
    clipped = clip_integer_rows(rows, config.bound * (_STEPS / rows_each))
    sums = torch.zeros(config.classes, rows.shape[1], dtype=torch.int64)
    sums.index_add_(0, labels_of(data.private_labels, records), torch.from_numpy(clipped))
    return sums.reshape(config.classes, *images.shape[1:])
