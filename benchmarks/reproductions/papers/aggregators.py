"""DataLens, Tables 5 and 7: TopAgg against other aggregators in accuracy, and what its components are worth.

Tables 4 and 7 as the service's recipe makes them: `benchmarks.datalens_loop`.

Where they are compared, and how settings are chosen: `aggregator_set_ups`. `quick` has 10,000 records
and 667 teachers, as many records to a teacher as the paper; there noise costs every aggregator something. `full` has
the paper's 60,000 and 4,000. Accuracy is that of the nearest class image and of a logistic regression (`full`: the
evaluation's CNN) on samples around these images; both are tested once.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.datalens_published import ABLATED
from benchmarks.reproductions.papers.aggregator_set_ups import TOPAGG, Setting, SetUp, chosen, competitors, place, votes
from benchmarks.reproductions.papers.rows import Row, row_of, since, spread

_NOISELESS = "nearest without noise: "
_SEEDS = {"quick": 20, "full": 3}
_CLASSIFIERS = 5  # seeds with which a classifier learns, too
_SAMPLES = {"quick": 10_000, "full": 60_000}
_PUBLISHED_5 = {
    "mnist": {TOPAGG: 0.7123, "D2P-Fed": 0.1424, "FetchSGD": 0.6935},
    "fashion-mnist": {TOPAGG: 0.6478, "D2P-Fed": 0.1667, "FetchSGD": 0.6387},
}
_COMPONENTS = ("top-k", "stochastic quantisation", "threshold")


def set_ups(dataset: str, budget: str) -> list[SetUp]:
    """Where Tables 5 and 7 are made."""
    if budget == "full":
        return [SetUp(dataset, 60_000, 4000), SetUp(dataset, 60_000, 4000, epsilon=0.2)]
    return [SetUp(dataset, 10_000, 667), SetUp(dataset, 10_000, 667, coefficients=100, epsilon=0.5)]


def _measured(
    table: str, method: str, set_up: SetUp, budget: str, tries: Sequence[Setting], published: Any = None
) -> list[Row]:
    """Choose a setting, run it with several seeds and without noise, and return a row for each measure."""
    started = time.monotonic()
    best = chosen(set_up, tries)
    where, kind = place(set_up, held_out=False), "logistic_regression" if budget == "quick" else "cnn"
    found: dict[str, list[float]] = {"nearest": [], kind: [], "cosine": [], "ms an image": []}
    for seed in range(_SEEDS[budget]):
        learned = where.run(best)
        found["nearest"].append(where.accuracy(learned))
        if seed < _CLASSIFIERS:
            found[kind].append(where.classifier_accuracy(learned, kind, _SAMPLES[budget], seed))
        found["cosine"].append(learned.cosine)
        found["ms an image"].append(1000 * learned.seconds)
    seconds = since(started)
    noiseless = where.accuracy(where.run(best, noise=False))
    place_and_setting = f"{set_up.name}; {best.described()}; {len(tries)} tries"
    rows = []
    for measure, values in found.items():
        on_paper = published if measure == kind and set_up.epsilon == 1.0 else None
        setting = f"{measure}: {place_and_setting}"
        more = {**spread(values), "published": on_paper, "seconds": seconds, "measure": measure}
        rows.append(row_of("datalens", table, method, set_up.dataset, set_up.epsilon, setting, **more))
    without = {"ours": noiseless, "seeds": 1, "measure": "nearest without noise"}
    return [
        *rows,
        row_of("datalens", table, method, set_up.dataset, set_up.epsilon, _NOISELESS + set_up.name, **without),
    ]


def table_5(dataset: str, budget: str) -> list[Row]:
    """TopAgg, D2P-Fed, FetchSGD and no compression where a loop learns."""
    rows = []
    for set_up in set_ups(dataset, budget):
        for method, tries in competitors(place(set_up, held_out=True).dimension).items():
            published = _PUBLISHED_5.get(dataset, {}).get(method)
            rows += _measured("5", method, set_up, budget, tries, published)
    return rows


def table_7(dataset: str, budget: str) -> list[Row]:
    """Every choice of TopAgg's three components, and what each component adds: half of the factorial's contrasts."""
    rows = []
    for set_up in set_ups(dataset, budget):
        cells: dict[tuple[int, ...], list[float]] = {}
        for there in itertools.product((1, 0), repeat=3):
            top_k, stochastic, threshold = map(bool, there)
            tries = votes(place(set_up, held_out=True).dimension, top_k, stochastic, threshold)
            name = " + ".join(itertools.compress(_COMPONENTS, there)) or "plain signs of all coordinates"
            made = _measured("7", name, set_up, budget, tries, ABLATED.get(dataset, {}).get(there))
            cells[there] = next(row["runs"] for row in made if row["measure"] == "nearest")
            rows += made
        rows += [_effect(set_up, part, cells) for part in range(3)]
    return rows


def _effect(set_up: SetUp, part: int, cells: Mapping[tuple[int, ...], Sequence[float]]) -> Row:
    """What a component adds, over all four choices of the others; its standard error from the spread within cells."""
    signs = {there: 1 if there[part] else -1 for there in cells}
    effect = sum(signs[there] * statistics.mean(found) for there, found in cells.items()) / 4
    error = math.sqrt(sum(statistics.variance(found) / len(found) for found in cells.values())) / 4
    setting = f"nearest, with less without, over four pairs; sd is the standard error: {set_up.name}"
    more = {"ours": effect, "sd": error, "seeds": len(cells[1, 1, 1]), "measure": "effect"}
    return row_of("datalens", "7", f"effect of {_COMPONENTS[part]}", set_up.dataset, set_up.epsilon, setting, **more)


TABLES = {("datalens", "5"): table_5, ("datalens", "7"): table_7}
