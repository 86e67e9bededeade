"""Add exact discrete Gaussian noise to a sum of integers of bounded sensitivity.

Continuous noise in floating point has gaps that reveal the low bits of what it was added to (Mironov 2012); here sums
and noise are integers. How a sum of gradients becomes one is said in `privacy.gradients.integers`.

Privacy:
    Neighbours' sums are integer vectors at most `bound` apart in L2 norm. Integer noise of deviation sigma times that
    is the event (sigma, counted with the smoothing variance of privacy.accounting.events).
"""

from __future__ import annotations

import math

import torch

from privacy.accounting.events import SMOOTHING_VARIANCE, positive_finite
from privacy.errors import InvalidParameter
from privacy.mechanisms.noise import SecureNoise


def release_sum(
    private_sum: torch.Tensor, *, bound: float, noise_multiplier: float, noise: SecureNoise
) -> torch.Tensor:
    """Release a sum of integers with noise of deviation `noise_multiplier * bound`, exactly as it is priced.

    Args:
        private_sum: any shape, int64; changes by at most `bound` in L2 norm when one unit is added.
        bound: above 0. Public.
        noise_multiplier: sigma > 0 of the event. Public.
        noise: a generator of this step alone.

    Returns:
        Integers like `private_sum`, where it is. Released; public from here on.

    Raises:
        InvalidParameter: a parameter is out of range, or the sum is no int64 (nothing is released).
    """
    if private_sum.dtype != torch.int64:
        raise InvalidParameter("private_sum", "(hidden)", "only integers are released")
    stddev = positive_finite("noise_multiplier", noise_multiplier) * positive_finite("bound", bound)
    stddev = math.nextafter(math.sqrt(stddev * stddev + SMOOTHING_VARIANCE) * (1 + 2.0**-50), math.inf)
    drawn = noise.discrete_gaussian(tuple(private_sum.shape), stddev)
    return private_sum + torch.from_numpy(drawn).to(private_sum.device)
