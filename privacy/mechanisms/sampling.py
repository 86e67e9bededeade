"""Poisson sampling: every unit enters a batch by a coin of its own, as the accountant assumes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from privacy.errors import InvalidParameter
from privacy.mechanisms.noise import SecureNoise

NOBODY = -1  # stands for an empty place


def poisson_sample(units: int, probability: float, noise: SecureNoise) -> npt.NDArray[np.int64]:
    """Draw one Poisson sample.

    Args:
        units: number of units (records or subjects) that there are. Private: never show how many were drawn.
        probability: chance of each, in (0, 1]. Public.
        noise: a generator of this step alone.

    Returns:
        (batch,) indices in ascending order; possibly none. PRIVATE: amplification holds only while nobody sees them.

    Privacy:
        Each unit is drawn independently with a chance of at most `probability` (exactly: rounded down to a multiple of
        2^-53), so `PoissonGaussianEvent(probability, ...)` describes a noisy sum over the sample. Whether a unit is
        drawn does not depend on which others exist, except that later coins move when one is added before them: coins
        are independent, so the distribution does not.

    Raises:
        InvalidParameter: the probability is not in (0, 1], or there is a negative number of units.
    """
    if not 0 < probability <= 1:
        raise InvalidParameter("probability", probability, "a chance to be drawn is above 0 and at most 1")
    if units < 0:
        raise InvalidParameter("units", units, "there cannot be fewer than none")
    return np.flatnonzero(noise.uniform(units) + 2.0**-53 <= probability)


def deal_passes(
    drawn: npt.NDArray[np.int64], units: int, size: int, groups: int, noise: SecureNoise
) -> list[list[npt.NDArray[np.int64]]]:
    """Deal a sample into groups by a coin of each unit's own, and each group into passes of one size.

    Args:
        drawn: (batch,) of `poisson_sample`, ascending. PRIVATE.
        units: as given there. PRIVATE.
        size: places of a pass. Public.
        groups: how many there are. Public.
        noise: a generator of this step and this purpose alone.

    Returns:
        Of each group its passes (size,): indices of units in ascending order, and `NOBODY` in the places left over at
        the end of the last. PRIVATE, their number too.

    Privacy:
        Which group a unit is in does not depend on which others exist, so one unit more changes its own group's passes
        alone: there the units behind it move on by one place. (Coins of units behind it in the stream move, too; they
        are independent of all data, so the distribution is that of coins which stay.)
    """
    group_of = (noise.integers64(units) % np.uint64(groups))[drawn] if groups > 1 else np.zeros(len(drawn))
    passes = []
    for group in range(groups):
        members = drawn[group_of == group]
        places = np.full(-(-len(members) // size) * size, NOBODY)
        places[: len(members)] = members
        passes.append(list(places.reshape(-1, size)))
    return passes
