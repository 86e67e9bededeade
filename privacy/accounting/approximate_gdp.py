"""The cost of a whole job in approximate Gaussian differential privacy.

docs/explanation/accounting.md has the proof.

A job is dominated by (mu, d) if it reveals no more than this mechanism: reveal everything with probability d, otherwise
make one Gaussian release with parameter mu. Such jobs compose adaptively as long as their mu^2 and their d add up to no
more than an account has. An account allots d in proportion to mu^2, so a job's cost is one number, mu^2:

    price = the smallest m such that, at every epsilon, delta_job(epsilon) <= d + (1 - d) delta_G(sqrt(m), epsilon),
    where d = rate * m.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy  # `optimize` loads at first use, which takes a third of a second
from scipy import special

from privacy.accounting.events import Event, PoissonGaussianEvent
from privacy.accounting.gaussian import REMEMBERED, Floats, gaussian_deltas, gaussian_log_delta, gaussian_mu
from privacy.errors import InvalidParameter

_POINTS = 1024  # points of a job's curve; between them the curve is below the chords
_GRID = 0.1  # grid step of a privacy loss, relative to the deviation of one release's share of the total loss
_GRID_POINTS_MAX = 2**18  # points for the total loss: more than about a million releases are priced on a coarser grid
_ROUNDING = 2.0**-50  # error of a delta, per release plus 64: four times the observed error (tests/privacy/accounting)
_MARGIN = 1e-9  # relative tolerance of the inequality; normal probabilities are accurate to 1e-12
_HALVINGS = 60
_EPSILON_MAX = 600.0  # end of a curve, so that e^epsilon is finite; jobs that reveal more are priced as unsampled
_SHARE = 0.1  # share of delta that is allotted to d
_NOISE_LEAST, _NOISE_MOST = 0.1, 2.0**20  # range of noise multipliers to search
_NOISE_CLOSE = 2e-4  # relative tolerance of the least noise


@dataclass(frozen=True)
class Curve:
    """Upper bounds of a job's delta, for both directions of the neighbour relation.

    Attributes:
        epsilons: increasing, from 0.
        deltas: upper bounds of delta(epsilon) at these points. Between two points, the bound is their chord over
            e^epsilon. Beyond the last point, it is the last value.
        mu_squared: cost of the job if it did not sample. It would then equal one Gaussian release, which reveals at
            least as much.
    """

    epsilons: Floats
    deltas: Floats
    mu_squared: float


@functools.lru_cache(maxsize=2**10)
def curve(events: tuple[Event, ...]) -> Curve:
    """Return upper bounds of a job's delta. Its events (repeats included) must be fixed before its first release.

    Raises:
        InvalidParameter: there are no events.
    """
    if not events:
        raise InvalidParameter("events", [], "a job without events has no price")
    gaussian, sampled = Fraction(0), list[PoissonGaussianEvent]()  # mu^2 priced as unsampled, and the rest
    for event in events:
        if isinstance(event, PoissonGaussianEvent) and event.is_sampled and event.noise_multiplier >= _NOISE_LEAST / 2:
            sampled.append(event)
        else:
            gaussian += event.count * event.mu_squared_exact
    unsampled = gaussian + sum(event.count * event.mu_squared_exact for event in sampled)
    if not sampled:
        return Curve(np.zeros(0), np.zeros(0), float(unsampled))
    # Imported here, because the import takes seconds.
    from dp_accounting.pld import privacy_loss_distribution as losses

    releases = sum(event.count for event in sampled) + (gaussian > 0)
    width = math.sqrt(gaussian + sum(deviation(event) ** 2 for event in sampled))
    step = max(_GRID * width / math.sqrt(releases), (16 * width + width**2) / _GRID_POINTS_MAX)
    step = 2.0 ** math.floor(math.log2(step))
    parts = [
        losses.from_gaussian_mechanism(
            event.noise_multiplier, sampling_prob=event.sampling_probability, value_discretization_interval=step
        ).self_compose(event.count)
        for event in sampled
    ]
    if gaussian > 0:
        parts.append(losses.from_gaussian_mechanism(1 / math.sqrt(gaussian), value_discretization_interval=step))
    whole = functools.reduce(lambda first, second: first.compose(second), parts)
    rounding = (releases + 64) * _ROUNDING
    last = min(max(float(whole.get_epsilon_for_delta(2 * rounding)), step), _EPSILON_MAX)
    epsilons = np.linspace(0.0, last, _POINTS)
    deltas = np.asarray(whole.get_delta_for_epsilon(epsilons)) * (1 + _MARGIN) + rounding
    return Curve(epsilons, np.minimum(deltas, 1.0), float(unsampled))


def deviation(event: PoissonGaussianEvent) -> float:
    """Estimate the mu of an event with many releases by the central limit theorem.

    The estimate only sets grids and starting points of searches.
    Section 5 of Bu, Dong, Long & Su 2020 (arXiv:1911.11607).
    """
    noise = event.noise_multiplier
    spread = math.exp(min(noise**-2, 50.0)) * special.ndtr(1.5 / noise) + 3 * special.ndtr(-0.5 / noise) - 2
    spread = max(spread, noise**-2 / 2)  # its limit for large noise, where rounding errors dominate
    limit = math.sqrt(event.count) / noise
    return min(event.sampling_probability * math.sqrt(2 * event.count * spread), limit)


def split(epsilon: float, delta: float, given: float = 0.0) -> tuple[float, float]:
    """Split an account's (epsilon, delta) into its capacity mu^2 and d, the part of delta for that capacity.

    A tenth of delta is allotted to d. With a smaller d, steps on few units would cost more. With a larger d, Gaussian
    releases would cost more.

    Args:
        given: d allotted under an earlier limit. The result adds a tenth of the remaining delta to it.

    Returns:
        mu^2 and d with d + (1 - d) delta_G(mu, epsilon) <= delta.

    Raises:
        InvalidParameter: epsilon or delta is out of range.
    """
    d = given + _SHARE * (delta - given)
    return gaussian_mu(epsilon, (delta - d) / (1 - d)) ** 2 * (1 - _MARGIN), d


@functools.lru_cache(maxsize=REMEMBERED)
def mu_squared_within(epsilon: float, delta: float, rate: float, base: float = 0.0) -> float:
    """Return the largest mu^2, rounded down, that fits (epsilon, delta) with d = base + rate * mu^2; 0 if none does."""
    low, high = 0.0, gaussian_mu(epsilon, delta) ** 2
    if rate == base == 0:
        return high * (1 - _MARGIN)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        d = base + rate * middle
        fits = middle > 0 and d < delta
        fits = fits and gaussian_log_delta(math.sqrt(middle), epsilon) <= math.log((delta - d) / (1 - d))
        low, high = (middle, high) if fits else (low, middle)
    return low * (1 - _MARGIN)


def dominates(mu: float, d: float, job: Curve) -> bool:
    """Return whether (mu, d) dominates a job: delta_job <= d + (1 - d) delta_G(mu) at every epsilon >= 0.

    Between two points the job's delta is below a chord, a line in t = e^epsilon. The right-hand side is convex in t
    with slope -(1 - d) Phi(-epsilon / mu - mu / 2). So the difference is smallest where that slope equals the chord's,
    or at an end, and is checked there.
    """
    if not job.deltas[-1] <= d < 1:  # beyond the last point only d remains; d = 1 guarantees nothing
        return False
    left, growth = job.epsilons[:-1], np.expm1(np.diff(job.epsilons))  # of t, in units of e^left
    slope = (job.deltas[1:] - job.deltas[:-1]) / growth
    with np.errstate(divide="ignore"):
        log_slope = np.log(np.maximum(-slope, 0.0)) - math.log1p(-d) - left
    lowest = np.clip(-mu * (special.ndtri_exp(np.minimum(log_slope, 0.0)) + mu / 2), left, job.epsilons[1:])
    chord = job.deltas[:-1] + slope * np.expm1(lowest - left)
    room = d + (1 - d) * gaussian_deltas(mu, lowest)
    return bool(np.all(room * (1 - _MARGIN) >= chord))


def least_mu_squared(events: Sequence[Event], rate: float) -> float:
    """Return the smallest m, rounded up, such that (sqrt(m), rate * m) dominates a job of these events.

    Raises:
        InvalidParameter: there are no events.
    """
    job = curve(tuple(events))
    high = job.mu_squared  # dominates with d = 0: sampling reveals no more
    if not len(job.epsilons) or not dominates(math.sqrt(high), rate * high, job):
        return high
    low = high * 2.0**-_HALVINGS
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if not low < middle < high:
            break
        low, high = (low, middle) if dominates(math.sqrt(middle), rate * middle, job) else (middle, high)
    return high


def least_noise(probability: float, steps: int, mu_squared: float, rate: float) -> float:
    """Return the least noise multiplier of at least 0.1 with which steps fit a budget, within one part in 5,000.

    Args:
        probability: that a unit is in the sample of a step, below 1.
        steps: number of steps, including repeated ones.
        mu_squared: upper bound of their cost.
        rate: the account's d for each unit of mu^2.

    Raises:
        InvalidParameter: no noise is enough.
    """

    if steps / _NOISE_MOST**2 >= mu_squared:
        raise InvalidParameter("steps", steps, "no amount of noise makes so many steps affordable: take fewer")
    low, high = math.log(_NOISE_LEAST), math.log(_NOISE_MOST)  # too little noise, and enough noise

    def event(log_noise: float) -> PoissonGaussianEvent:
        return PoissonGaussianEvent(probability, math.exp(log_noise), steps)

    def guessed(log_noise: float) -> float:
        return 2 * math.log(deviation(event(log_noise))) - math.log(mu_squared)

    tried = float(scipy.optimize.brentq(guessed, low, high)) if guessed(low) > 0 > guessed(high) else (low + high) / 2
    slope = (guessed(tried + _NOISE_CLOSE) - guessed(tried)) / _NOISE_CLOSE
    before: tuple[float, float] | None = None
    while high - low > _NOISE_CLOSE:  # the first slope is the estimate's, later ones the secant's
        over = math.log(least_mu_squared([event(tried)], rate) / mu_squared)
        low, high = (tried, high) if over > 0 else (low, tried)
        if -_NOISE_CLOSE < over <= 0:
            break
        if before is not None and tried != before[0]:
            slope = (over - before[1]) / (tried - before[0])
        before = tried, over
        tried -= (over + _NOISE_CLOSE / 2) / min(slope, -1.0)
        if not low < tried < high:
            tried = (low + high) / 2
    return math.exp(high)
