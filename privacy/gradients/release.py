"""Add exact discrete Gaussian noise to a float sum of bounded sensitivity, on a public grid.

A sum of clipped gradients is a float tensor. Continuous noise in floating point has gaps that reveal its low bits
(Mironov 2012), so the sum is first rounded to integers of a grid far finer than the noise.

Privacy:
    Let s and s' be sums of neighbours, ||s - s'|| <= C, in d coordinates, and g the grid. Rounding moves a coordinate
    by at most g/2, so ||round(s/g) - round(s'/g)|| <= C/g + sqrt(d). Integer noise of deviation sigma times that is the
    event (sigma, counted with the smoothing variance of privacy.accounting.events). With g = C 2^-24 the second
    term costs 6e-5 of the noise at a million coordinates.

    Assumed, and not proven: rounding errors of the float sum itself, over all records together, stay within FLOAT_SLACK
    of C. Clipping leaves that much room.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from privacy.accounting.events import SMOOTHING_VARIANCE, positive_finite
from privacy.errors import InvalidParameter
from privacy.gradients.layers import Shares
from privacy.mechanisms.noise import SecureNoise

GRID_BITS = 24
FLOAT_SLACK = 2.0**-10


def integer_sensitivity(coordinates: int) -> float:
    """Return the L2 sensitivity, in grid steps, of a sum of sensitivity C that was rounded to the grid C 2^-24."""
    return 2.0**GRID_BITS + math.sqrt(coordinates)


def release_sum(sums: Shares, *, sensitivity: float, noise_multiplier: float, noise: SecureNoise) -> Shares:
    """Release float sums with noise of deviation `noise_multiplier * sensitivity`, exactly as it is priced.

    Args:
        sums: by name, any shapes; together they change by at most `sensitivity` in L2 norm when one unit is added.
        sensitivity: C > 0. Public.
        noise_multiplier: sigma > 0 of the event. Public.
        noise: a generator of this step alone.

    Returns:
        Tensors like `sums`: multiples of the grid. Released; public from here on.

    Raises:
        InvalidParameter: a parameter is out of range, or a sum is not finite (nothing is released).
    """
    grid = positive_finite("sensitivity", sensitivity) * 2.0**-GRID_BITS
    coordinates = sum(value.numel() for value in sums.values())
    stddev = positive_finite("noise_multiplier", noise_multiplier) * integer_sensitivity(coordinates)
    stddev = math.nextafter(math.sqrt(stddev * stddev + SMOOTHING_VARIANCE) * (1 + 2.0**-50), math.inf)
    flat = torch.cat([value.detach().reshape(-1).double().cpu() for value in sums.values()]).numpy() / grid
    if not np.isfinite(flat).all() or np.abs(flat).max(initial=0.0) > 2.0**52:
        raise InvalidParameter("sums", "(hidden)", "a sum is not finite")
    integers = np.rint(flat).astype(np.int64) + noise.discrete_gaussian(coordinates, stddev)
    values = torch.from_numpy(integers * grid)
    released: Shares = {}
    start = 0
    for name, value in sums.items():
        released[name] = values[start : start + value.numel()].reshape(value.shape).to(value)
        start += value.numel()
    return released
