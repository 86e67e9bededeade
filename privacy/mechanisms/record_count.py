"""A public upper bound on the number of records of a collection whose owner states none, from one noisy count.

It is paid for by whoever calls, before `propose_bound` draws its noise.
"""

from __future__ import annotations

import math

from privacy.accounting.events import GaussianEvent
from privacy.mechanisms.noise import SecureNoise

STDDEV = 300.0  # A fiftieth of epsilon 0.1 at delta 1e-6, and a five-thousandth of epsilon 1.
MARGIN_STDDEVS = 5  # The bound is below the true number with probability 2.9e-7 at most.
BOUND_MIN = 100
STEP = (11, 10)  # Each number of the grid is at least that many times the one before.


def count_event(stddev: float) -> GaussianEvent:
    """Return the event of one noisy count of all records.

    Privacy:
        Adjacency add/remove of one record, which changes the count by exactly 1: every pair of neighbours attains the
        sensitivity. Where the unit is the subject there is no bound on what one adds, so nothing is counted there.
    """
    return GaussianEvent.of_discrete_noise(1.0, stddev)


def noisy_count(records: int, stddev: float, noise: SecureNoise) -> int:
    """Return the number of records with exact discrete Gaussian noise.

    Privacy:
        Costs `count_event(stddev)`, to be paid before.
    """
    return records + int(noise.discrete_gaussian(1, stddev)[0])


def propose_bound(records: int, stddev: float, noise: SecureNoise) -> int:
    """Return a number that is very likely no less than the number of records, and that may be declared.

    Args:
        records: how many there are. Private.
        stddev: of the noise, as it was paid for.
        noise: secret, and fresh for each call.

    Privacy:
        A post-processing of `noisy_count`, and of nothing else that is private.
    """
    return bound_above(noisy_count(records, stddev, noise), stddev)


def bound_above(noisy_count: int, stddev: float) -> int:
    """Return the least number of the public grid (100, 110, 121, 134, ...) that is a margin above a noisy count."""
    wanted = noisy_count + math.ceil(MARGIN_STDDEVS * stddev)
    bound = BOUND_MIN
    while bound < wanted:
        bound = -(-bound * STEP[0] // STEP[1])
    return bound
