"""How many coordinates rest in which step ("Differentially Private SGD with Sparse Gradients", 2022, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from privacy.errors import InvalidParameter


@dataclass(frozen=True)
class FreezeSchedule:
    """How much is frozen when. Public, like everything that follows from it.

    Attributes:
        rate: r*, the share of frozen coordinates at the end, in [0, 1).
        cooling_steps: steps over which the share grows to it, e* epochs in the paper; 0 starts with it.
        period: steps for which one mask stays: those of an epoch, or 1.
    """

    rate: float
    cooling_steps: float = 0.0
    period: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise InvalidParameter("rate", self.rate, "the share of frozen coordinates is at least 0 and below 1")
        if not self.cooling_steps >= 0:
            raise InvalidParameter("cooling_steps", self.cooling_steps, "steps are counted from 0")
        if self.period < 1:
            raise InvalidParameter("period", self.period, "a mask stays for one step at least")

    def at(self, step: int) -> float:
        """Return the share that is frozen in a step: r(e) = r* min(e / e*, 1), where e is when its mask was drawn."""
        if self.cooling_steps == 0:
            return self.rate
        return self.rate * min(step // self.period * self.period / self.cooling_steps, 1.0)

    def density(self, steps: int) -> float:
        """Return the paper's total density: the share of all coordinates of so many steps that are not frozen."""
        return 1 - sum(self.at(step) for step in range(steps)) / steps
