"""How many images go through a network together: fixed features in blocks of one size, private steps in passes.

Fixed features of private images are computed once, in blocks in which each image's depend on it alone.

As in the passes of private steps (`privacy.gradients.arithmetic`), a machine has to compute an image alike in every
place of a block, whoever stands in the others; that is tried on public images before the first private one, and blocks
are made smaller until it holds. Where the arithmetic is exact besides, any block gives the same bits, and a trial that
fails tells of a machine that breaks IEEE 754.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from privacy.gradients.estimator import Estimator
from privacy.gradients.places import rows_alike
from workers.recipes.ranks import ranks

if TYPE_CHECKING:
    import numpy.typing as npt

Compute = Callable[["npt.NDArray[np.uint8]"], Tensor]
_PUBLIC_IMAGES = 32
_PASS_NUMBERS = 2**26  # of gradients by record that are in memory at once
# On a CPU they should stay in its cache; what a linear layer adds is not written out, or a few records at a time.
_PASS_NUMBERS_GOOD = {"cpu": 2**22, "cuda": 2**26}
_PASS_ROWS_MAX = {"cpu": 64, "cuda": 4096}
_PASS_ROWS_SMALL, _PASS_INPUTS_SMALL = 512, 2**18  # on a CPU more rows, if they are small: so many numbers together
_PASS_ROWS_GOOD = 8  # fewer rows than these cost more than a cache saves
_ROUND = 32  # places of a pass, or a power of two below: see `privacy.gradients.arithmetic`


def alike_block(
    compute: Compute, shape: tuple[int, ...], most: int, agreed: Callable[[bool], bool] = lambda alike: alike
) -> int:
    """Return how many images are computed together: as many as were wished, or fewer, down to one.

    Args:
        compute: takes images (n, *shape) uint8, and returns what is computed of them, (n, ...).
        shape: of an image.
        most: that are wished.
        agreed: of several processes, whether all say so.
    """
    images = np.random.default_rng(0).integers(0, 256, (_PUBLIC_IMAGES, *shape), dtype=np.uint8)
    size = most
    while size > 1 and not agreed(rows_alike(lambda chosen: compute(images[chosen.numpy()]), size, len(images))):
        size //= 2
    return size


def in_blocks(private_images: npt.NDArray[np.uint8], compute: Compute, size: int) -> Tensor:
    """Compute images (n, ...) in blocks of one size, the last one filled up with black ones: (n, ...). PRIVATE."""
    n, found = len(private_images), torch.empty(0)
    for at in range(0, max(1, n), size):  # of no images, the shape
        block = np.zeros((size, *private_images.shape[1:]), dtype=np.uint8)
        there = private_images[at : at + size]
        block[: len(there)] = there
        part = compute(block)
        if at == 0:
            found = part.new_empty(n, *part.shape[1:])
        found[at : at + size] = part[: len(there)]
    return found


def computed_alike(private_images: npt.NDArray[np.uint8], compute: Compute, most: int) -> Tensor:
    """Compute images (n, ...) in blocks of `most`, or of as many as this machine computes alike: (n, ...). PRIVATE."""
    return in_blocks(private_images, compute, alike_block(compute, private_images.shape[1:], most))


def pass_size(estimator: Estimator, repeats: int, inputs: int, device: torch.device) -> int:
    """Return how many units, of `repeats` rows each, go through the network together: a public number.

    Large passes are quick, and the last one is half empty on average. So they are as large as memory and caches allow,
    and no larger than nearly every sample, or each rank's part of one.

    Args:
        estimator: of the network's gradient.
        repeats: rows of a unit.
        inputs: numbers of a row that enters the network.
        device: of the network.
    """
    small = min(_PASS_ROWS_SMALL, _PASS_INPUTS_SMALL // inputs)
    most = max(1, max(_PASS_ROWS_MAX[device.type], small) // repeats)
    fitting = _PASS_NUMBERS / estimator.coordinates
    written = sum(math.prod(shape) for shape in estimator.shapes.values() if len(shape) != 2)
    good = max(_PASS_NUMBERS_GOOD[device.type] / max(1, written), _PASS_ROWS_GOOD / repeats)
    room = min(fitting, good)
    expected = estimator.expected_batch / ranks()
    size = min(most, room, expected + 2 * math.sqrt(expected))
    return round(size / _ROUND) * _ROUND if size > _ROUND else 2 ** max(0, round(math.log2(size)))
