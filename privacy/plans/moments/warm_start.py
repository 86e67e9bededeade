"""What the warm start makes public and costs: noisy sums from which each class's Gaussian is fitted, or its clusters'.

Shared by the recipes that start from class moments: `moments`, `guided_moments`, and `dp_diffusion` with a
`moments_share`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from privacy.accounting.calibration import stddev_for
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter
from privacy.plans.plan import Stage

if TYPE_CHECKING:
    from privacy.plans.moments.options import MomentsConfig

QUANTISATION = 1024  # a clipped record is rounded to integers of norm at most this: discrete noise needs integers
COUNT_WEIGHT = QUANTISATION // 4  # of one record in its class's count: counts bear more noise than means
MEANS, POOLED, CLUSTERS, BY_CLASS = WARM_START = ("class_means", "pooled_covariance", "clusters", "class_covariances")
CLUSTER_ROUNDS = 3  # of k-means, each a release


def warm_start_event(name: str, stddev: float) -> GaussianEvent:
    """Return the event of one of the warm start's releases with discrete noise of that parameter.

    Privacy: a record (one of each subject, where the unit is the subject) adds its coefficients, of norm at most Q,
    and a count of Q/4 to the sum of one class or cluster; or an outer product of norm at most Q^2 to one matrix
    (`workers.recipes.moments.released_sums` has the proofs).
    """
    together = math.nextafter(math.hypot(QUANTISATION, COUNT_WEIGHT), math.inf)  # of coefficients and count
    sensitivity = together if name in (MEANS, CLUSTERS) else float(QUANTISATION**2)
    return GaussianEvent.of_discrete_noise(sensitivity, stddev)


def warm_start_stages(noise: Mapping[str, float], privacy_filter: Filter) -> list[Stage]:
    """Return the stages of the warm start's releases, of those that have noise."""
    events = {name: warm_start_event(name, noise[name]) for name in WARM_START if name in noise}
    events = {name: dataclasses.replace(event, count=_releases(name)) for name, event in events.items()}
    return [Stage(name, event, privacy_filter.price_nano(event), noise[name]) for name, event in events.items()]


def warm_start_noise(config: MomentsConfig, budget_nano: int) -> dict[str, float]:
    """Divide a budget by the warm start's shares; return each release's noise, by stage.

    Raises:
        InvalidParameter: the budget is too small.
    """
    shares = dict(
        zip(WARM_START, (config.mean_share, config.pooled_share, config.cluster_share, config.class_share), strict=True)
    )
    noise = {}
    left_nano = budget_nano
    for name, share in shares.items():
        if share == 0:
            continue
        share_nano = min(int(budget_nano * share), left_nano)  # shares may add up to a little more than 1
        left_nano -= share_nano
        if share_nano < _releases(name):
            raise InvalidParameter("budget_nano", budget_nano, "it is too small to pay for a warm start")
        sensitivity = warm_start_event(name, 1e9).sensitivity
        noise[name] = stddev_for(sensitivity, share_nano, _releases(name), discrete=True)
    return noise


def _releases(name: str) -> int:
    """Return how many releases a stage of the warm start has."""
    return CLUSTER_ROUNDS if name == CLUSTERS else 1
