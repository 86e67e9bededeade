"""Poisson sampling: every unit's own coin decides whether it enters a batch, as the accountant assumes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from privacy.errors import InvalidParameter
from privacy.mechanisms.noise import SecureNoise

NOBODY = -1  # an empty place


def poisson_sample(units: int, probability: float, noise: SecureNoise) -> npt.NDArray[np.int64]:
    """Draw one Poisson sample.

    Args:
        units: number of units (records or subjects). Private.
        probability: of each unit, in (0, 1]. Public.
        noise: a generator of this step alone.

    Returns:
        (batch,) ascending indices, possibly none. PRIVATE, as is their number: amplification needs an unknown sample.

    Privacy:
        Each unit is drawn independently with at most `probability` (rounded down to a multiple of 2^-53). So
        `PoissonGaussianEvent(probability, ...)` describes a noisy sum over the sample. One more unit shifts the later
        coins of the stream; coins are independent, so the distribution stays the same.

    Raises:
        InvalidParameter: the probability is not in (0, 1], or the number of units is negative.
    """
    if not 0 < probability <= 1:
        raise InvalidParameter("probability", probability, "a sampling probability must be above 0 and at most 1")
    if units < 0:
        raise InvalidParameter("units", units, "the number of units cannot be negative")
    return np.flatnonzero(noise.uniform(units) + 2.0**-53 <= probability)


def deal_passes(
    drawn: npt.NDArray[np.int64], units: int, size: int, groups: int, noise: SecureNoise
) -> list[list[npt.NDArray[np.int64]]]:
    """Divide a sample into groups by each unit's own coin, and each group into passes of one size.

    Args:
        drawn: (batch,) result of `poisson_sample`, ascending. PRIVATE.
        units: number of units, as for `poisson_sample`. PRIVATE.
        size: places of a pass. Public.
        groups: number of groups. Public.
        noise: a generator of this step and purpose alone.

    Returns:
        For each group its passes (size,) of ascending indices, with `NOBODY` in the empty places at the end. PRIVATE,
            including their number.

    Privacy:
        A unit's group does not depend on the other units. So one more unit changes only its own group's passes, where
        later units move by one place. (Later coins of the stream shift; they are independent of all data.)
    """
    group_of = (noise.integers64(units) % np.uint64(groups))[drawn] if groups > 1 else np.zeros(len(drawn))
    passes = []
    for group in range(groups):
        members = drawn[group_of == group]
        places = np.full(-(-len(members) // size) * size, NOBODY)
        places[: len(members)] = members
        passes.append(list(places.reshape(-1, size)))
    return passes
