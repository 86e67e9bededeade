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
import numpy.typing as npt

from obscura.wire.job_schemas import Expectation, ExpectedPoint
from obscura.wire.wording import show_epsilon, show_percent
from privacy.accounting.filter import NANO, Filter
from privacy.accounting.gaussian import gaussian_mu
from privacy.errors import InvalidParameter
from privacy.plans.moments import SEEN
from privacy.plans.plan import Plan, PublicFacts, mu_of
from privacy.plans.registry import RECIPES

Array = npt.NDArray[np.float64]

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
    plan: Plan,
    options: Mapping[str, Any],
    privacy_filter: Filter,
    facts: PublicFacts,
    left_nano: int,
    expected_units: int | None = None,
) -> Expectation:
    """Return what to expect of a plan, and along the account's remaining `left_nano`.

    Args:
        plan: built from `options` and `facts`.
        expected_units: number of units that the owner expects and states; None: as many as declared.

    Raises:
        InvalidParameter: more units are expected than declared.
    """
    limit, recipe = facts.units_declared, plan.recipe
    if expected_units is not None and expected_units > limit:
        why = f"the dataset's limit is {limit:,} {facts.unit}s: expect at most as many, or declare a higher limit"
        raise InvalidParameter("expected_units", expected_units, why)
    units = expected_units or limit
    each = units / len(facts.classes)
    bands = RECIPES[recipe].bands(options, facts, each)
    measured, harder = _references(recipe, facts, each)
    is_far = 2 * units < limit  # options follow from the limit; measurements used options for their number of units
    starts = [math.inf] if is_far else [_LESS_SIGNAL * signals[0] for signals, _ in measured.values()]
    known_from = max(starts, default=math.inf)

    def band_at(q: float) -> str | None:
        return next((name for name in reversed(tuple(bands)) if bands[name] <= q), None)

    def accuracy_at(q: float) -> tuple[float, float] | None:
        if q < known_from or band_at(q) == "noise":
            return None
        found = [float(np.interp(math.log(q), np.log(signals), best)) for signals, best in measured.values()]
        return round(min(found), 3), round(max(found), 3)

    def needed_nano(q: float) -> int:
        return math.ceil((q / each) ** 2 * NANO)

    q = each * mu_of(plan.cost_nano)
    band, accuracy, following = band_at(q), accuracy_at(q), next((name for name in bands if bands[name] > q), None)
    epsilon = more = None
    if following is not None:
        if (next_nano := needed_nano(bands[following])) <= left_nano:
            epsilon = privacy_filter.epsilon_of(next_nano)
        if bands[following] <= MORE_MOST * q:
            more = _rounded_up(units * bands[following] / q)
    shares = (left_nano * part // CURVE_POINTS for part in range(CURVE_POINTS + 1))
    edges = (needed_nano(least) for least in (*bands.values(), known_from) if 0 < least < math.inf)
    curve = []
    for cost_nano in sorted({*shares, *(nano for nano in (*edges, plan.cost_nano) if nano <= left_nano)}):
        signal, there = each * mu_of(cost_nano), privacy_filter.epsilon_of(cost_nano)
        point = ExpectedPoint(cost_nano=cost_nano, epsilon=there, band=band_at(signal), accuracy=accuracy_at(signal))
        curve.append(point)
    sentences = [] if band is None else [SEEN[band]]
    if accuracy is not None:
        if band is not None and band not in RECOGNISABLE:
            sentences.append("A classifier can tell the classes apart where people cannot.")
        low, high = (show_percent(share, 0) for share in accuracy)
        learner = "Such a classifier" if RECIPES[recipe].publishes == "classifier" else "A small CNN that learns them"
        share = low if low == high else f"{low} to {high}"
        less = f"; {' and '.join(harder)} reach less" if harder else ""
        sentences.append(
            f"{learner} is right on {share} of real images. This is typical for {' and '.join(measured)}{less}."
        )
    if sentences and expected_units is None:
        sentences.append(f"This assumes the limit of {limit:,} {facts.unit}s; with fewer, expect less.")
    elif sentences:
        sentences.append(f"This assumes {units:,} {facts.unit}s, as you stated for this forecast.")
        if is_far:
            sentences.append(
                f"The recipe's options suit the limit of {limit:,}. A dataset with a limit near {units:,} gives better "
                "images."
            )
    ways = [] if epsilon is None else [f"epsilon {show_epsilon(epsilon, up=True)}"]
    ways += [] if more is None else [f"about {more:,} {facts.unit}s at this epsilon"]
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
        accuracy=accuracy,
        summary=sentences or [unknown],
        next_band=following,
        next_epsilon=epsilon,
        next_units=more,
        curve=curve if left_nano >= CURVE_POINTS else [],
    )


def _references(recipe: str, facts: PublicFacts, units: float) -> tuple[dict[str, tuple[Array, Array]], list[str]]:
    """Return the measured signals and accuracies of each comparable set, and the names of sets that reach less.

    Sets are comparable if they have as many channels, a similar number of classes, and measurements with about `units`
    units per class or fewer; if no set has such few, the one with the fewest. They do not depend on the budget, so
    expected accuracies never fall when the budget rises.
    """
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    fewest: dict[str, float] = {}
    for of_recipe, images, channels, classes, records, accuracies in MEASURED:
        if (of_recipe, channels) == (recipe, facts.channels) and 0.5 <= len(facts.classes) / classes <= 2:
            fewest[images] = min(records / classes, fewest.get(images, math.inf))
            for epsilon, accuracy in accuracies.items():
                rows[images].append((records / classes * gaussian_mu(epsilon, MEASURED_DELTA), accuracy))
    most = max(units / _LESS_SIGNAL, min(fewest.values(), default=0.0))
    measured = {}
    for name in rows:
        if fewest[name] <= most:
            signals, accuracies_there = np.array(sorted(rows[name])).T
            measured[name] = signals, np.maximum.accumulate(accuracies_there)  # sizes differ in their protocols
    return measured, [name for name in dict.fromkeys((*rows, "photographs")) if name not in measured]


def _rounded_up(number: float) -> int:
    """Round up to two significant digits."""
    unit = max(1, int(10 ** (math.floor(math.log10(number)) - 1)))
    return math.ceil(number / unit) * unit
