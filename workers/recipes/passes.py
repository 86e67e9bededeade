"""How many units go through a network together, in one pass of a private step: a public number."""

from __future__ import annotations

import math

import torch

from privacy.gradients.estimator import Estimator
from workers.recipes.ranks import ranks

_PASS_NUMBERS = 2**26  # of gradients by record that are in memory at once
_PASS_NUMBERS_GOOD = {"cpu": 2**22, "cuda": 2**26}  # on a CPU, they and activations should stay in its cache,
_PASS_ROWS_MAX = {"cpu": 64, "cuda": 4096}
_PASS_ROWS_GOOD = 8  # but fewer rows than these cost more than that saves
_ROUND = 32  # places of a pass, or a power of two below: see `privacy.gradients.arithmetic`


def pass_size(estimator: Estimator, repeats: int, device: torch.device) -> int:
    """Return how many units, of `repeats` rows each, go through the network together: a public number.

    Large passes are quick, and the last one is half empty on average. So they are as large as memory and caches allow,
    and no larger than nearly every sample, or each rank's part of one.
    """
    most, fitting = max(1, _PASS_ROWS_MAX[device.type] // repeats), _PASS_NUMBERS / estimator.coordinates
    good = max(_PASS_NUMBERS_GOOD[device.type] / estimator.coordinates, _PASS_ROWS_GOOD / repeats)
    room = min(fitting, good)
    expected = estimator.expected_batch / ranks()
    size = min(most, room, expected + 2 * math.sqrt(expected))
    return round(size / _ROUND) * _ROUND if size > _ROUND else 2 ** max(0, round(math.log2(size)))
