"""Forecast the result of a training before it is paid for. Uses declared numbers and published measurements, not data.

Both the band of detail and the accuracy follow from the signal q (`privacy.plans.warm_start.signal`): the number of
units per class, times mu. docs/research/previews.md and small_folders.md have the measurements.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from obscura.wire.job_schemas import Expectation, ExpectedPoint
from obscura.wire.wording import show_epsilon, show_percent
from privacy.accounting.filter import NANO, Filter
from privacy.accounting.gaussian import gaussian_mu
from privacy.plans.moments import SEEN
from privacy.plans.plan import Plan, PublicFacts, mu_of
from privacy.plans.registry import RECIPES
from privacy.plans.warm_start import signal

CURVE_POINTS = 12
RECOGNISABLE = ("shapes", "detail")
MORE_MOST = 1000  # a larger multiple of the declared number is no advice
_LESS_SIGNAL = 0.8  # smallest signal, relative to a measured one, for which its accuracy is still used
_NEXT = {"colours": "patches of colour", "outlines": "outlines", "shapes": "recognisable shapes", "detail": "detail"}
# Published accuracies on real images, by epsilon: of a CNN that learned the synthetic images, or of a classifier.
# Default options; recipe, images, channels, classes, records. tests/privacy/plans/test_expectations.py compares them
# with docs.
MEASURED_DELTA = 1e-5
MEASURED: Sequence[tuple[str, str, int, int, int, Mapping[float, float]]] = (
    ("moments", "digits", 1, 10, 1437, {1: 0.872, 3: 0.956, 10: 0.958}),
    ("moments", "clothes", 1, 10, 3000, {1: 0.700, 3: 0.773, 10: 0.810}),
    ("moments", "clothes", 1, 10, 10_000, {1: 0.786, 3: 0.808, 10: 0.827}),
    ("moments", "clothes", 1, 10, 60_000, {1: 0.844, 10: 0.864}),
    ("moments", "emoji", 3, 9, 3178, {3: 0.494, 10: 0.503}),
    ("moments", "photographs", 3, 10, 50_000, {1: 0.481, 10: 0.548}),
    ("dp_classifier", "clothes", 1, 10, 60_000, {1: 0.879, 3: 0.896}),
    ("datalens", "clothes", 1, 10, 60_000, {1: 0.665, 10: 0.726}),
)


def expect(
    plan: Plan, options: Mapping[str, Any], privacy_filter: Filter, facts: PublicFacts, left_nano: int
) -> Expectation:
    """Return what to expect of a plan, and along the account's remaining `left_nano`.

    Args:
        plan: built from `options` and `facts`.
    """
    bands, recipe = RECIPES[plan.recipe].bands(options, facts), plan.recipe
    q = signal(facts, mu_of(plan.budget_nano))

    def band_at(of_part: float) -> str | None:
        return next((name for name in reversed(tuple(bands)) if bands[name] <= of_part), None)

    def needed_nano(of_band: str) -> int:
        return math.ceil((bands[of_band] / facts.units_per_class) ** 2 * NANO)

    band, following = band_at(q), next((name for name, least in bands.items() if least > q), None)
    epsilon = units = None
    if following is not None:
        if (next_nano := needed_nano(following)) <= left_nano:
            epsilon = privacy_filter.epsilon_of(next_nano)
        if (more := bands[following] / q) <= MORE_MOST:
            units = _rounded_up(facts.units_declared * more)
    measured, named = _accuracy(recipe, facts, q)
    curve, shares = [], (left_nano * part // CURVE_POINTS for part in range(CURVE_POINTS + 1))
    for cost_nano in sorted({*shares, *(nano for each in bands if 0 < (nano := needed_nano(each)) <= left_nano)}):
        of_part, epsilon_of_part = signal(facts, mu_of(cost_nano)), privacy_filter.epsilon_of(cost_nano)
        accuracy, _ = _accuracy(recipe, facts, of_part)
        curve.append(
            ExpectedPoint(cost_nano=cost_nano, epsilon=epsilon_of_part, band=band_at(of_part), accuracy=accuracy)
        )
    sentences = [] if band is None else [SEEN[band]]
    if measured is not None:
        low, high = (show_percent(share, 0) for share in measured)
        learner = "Such a classifier" if RECIPES[recipe].publishes == "classifier" else "A small CNN that learns them"
        share = low if low == high else f"{low} to {high}"
        less = "" if "photographs" in named else "; photographs reach less"
        sentences.append(f"{learner} is right on {share} of real images. This is typical for {named}{less}.")
    ways = [] if epsilon is None else [f"epsilon {show_epsilon(epsilon, up=True)}"]
    ways += [] if units is None else [f"about {units:,} {facts.unit}s at this epsilon"]
    if following is not None and ways:
        sentences.append(f"For {_NEXT[following]}: {', or '.join(ways)}.")
    elif following is not None:
        sentences.append(f"The remaining budget does not suffice for {_NEXT[following]}.")
    elif band == "outlines" and facts.channels > 1:
        sentences.append("With this recipe, no budget makes images in colour recognisable; greyscale images can be.")
    unknown = "Nothing comparable was measured with this recipe. A preview shows a forecast."
    if RECIPES[recipe].publishes == "histogram":
        unknown = "This recipe publishes counts, not images."
    return Expectation(
        band=band,
        recognisable=None if band is None else band in RECOGNISABLE,
        accuracy=measured,
        summary=sentences or [unknown],
        next_band=following,
        next_epsilon=epsilon,
        next_units=units,
        curve=curve if left_nano >= CURVE_POINTS else [],
    )


def _accuracy(recipe: str, facts: PublicFacts, q: float) -> tuple[tuple[float, float] | None, str]:
    """Return the lowest and highest measured accuracy at signal q, and the names of the sets it was measured on.

    Use sets with as many channels and a similar number of classes. Interpolate in log q, never below a measured signal.
    """
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for of_recipe, images, channels, classes, records, accuracies in MEASURED:
        if (of_recipe, channels) == (recipe, facts.channels) and 0.5 <= len(facts.classes) / classes <= 2:
            for epsilon, accuracy in accuracies.items():
                rows[images].append((records / classes * gaussian_mu(epsilon, MEASURED_DELTA), accuracy))
    found = {}
    for name, points in rows.items():
        signals, measured = np.array(sorted(points)).T
        if q >= _LESS_SIGNAL * signals[0]:
            best = np.maximum.accumulate(measured)  # sets of different sizes had different protocols
            found[name] = round(float(np.interp(math.log(q), np.log(signals), best)), 3)
    return ((min(found.values()), max(found.values())), " and ".join(found)) if found else (None, "")


def _rounded_up(number: float) -> int:
    """Round up to two significant digits."""
    unit = max(1, int(10 ** (math.floor(math.log10(number)) - 1)))
    return math.ceil(number / unit) * unit
