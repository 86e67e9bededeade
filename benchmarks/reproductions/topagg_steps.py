"""DataLens, Tables 8 to 10 (Figure 3 draws Table 8): DP-SGD whose clipped gradients keep their largest coordinates.

`quick` takes 100 steps of 128 of all private records with the small CNN of 17,000 weights, two seeds; `full` has 15
epochs of 512 and ten seeds, and more epsilons. Every method has the same rates to choose from at each epsilon, tried
once on 5,000 training images that were held out. What is trained on all private records is tested once. On CIFAR-10
the paper learns a linear layer on features of an ImageNet network, which cannot be had as a package: the small CNN
stands in.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.classifier_runs import DELTA, accuracy, plan_of, trained, tuning, without_noise
from benchmarks.reproductions.rows import FOLDERS, row_of
from benchmarks.results import Row, since, spread
from benchmarks.small_data import Folder
from privacy.plans.plan import Plan

_SIZES: Mapping[str, dict[str, Any]] = {
    "quick": {"batch": 128, "steps": 100, "seeds": (0, 1), "tries": (0.3, 1.0)},
    "full": {"batch": 512, "steps": 1800, "seeds": tuple(range(10)), "tries": (0.1, 0.3, 1.0, 3.0)},
}
_QUICK_EPSILONS = (0.05, 0.2, 1.0, 8.0, math.inf)
_HELD_OUT, _TUNING_SEED = 5_000, 100
_WITHOUT = math.inf  # the epsilon of rows without noise
PLAIN = "GM-DP"


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to make a step.

    Attributes:
        keep: k, the share of a clipped gradient's squared norm that is kept; 1 is plain DP-SGD.
        noise: its standard deviation, over that which the kept share needs. Less than 1 is not private.
    """

    keep: float = 1.0
    noise: float = 1.0

    def options(self, batch: int, rate: float) -> dict[str, Any]:
        """Return the recipe's options."""
        made: dict[str, Any] = {"architecture": "cnn", "expected_batch": batch, "clip": 1.0, "momentum": 0.0}
        made |= {"estimator": "dpsgd"} if self.keep == 1 else {"estimator": "topagg", "keep": self.keep}
        return made | {"learning_rate": rate}

    def noisy(self, plan: Plan) -> Plan:
        """Return a plan with this noise."""
        if self.noise == 0:
            return without_noise(plan)
        (stage,) = plan.stages
        event = dataclasses.replace(stage.event, noise_multiplier=stage.event.noise_multiplier * self.noise)
        return dataclasses.replace(plan, stages=(dataclasses.replace(stage, event=event),))


WAYS: Mapping[str, Way] = {
    "TopAgg, k = 0.6": Way(0.6),
    "TopAgg, k = 0.7": Way(0.7),
    "TopAgg, k = 0.8": Way(0.8),
    PLAIN: Way(),
}
# By data set and epsilon, in the order of WAYS, per cent.
PUBLISHED_8: Mapping[str, Mapping[float, Sequence[float]]] = {
    "mnist": {
        0.05: (73.87, 75.81, 77.15, 78.40),
        0.1: (85.67, 86.12, 85.88, 84.55),
        0.2: (89.84, 90.25, 90.80, 91.17),
        1.0: (95.13, 95.22, 95.42, 95.41),
        _WITHOUT: (97.94, 98.58, 98.79, 99.08),
    },
    "cifar-10": {
        0.05: (65.10, 71.47, 72.03, 71.29),
        0.2: (79.44, 80.23, 80.76, 80.37),
        8.0: (85.13, 85.37, 85.62, 87.05),
        _WITHOUT: (85.19, 85.42, 85.80, 87.85),
    },
}
_KEEPS = (0.2, 0.4, 0.6)
_BY_COORDINATES = {  # Table 9, MNIST: by epsilon, in the order of _KEEPS
    0.05: (74.25, 78.45, 73.55),
    0.1: (83.65, 85.59, 86.41),
    0.2: (89.10, 90.48, 89.30),
}
_K = 0.8
CELLS: Mapping[str, Way] = {  # Table 10
    "TopK-GM-DP": Way(_K, 1 / math.sqrt(_K)),
    "TopAgg": Way(_K),
    "TopK-SGD": Way(_K, 0.0),
    PLAIN: Way(),
    "clipped SGD": Way(1.0, 0.0),
}
_PUBLISHED_10 = {0.1: (83.86, 85.88, 91.96, 85.05, 94.26), 1.0: (94.95, 95.42, 98.03, 95.56, 98.94)}
NEEDS = (
    "To keep a share of the *coordinates* leaves a gradient whose length lies in these at its clip: its sensitivity is "
    "C, and with the noise of sqrt(k) C it is not private. These rows of Table 9 are told and not run."
)


def _trained(folder: Folder, way: Way, epsilon: float, seed: int, rate: float, size: Mapping[str, Any]) -> float:
    """Return the accuracy in per cent after a training on a folder's private images."""
    without = math.isinf(epsilon)
    plan = plan_of(folder, way.options(size["batch"], rate), 1.0 if without else epsilon, seed, size["steps"])
    noisy = without_noise(plan) if without else way.noisy(plan)
    return 100 * accuracy(trained(folder, noisy), folder)


def compared(table: str, dataset: str, budget: str, ways: Mapping[str, Way], epsilon: float) -> list[Row]:
    """Choose every way's rate, train it with all seeds and return its row."""
    whole, size, rows = FOLDERS[dataset](), _SIZES[budget], list[Row]()
    held = tuning(whole, len(whole.images) - _HELD_OUT, _HELD_OUT)
    for name, way in ways.items():
        started = time.monotonic()
        tries = {rate: _trained(held, way, epsilon, _TUNING_SEED, rate, size) for rate in size["tries"]}
        rate = max(tries, key=lambda rate: tries[rate])
        runs = [_trained(whole, way, epsilon, seed, rate, size) for seed in size["seeds"]]
        told = ", ".join(f"rate {of:g}: {found:.1f} held out" for of, found in tries.items())
        noise = "" if way.noise == 1 else f", {way.noise:.3g} of its noise"
        setting = f"{size['steps']} steps of {size['batch']}, delta {DELTA:g}{noise}; {told}"
        at = None if math.isinf(epsilon) else epsilon
        more = {**spread(runs), "seconds": since(started)}
        rows.append(row_of("datalens", table, name, dataset, at, setting, **more))
    return rows


def _with(rows: Sequence[Row], published: Sequence[float]) -> list[Row]:
    return [{**row, "published": value} for row, value in zip(rows, published, strict=True)]


def table_8(dataset: str, budget: str) -> list[Row]:
    """TopAgg at three k beside plain DP-SGD, by epsilon."""
    rows = []
    for epsilon, published in PUBLISHED_8.get(dataset, {1.0: ()}).items():
        if budget == "quick" and epsilon not in _QUICK_EPSILONS:
            continue
        made = compared("8", dataset, budget, WAYS, epsilon)
        rows += _with(made, published) if published else made
    return rows


def table_9(dataset: str, budget: str) -> list[Row]:
    """TopAgg by norm, run, and by coordinates, told."""
    rows = []
    for epsilon, told in _BY_COORDINATES.items():
        made = compared("9", dataset, budget, WAYS, epsilon)
        rows += _with(made, PUBLISHED_8["mnist"][epsilon]) if dataset == "mnist" else made
        for keep, published in zip(_KEEPS, told, strict=True):
            name, why = f"TopAgg by coordinates, k = {keep:g}", "not run: not private at the published noise"
            value = published if dataset == "mnist" else None
            rows.append(row_of("datalens", "9", name, dataset, epsilon, why, published=value))
    return rows


def table_10(dataset: str, budget: str) -> list[Row]:
    """Compression and noise one by one, k = 0.8; cells without noise, or with less than their sensitivity asks for,
    are no private methods.
    """
    rows = []
    for epsilon, published in _PUBLISHED_10.items():
        made = compared("10", dataset, budget, CELLS, epsilon)
        rows += _with(made, published) if dataset == "mnist" else made
    return rows


TABLES: Mapping[tuple[str, str], Callable[[str, str], list[Row]]] = {
    ("datalens", "8"): table_8,
    ("datalens", "9"): table_9,
    ("datalens", "10"): table_10,
}
FIGURES = {("datalens", "3"): table_8}  # draws Table 8
