"""Audit a mechanism with many draws on two neighbours: measure how well the best test distinguishes them.

The neighbours are the worst case of the sensitivity's proof. The test compares the likelihood ratio, or an increasing
function of it, with a threshold chosen before the draws. Its error rates are bounded from above (Clopper & Pearson
1934). Every claim of privacy is a lower bound on pairs of error rates. Thousands of draws detect a factor of two in the
noise, which one run of a training cannot show.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from privacy.errors import InvalidParameter


@dataclasses.dataclass(frozen=True)
class Errors:
    """Errors of a test: false alarms in draws without the unit, misses in draws with the unit (`present`)."""

    without: int
    false_alarms: int
    present: int
    misses: int

    def __post_init__(self) -> None:
        if not (0 <= self.false_alarms <= self.without and 0 <= self.misses <= self.present):
            raise InvalidParameter("errors", dataclasses.astuple(self), "there must be at most as many errors as draws")


def count_errors(
    scores_without: npt.NDArray[np.float64], scores_with: npt.NDArray[np.float64], threshold: float
) -> Errors:
    """Count errors of the test that says "with" above a threshold. The threshold must not depend on these scores."""
    return Errors(
        without=len(scores_without),
        false_alarms=int(np.count_nonzero(scores_without > threshold)),
        present=len(scores_with),
        misses=int(np.count_nonzero(~(scores_with > threshold))),
    )


def mu_lower_bound(errors: Errors, confidence: float, probability: float = 1.0) -> float:
    """Return a mu such that m-GDP is refuted for every m below it, with this confidence; 0 if none is.

    mu-GDP (Dong, Roth & Su 2022, arXiv:1905.02383) says misses >= Phi(Phi^-1(1 - false alarms) - mu) for the rates of
    every test. So mu >= -Phi^-1(false alarms) - Phi^-1(misses), which falls with both rates.

    With the unit, the release of a Poisson sample differs from that without the unit only with probability q. mu-GDP
    bounds the difference: misses >= (1 - q)(1 - false alarms) + q Phi(Phi^-1(1 - false alarms) - mu) for every test.
    This is the curve of the pair N(0, 1), (1 - q) N(0, 1) + q N(mu, 1). That is the dominating pair of the sampled
    Gaussian under adding a unit (Zhu, Dong & Wang 2022, arXiv:2106.08567). By this pair, accountants price
    `PoissonGaussianEvent(q, 1 / mu)`.

    Args:
        errors: of the test; one draw is the release of a whole step, including sampling.
        confidence: strictly between 0 and 1.
        probability: q, the claimed sampling probability, in (0, 1].

    Returns:
        Infinity if no mu explains the errors: the unit is visible in more than q of the draws.

    Raises:
        InvalidParameter: probability or confidence is out of range.
    """
    if not 0 < probability <= 1:
        raise InvalidParameter("probability", probability, "it must be above 0 and at most 1")
    false_alarms, misses = _rates_at_most(errors, confidence)
    of_drawn = (misses - (1 - probability) * (1 - false_alarms)) / probability  # misses in samples with the unit
    if of_drawn <= 0:
        return math.inf
    return max(0.0, -float(special.ndtri(false_alarms)) - float(special.ndtri(min(of_drawn, 1.0))))


def epsilon_lower_bound(errors: Errors, delta: float, confidence: float) -> float:
    """Return an epsilon such that (e, delta)-DP is refuted for every e below it, with this confidence; 0 if none is.

    (epsilon, delta)-DP says 1 - misses <= e^epsilon * false alarms + delta, and the same with the two rates exchanged.

    Raises:
        InvalidParameter: confidence is not strictly between 0 and 1, or delta is not in [0, 1].
    """
    if not 0 <= delta <= 1:
        raise InvalidParameter("delta", delta, "it must be between 0 and 1")
    rates = _rates_at_most(errors, confidence)
    best = 0.0
    for one, other in (rates, rates[::-1]):
        if 1 - other > delta:
            best = max(best, math.log(1 - other - delta) - math.log(one))
    return best


def _rates_at_most(errors: Errors, confidence: float) -> tuple[float, float]:
    """Bound both error rates from above with this joint confidence; each bound gets half of the failure probability."""
    if not 0 < confidence < 1:
        raise InvalidParameter("confidence", confidence, "it must be strictly between 0 and 1")
    level = (1 - confidence) / 2
    counted = ((errors.false_alarms, errors.without), (errors.misses, errors.present))
    first, second = (
        1.0 if wrong == draws else float(stats.beta.ppf(1 - level, wrong + 1, draws - wrong))
        for wrong, draws in counted
    )
    return first, second
