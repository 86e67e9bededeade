"""DataLens, Table 2: the methods of Table 1 where epsilon is at most 1, beside what was published.

The small CNN learns 8,000 synthetic images for ten epochs and is tested once (`benchmarks.generator_runs`).
`quick` and `full` say how large the competitors' networks are, as in Table 1, and how many seeds there are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from benchmarks.datalens_published import BY_EPSILON
from benchmarks.generator_runs import SAMPLES, accuracy_of
from benchmarks.reproductions.papers.accuracies import FOLDERS
from benchmarks.reproductions.papers.datalens import (
    DC_GAN,
    DP_GAN,
    G_PATE,
    GS_WGAN,
    METHODS,
    PAPER,
    PATE_GAN,
    SEEDS,
    drawn,
    setting_of,
)
from benchmarks.reproductions.papers.rows import Row, row_of, since, spread

EPSILONS = (0.2, 0.4, 0.6, 0.8, 1.0)


def _papers(dataset: str) -> tuple[float, ...]:
    return tuple(BY_EPSILON[dataset][epsilon] for epsilon in EPSILONS)


PUBLISHED: Mapping[str, Mapping[str, Sequence[float]]] = {
    "mnist": {
        DP_GAN: (0.1104, 0.1524, 0.1022, 0.3732, 0.4046),
        PATE_GAN: (0.2176, 0.2399, 0.3484, 0.3571, 0.4168),
        G_PATE: (0.2230, 0.2478, 0.4184, 0.5377, 0.5810),
        GS_WGAN: (0.0972, 0.1029, 0.1044, 0.1170, 0.1432),
        PAPER: _papers("mnist"),
    },
    "fashion-mnist": {
        DP_GAN: (0.1021, 0.1302, 0.0998, 0.1210, 0.1053),
        PATE_GAN: (0.1605, 0.2977, 0.3698, 0.3659, 0.4222),
        G_PATE: (0.1874, 0.3020, 0.4283, 0.5258, 0.5567),
        GS_WGAN: (0.1000, 0.1001, 0.1144, 0.1242, 0.1661),
        PAPER: _papers("fashion-mnist"),
    },
}
NEEDS = "DC-GAN without privacy stands in Table 1."


def table_2(
    dataset: str, budget: str, seeds: Sequence[int] | None = None, methods: Sequence[str] = tuple(METHODS)
) -> list[Row]:
    """Make a row of every private method at each epsilon."""
    folder, rows = FOLDERS[dataset](), list[Row]()
    published = PUBLISHED.get(dataset, {})
    for method in [method for method in METHODS if method in methods and method != DC_GAN]:
        for number, epsilon in enumerate(EPSILONS):
            started, found = time.monotonic(), []
            for seed in seeds or SEEDS[budget]:
                found.append(accuracy_of(*drawn(method, folder, epsilon, seed, budget, SAMPLES), folder, seed))
            more = {**spread(found), "seconds": since(started)}
            more["published"] = published[method][number] if method in published else None
            setting = setting_of(method, budget, SAMPLES)
            rows.append(row_of("datalens", "2", method, dataset, epsilon, setting, **more))
            print(f"  {method} at {epsilon:g}: {rows[-1]['runs']}, {rows[-1]['seconds']} s", flush=True)
    return rows
