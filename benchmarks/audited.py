"""A mechanism beside its claim, as every audit by many draws needs it."""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.broken_mechanisms import no_noise
from privacy.accounting.certificate import pld_epsilon
from privacy.accounting.events import Event, GaussianEvent
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.auditing.distinguishing import Errors, count_errors

Scores = npt.NDArray[np.float64]
Coins = npt.NDArray[np.bool_]


@functools.cache
def _sampled_epsilon(claim: Event, delta: float) -> float:
    return pld_epsilon([claim], delta)


@dataclasses.dataclass(frozen=True)
class Audited:
    """A mechanism, its two neighbours and its claim.

    Attributes:
        name: for the table.
        claim: the event that is paid for; of several releases only where they are not sampled.
        draw: (present, draws, secret) -> (draws,) statistics of independent runs on one of two neighbours.
        draws: from each neighbour, enough to find a factor of two with an error below 1e-6 on either side.
        cut: the statistic above which the test says "with"; None for halfway between the neighbours without noise.
    """

    name: str
    claim: Event
    draw: Callable[[bool, int, bytes], Scores]
    draws: int = 600
    cut: float | None = None

    @property
    def threshold(self) -> float:
        """Where the test cuts; a function of public things."""
        if self.cut is not None:
            return self.cut
        with no_noise():
            ends = [float(self.draw(present, 1, bytes(32))[0]) for present in (False, True)]
        return sum(ends) / 2

    @property
    def probability(self) -> float:
        """The chance that is claimed for a unit to be in a sample; 1 where nothing is sampled."""
        return 1.0 if isinstance(self.claim, GaussianEvent) else self.claim.sampling_probability

    @property
    def mu(self) -> float:
        """The claimed mu of a run, of what is released of a sample where there is one."""
        if isinstance(self.claim, GaussianEvent):
            return math.sqrt(self.claim.count * float(self.claim.mu_squared_exact))
        assert self.claim.count == 1 or self.probability == 1
        return math.sqrt(self.claim.count) / self.claim.noise_multiplier

    def epsilon(self, delta: float) -> float:
        """The claimed epsilon of a run."""
        return gaussian_epsilon(self.mu, delta) if self.probability == 1 else _sampled_epsilon(self.claim, delta)

    def test(self, effort: int = 1) -> Errors:
        """Draw from both neighbours, each with a fresh secret, and count what the test gets wrong."""
        draws = effort * self.draws
        without, present = (self.draw(there, draws, secrets.token_bytes(32)) for there in (False, True))
        return count_errors(without, present, self.threshold)
