"""The closed set of events that an account can pay for.

An event is one mechanism applied `count` times, described by public parameters only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from privacy.errors import InvalidParameter

if TYPE_CHECKING:
    # Imported at first use, because the import takes seconds.
    import dp_accounting

COUNT_MAX = 10**9

# The discrete Gaussian N_Z(0, s^2) obeys the zCDP and Renyi bounds of N(0, s^2) (Canonne, Kamath, Steinke 2020,
# arXiv:2004.00010, Theorem 4), but *not* its exact tradeoff curve. It does obey the curve of a slightly narrower
# Gaussian: draw X ~ N(f, s^2 - v), then round X to an integer by N_Z(X, v). The second step is post-processing, and
# the result has the probabilities of f + N_Z(0, s^2) up to the factor by which the normaliser sum_z exp(-(z - x)^2/2v)
# varies with x, which is (1 +- eta)/(1 -+ eta), eta = 2.01 exp(-2 pi^2 v), by Poisson summation. At v = 4 that is
# less than 2^-110 for one coordinate, so even 2^40 released coordinates stay 2^-70 from a post-processed Gaussian:
# far below the 1e-9 by which capacities are rounded down.
SMOOTHING_VARIANCE = 4


def positive_finite(name: str, value: float) -> float:
    """Return `value` as a float, or raise InvalidParameter unless it is positive and finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidParameter(name, value, "it must be a number")
    if not (math.isfinite(value) and value > 0):
        raise InvalidParameter(name, value, "it must be positive and finite")
    return float(value)


def check_integer(name: str, value: int, highest: int) -> None:
    """Raise InvalidParameter unless `value` is an integer between 1 and `highest`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise InvalidParameter(name, value, f"it must be an integer between 1 and {highest}")


@dataclasses.dataclass(frozen=True)
class GaussianEvent:
    """Release a quantity of bounded L2 sensitivity with Gaussian noise, `count` times.

    Attributes:
        sensitivity: L2 sensitivity of one release under the account's adjacency and unit.
        stddev: standard deviation of the noise of one release, in the units of the sensitivity.
        count: number of releases, adaptive or not.
    """

    sensitivity: float
    stddev: float
    count: int = 1
    is_sampled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivity", positive_finite("sensitivity", self.sensitivity))
        object.__setattr__(self, "stddev", positive_finite("stddev", self.stddev))
        check_integer("count", self.count, COUNT_MAX)

    @classmethod
    def of_discrete_noise(cls, sensitivity: float, stddev: float, count: int = 1) -> GaussianEvent:
        """Return the event of integers released with *discrete* Gaussian noise.

        Privacy: an integer query plus N_Z(0, stddev^2) is a post-processing of the same query with continuous noise of
        variance stddev^2 - SMOOTHING_VARIANCE (proof at that constant).

        Raises:
            InvalidParameter: stddev^2 is not above SMOOTHING_VARIANCE, or another field is invalid.
        """
        variance = Fraction(positive_finite("stddev", stddev)) ** 2 - SMOOTHING_VARIANCE
        if variance <= 0:
            raise InvalidParameter("stddev", stddev, f"discrete noise needs stddev > {math.sqrt(SMOOTHING_VARIANCE)}")
        continuous = math.sqrt(variance)
        while Fraction(continuous) ** 2 > variance:  # the float root may lie above; noise is rounded down
            continuous = math.nextafter(continuous, 0.0)
        return cls(sensitivity, continuous, count)

    @property
    def noise_multiplier(self) -> float:
        """Return noise stddev over sensitivity."""
        return self.stddev / self.sensitivity

    @property
    def mu_squared_exact(self) -> Fraction:
        """Return the square of the GDP parameter of one release, twice its zCDP rho, without rounding."""
        return (Fraction(self.sensitivity) / Fraction(self.stddev)) ** 2

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able description; `event_from_json` reads it back."""
        return {"type": "gaussian", **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class PoissonGaussianEvent:
    """Release a sum over a Poisson sample of the units with Gaussian noise, `count` times.

    Attributes:
        sampling_probability: chance, in (0, 1], with which each unit enters each sample independently.
        noise_multiplier: noise stddev over the L2 sensitivity of the sum to one sampled unit.
        count: number of releases, empty samples included.
    """

    sampling_probability: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        positive_finite("sampling_probability", self.sampling_probability)
        if self.sampling_probability > 1:
            raise InvalidParameter("sampling_probability", self.sampling_probability, "a probability is at most 1")
        object.__setattr__(self, "sampling_probability", float(self.sampling_probability))
        object.__setattr__(self, "noise_multiplier", positive_finite("noise_multiplier", self.noise_multiplier))
        check_integer("count", self.count, COUNT_MAX)

    @property
    def is_sampled(self) -> bool:
        """Return whether releases use random samples of the units, and are therefore priced as a whole."""
        return self.sampling_probability < 1

    @property
    def mu_squared_exact(self) -> Fraction:
        """Return the square of the GDP parameter of one release if it did not sample: an upper bound."""
        return 1 / Fraction(self.noise_multiplier) ** 2

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able description; `event_from_json` reads it back."""
        return {"type": "poisson_gaussian", **dataclasses.asdict(self)}


Event = GaussianEvent | PoissonGaussianEvent
_TYPES: Mapping[str, type[Event]] = {"gaussian": GaussianEvent, "poisson_gaussian": PoissonGaussianEvent}


def dp_event(event: Event) -> dp_accounting.DpEvent:
    """Convert an event to an event of the package dp-accounting."""
    import dp_accounting

    release = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    if isinstance(event, PoissonGaussianEvent):
        release = dp_accounting.PoissonSampledDpEvent(event.sampling_probability, release)
    return release if event.count == 1 else dp_accounting.SelfComposedDpEvent(release, event.count)


def event_from_json(document: Mapping[str, Any]) -> Event:
    """Read an event written by `to_json`.

    Raises:
        InvalidParameter: the type is unknown, a field is missing or unexpected, or a value is out of range.
    """
    fields = dict(document)
    kind = _TYPES.get(str(fields.pop("type", None)))
    if kind is None:
        raise InvalidParameter("type", document.get("type"), f"known events are {', '.join(sorted(_TYPES))}")
    expected = {field.name for field in dataclasses.fields(kind)}
    if set(fields) != expected:
        raise InvalidParameter("event", sorted(fields), f"this event has exactly the fields {sorted(expected)}")
    return kind(**fields)
