"""Accuracy tables of the DP-SGD family's papers: GEP 1, RGP 2, random freeze 1, 3 and 4.

`quick` trains the small CNN for 100 steps on the first images of a set, at the papers' epsilons; `full` has the papers'
networks, images and epochs, and needs a GPU.
Options are the papers' where they are told, and in `quick` rates and clips that were chosen in `reproductions.orders`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.classifier_runs import accuracy, first, plan_of, trained, without_noise
from benchmarks.reproductions.rows import FOLDERS, row_of
from benchmarks.results import Row, since, spread
from benchmarks.small_data import Folder

QUICK_SEEDS, FULL_SEEDS = (0, 1), (0, 1, 2, 3, 4)
_QUICK: dict[str, Any] = {
    "architecture": "cnn",
    "expected_batch": 128,
    "clip": 1.0,
    "learning_rate": 1.0,
    "momentum": 0.0,
}
_QUICK_RECORDS, _QUICK_STEPS = 10_000, 100


@dataclasses.dataclass(frozen=True)
class Arm:
    """A method of a table.

    Attributes:
        name: as the paper has it.
        published: accuracy in per cent by (dataset, epsilon); 0 is the epsilon of rows without privacy.
        quick: options beside those of all quick runs.
        full: options of the paper.
        epochs: of a full run, by epsilon.
        noise: whether there is any.
    """

    name: str
    published: Mapping[tuple[str, float], float]
    quick: Mapping[str, Any]
    full: Mapping[str, Any]
    epochs: Mapping[float, float]
    noise: bool = True


def _by(dataset: str, epsilons: Sequence[float], values: Sequence[float]) -> dict[tuple[str, float], float]:
    return {(dataset, epsilon): value for epsilon, value in zip(epsilons, values, strict=True)}


_GEP_EPSILONS = (2.0, 5.0, 8.0)
_GEP_FULL: dict[str, Any] = {
    **{"architecture": "resnet20", "expected_batch": 1000, "learning_rate": 0.1, "momentum": 0.9, "clip": 10.0},
    **{"rate_drops": 1, "weight_decay": 1e-4, "anchors": 2000, "basis_size": 1000, "basis_groups": "widths"},
}
_GEP_EPOCHS = {2.0: 50.0, 5.0: 100.0, 8.0: 200.0}
_GEP_QUICK: dict[str, Any] = {"anchors": 200, "basis_size": 100, "basis_groups": "widths"}


def _gep_1(name: str, estimator: str, mnist_values: Sequence[float], cifar_values: Sequence[float]) -> Arm:
    published = {**_by("mnist", _GEP_EPSILONS, mnist_values), **_by("cifar-10", _GEP_EPSILONS, cifar_values)}
    quick = {"estimator": estimator, **(_GEP_QUICK if estimator != "dpsgd" else {})}
    return Arm(name, published, quick, {"estimator": estimator, **_GEP_FULL}, _GEP_EPOCHS)


GEP_1 = (
    _gep_1("GP", "dpsgd", (94.7, 96.8, 97.2), (43.6, 52.2, 56.4)),
    _gep_1("B-GEP", "bgep", (93.1, 94.5, 95.9), (50.3, 59.5, 63.0)),
    _gep_1("GEP", "gep", (96.3, 97.9, 98.4), (59.7, 70.1, 74.9)),
)
_WRN: dict[str, Any] = {
    **{"architecture": "wrn28_4", "expected_batch": 1000, "clip": 1.0, "learning_rate": 0.1, "momentum": 0.9},
    **{"rate_drops": 3, "rate_decay": 0.2, "weight_decay": 5e-4},
}


def _rgp_2(name: str, estimator: str, value: float, noise: bool = True, clip: float = 1.0) -> Arm:
    epsilon = 8.0 if noise else 0.0
    lean = {"estimator": estimator, "clip": clip, "rank": 2, "learning_rate": 1.0 if clip == 1.0 else 0.1}
    whole = {**_WRN, "estimator": estimator, "clip": clip, "rank": 8}
    return Arm(name, {("cifar-10", epsilon): value}, lean, whole, {epsilon: 200.0}, noise)


_WIDE = 1e3  # a clip that touches no gradient
RGP_2 = (
    _rgp_2("Full (N.P.)", "dpsgd", 93.3, noise=False, clip=_WIDE),
    _rgp_2("RGP (N.P.)", "rgp", 91.2, noise=False, clip=_WIDE),
    _rgp_2("DP-SGD", "dpsgd", 55.9),
    _rgp_2("RGP-random", "rgp_random", 51.0),
    _rgp_2("RGP", "rgp", 63.4),
)
_FREEZE_EPSILONS = (3.0, 7.53)
_TANH: dict[str, Any] = {"architecture": "cnn", "expected_batch": 1000, "learning_rate": 1.0}
_MOMENTUM: dict[str, Any] = {"clip": 0.1, "momentum": 0.9}
_ADJUSTED: dict[str, Any] = {"clip": 1.0, "momentum": 0.0}


def _freeze(
    name: str, values: Sequence[float], setting: Mapping[str, Any], frozen: Mapping[str, Any], more: float = 0.0
) -> Arm:
    published = _by("cifar-10", _FREEZE_EPSILONS, values)
    options = {**setting, **frozen}
    return Arm(name, published, options, {**_TANH, **options}, {3.0: 40.0 + more, 7.53: 80.0 + more})


_BASELINE = _freeze("Baseline (C = 0.1, m = 0.9)", (60.4, 66.9), _MOMENTUM, {})
_BETTER = _freeze("Our adjusted baseline (C = 1, m = 0)", (63.1, 69.7), _ADJUSTED, {})
FREEZE_1 = (
    _BASELINE,
    _freeze(
        "Random freeze (r = 0.7)",
        (61.1, 66.7),
        _MOMENTUM,
        {"freeze": "random", "freeze_rate": 0.7, "freeze_cooling": 1.0},
    ),
)
_LAST = {"freeze_rate": 0.9, "freeze_cooling": 2 / 3}
FREEZE_3 = (
    _BASELINE,
    _BETTER,
    _freeze("Random freeze (r = 0.9)", (64.5, 70.2), _ADJUSTED, {"freeze": "random", **_LAST}, 20),
)
FREEZE_4 = (
    _BASELINE,
    _BETTER,
    _freeze("Ranked freeze (r = 0.9)", (64.6, 70.0), _ADJUSTED, {"freeze": "ranked", **_LAST}, 20),
)


def accuracy_rows(paper: str, table: str, arms: Sequence[Arm], dataset: str, budget: str) -> list[Row]:
    """Train every method of a table on one set, and return its rows."""
    whole = FOLDERS[dataset]()
    rows = []
    for epsilon in sorted({epsilon for arm in arms for _, epsilon in arm.published}):
        for arm in arms:
            if any(at == epsilon for _, at in arm.published):
                setting, found = _measured(arm, whole, epsilon, budget)
                found["published"] = arm.published.get((dataset, epsilon))
                rows.append(row_of(paper, table, arm.name, dataset, epsilon or None, setting, **found))
                print(f"  {arm.name} at {epsilon:g}: {rows[-1]['ours']:.1f}, {rows[-1]['seconds']:.0f} s", flush=True)
    return rows


def _measured(arm: Arm, whole: Folder, epsilon: float, budget: str) -> tuple[str, dict[str, Any]]:
    """Return the setting of a method and, in per cent, what its seeds found."""
    quick = budget == "quick"
    options = {**_QUICK, **arm.quick} if quick else dict(arm.full)
    folder = first(whole, _QUICK_RECORDS) if quick else whole
    epochs = 0.0 if quick else arm.epochs[epsilon]
    steps = _QUICK_STEPS if quick else round(epochs * len(folder.images) / options["expected_batch"])
    found, started = [], time.monotonic()
    for seed in QUICK_SEEDS if quick else FULL_SEEDS:
        plan = plan_of(folder, options, epsilon or 1.0, seed, steps)
        found.append(accuracy(trained(folder, plan if arm.noise else without_noise(plan)), folder))
    described = (
        f"{options['architecture']}, first {len(folder.images):,} images, {steps} steps of {options['expected_batch']}"
    )
    return described, {**spread(found, 100), "seconds": since(started)}
