"""DataLens, Table 2: our default where epsilon is at most 1, beside what was published of DataLens and its competitors.

The evaluation's small CNN learns 8,000 synthetic images for ten epochs and is tested once (`benchmarks.small_folders`);
`quick` has one seed, `full` three. The competitors' rows are published figures alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from benchmarks.paper.accuracies import FOLDERS
from benchmarks.paper.rows import Row, row_of, since, spread
from benchmarks.small_folders import DELTA, OURS, SAMPLES, accuracy_of, draw, train

EPSILONS = (0.2, 0.4, 0.6, 0.8, 1.0)
OUR_DEFAULT = "DataLens, our default"
PUBLISHED: Mapping[str, Mapping[str, Sequence[float]]] = {
    "mnist": {
        "DP-GAN": (0.1104, 0.1524, 0.1022, 0.3732, 0.4046),
        "PATE-GAN": (0.2176, 0.2399, 0.3484, 0.3571, 0.4168),
        "G-PATE": (0.2230, 0.2478, 0.4184, 0.5377, 0.5810),
        "GS-WGAN": (0.0972, 0.1029, 0.1044, 0.1170, 0.1432),
        "DataLens": (0.2344, 0.2919, 0.4201, 0.6485, 0.7123),
    },
    "fashion-mnist": {
        "DP-GAN": (0.1021, 0.1302, 0.0998, 0.1210, 0.1053),
        "PATE-GAN": (0.1605, 0.2977, 0.3698, 0.3659, 0.4222),
        "G-PATE": (0.1874, 0.3020, 0.4283, 0.5258, 0.5567),
        "GS-WGAN": (0.1000, 0.1001, 0.1144, 0.1242, 0.1661),
        "DataLens": (0.2226, 0.3863, 0.4314, 0.5534, 0.6478),
    },
}
NEEDS = (
    "Table 2's competitors are built for Table 1 (benchmarks/paper/datalens.py); at these epsilons they are not run."
)


def table_2(dataset: str, budget: str) -> list[Row]:
    """Train the default at every epsilon, and name what was published of the others."""
    folder, rows = FOLDERS[dataset](), []
    for epsilon in EPSILONS:
        started, found = time.monotonic(), []
        for seed in range(1 if budget == "quick" else 3):
            generator, _, _ = train(folder, OURS, epsilon)
            found.append(accuracy_of(*draw(generator, SAMPLES, seed), folder, seed))
        setting = f"{SAMPLES:,} samples, delta {DELTA:g}"
        more = {**spread(found), "seconds": since(started)}
        rows.append(row_of("datalens", "2", OUR_DEFAULT, dataset, epsilon, setting, **more))
    for method, values in PUBLISHED.get(dataset, {}).items():
        for epsilon, published in zip(EPSILONS, values, strict=True):
            rows.append(row_of("datalens", "2", method, dataset, epsilon, "not run", published=published))
    return rows
