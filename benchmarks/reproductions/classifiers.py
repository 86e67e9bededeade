"""Tables of classifiers by DP-SGD's family: GEP 1, RGP 2 and 4, random freeze 1, 3 and 4, DataLens 8 to 10.

`quick` trains the small CNN of 17,000 weights for 100 steps at the papers' epsilons; `full` has the papers' networks,
images and epochs, and needs a GPU. Options are the papers' where they are published; `quick` has rates and clips that
were chosen in `reproductions.orders`. In DataLens' tables every method tries the same rates at each epsilon on 5,000
held-out training images. On CIFAR-10 that paper learns a linear layer on features of an ImageNet network, which is in
no package: the small CNN replaces it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.membership_inference import attack_by_loss
from benchmarks.reproductions.rows import FOLDERS, row_of
from benchmarks.results import Row, since, spread
from benchmarks.runs import DELTA, accuracy, steps_plan, tests_of, train_plan, without_noise
from benchmarks.small_data import Folder, channels_first
from models.private_classifier import PrivateClassifier
from privacy.plans.plan import Plan
from workers.recipes.dp_classifier import losses

HELD_OUT, TUNING_SEED = 5_000, 100
Options = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Arm:
    """A method of a table, under the paper's name."""

    name: str
    published: Mapping[tuple[str, float | None], float]  # per cent by (dataset, epsilon); None: rows without noise
    quick: Options  # beside those of all quick runs
    full: Options  # the paper's
    epochs: Mapping[float | None, float] = dataclasses.field(default_factory=dict)  # of a full run, by epsilon
    noise: float = 1.0  # times the noise that the plan asks for; less than 1 is not private

    def noisy(self, plan: Plan, epsilon: float | None) -> Plan:
        """Return a plan with this arm's noise."""
        if epsilon is None or self.noise == 0:
            return without_noise(plan)
        (stage,) = plan.stages
        event = dataclasses.replace(stage.event, noise_multiplier=stage.event.noise_multiplier * self.noise)
        return dataclasses.replace(plan, stages=(dataclasses.replace(stage, event=event),))


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is trained: the first records (None: all), steps (None: the arm's epochs), seeds, and rates to try."""

    records: int | None
    steps: int | None
    seeds: int
    rates: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Table:
    """The arms of a table, its epsilons, those of `quick`, and the sizes of both budgets."""

    arms: tuple[Arm, ...]
    epsilons: tuple[float | None, ...]
    quick_epsilons: tuple[float | None, ...] | None = None
    sizes: Mapping[str, Size] = dataclasses.field(
        default_factory=lambda: {"quick": Size(10_000, 100, 2), "full": Size(None, None, 5)}
    )


_QUICK: Options = {"architecture": "cnn", "expected_batch": 128, "clip": 1.0, "learning_rate": 1.0, "momentum": 0.0}


def _published(dataset: str, epsilons: Sequence[float | None], values: Sequence[float]) -> dict[Any, float]:
    return {(dataset, epsilon): value for epsilon, value in zip(epsilons, values, strict=True)}


_GEP_EPSILONS = (2.0, 5.0, 8.0)
_GEP_FULL: Options = {
    **{"architecture": "resnet20", "expected_batch": 1000, "learning_rate": 0.1, "momentum": 0.9, "clip": 10.0},
    **{"rate_drops": 1, "weight_decay": 1e-4, "anchors": 2000, "basis_size": 1000, "basis_groups": "widths"},
}
_GEP_QUICK: Options = {"anchors": 200, "basis_size": 100, "basis_groups": "widths"}


def _gep(name: str, estimator: str, mnist_values: Sequence[float], cifar_values: Sequence[float]) -> Arm:
    published = _published("mnist", _GEP_EPSILONS, mnist_values) | _published("cifar-10", _GEP_EPSILONS, cifar_values)
    quick = {"estimator": estimator, **(_GEP_QUICK if estimator != "dpsgd" else {})}
    full = {"estimator": estimator, **_GEP_FULL}
    return Arm(name, published, quick, full, dict(zip(_GEP_EPSILONS, (50, 100, 200), strict=True)))


_WRN: Options = {
    **{"architecture": "wrn28_4", "expected_batch": 1000, "learning_rate": 0.1, "momentum": 0.9},
    **{"rate_drops": 3, "rate_decay": 0.2, "weight_decay": 5e-4},
}
_WIDE = 1e3  # a clip that touches no gradient


def _rgp(name: str, estimator: str, value: float, private: bool = True) -> Arm:
    epsilon, clip = (8.0, 1.0) if private else (None, _WIDE)
    options = {"estimator": estimator, "clip": clip}
    quick = {**options, "rank": 2, "learning_rate": 1.0 if private else 0.1}
    return Arm(name, {("cifar-10", epsilon): value}, quick, {**_WRN, **options, "rank": 8}, {epsilon: 200})


_FREEZE_EPSILONS = (3.0, 7.53)
_TANH: Options = {"architecture": "cnn", "expected_batch": 1000, "learning_rate": 1.0}
_MOMENTUM: Options = {"clip": 0.1, "momentum": 0.9}
_ADJUSTED: Options = {"clip": 1.0, "momentum": 0.0}


def _freeze(name: str, values: Sequence[float], setting: Options, frozen: Options, more: float = 0.0) -> Arm:
    options, epochs = {**setting, **frozen}, {3.0: 40 + more, 7.53: 80 + more}
    return Arm(name, _published("cifar-10", _FREEZE_EPSILONS, values), options, {**_TANH, **options}, epochs)


_BASELINE = _freeze("Baseline (C = 0.1, m = 0.9)", (60.4, 66.9), _MOMENTUM, {})
_BETTER = _freeze("Our adjusted baseline (C = 1, m = 0)", (63.1, 69.7), _ADJUSTED, {})
_RANDOM_7: Options = {"freeze": "random", "freeze_rate": 0.7, "freeze_cooling": 1.0}
_LAST: Options = {"freeze_rate": 0.9, "freeze_cooling": 2 / 3}
_STEPS: Options = {"architecture": "cnn", "clip": 1.0, "momentum": 0.0}
_DATALENS_SIZES = {"quick": Size(None, 100, 2, (0.3, 1.0)), "full": Size(None, 1800, 10, (0.1, 0.3, 1.0, 3.0))}


def _top(name: str, keep: float, published: Mapping[Any, float], noise: float = 1.0) -> Arm:
    kept: Options = {"estimator": "dpsgd"} if keep == 1 else {"estimator": "topagg", "keep": keep}
    quick, full = ({**_STEPS, **kept, "expected_batch": batch} for batch in (128, 512))
    return Arm(name, published, quick, full, noise=noise)


_TOP_EPSILONS = {"mnist": (0.05, 0.1, 0.2, 1.0, None), "cifar-10": (0.05, 0.2, 8.0, None)}


def _table_8(name: str, keep: float, mnist_values: Sequence[float], cifar_values: Sequence[float]) -> Arm:
    published = _published("mnist", _TOP_EPSILONS["mnist"], mnist_values)
    return _top(name, keep, published | _published("cifar-10", _TOP_EPSILONS["cifar-10"], cifar_values))


def _table_10(name: str, keep: float, values: Sequence[float], noise: float = 1.0) -> Arm:
    return _top(name, keep, _published("mnist", (0.1, 1.0), values), noise)


_TOP_ARMS = (
    _table_8("TopAgg, k = 0.6", 0.6, (73.87, 85.67, 89.84, 95.13, 97.94), (65.10, 79.44, 85.13, 85.19)),
    _table_8("TopAgg, k = 0.7", 0.7, (75.81, 86.12, 90.25, 95.22, 98.58), (71.47, 80.23, 85.37, 85.42)),
    _table_8("TopAgg, k = 0.8", 0.8, (77.15, 85.88, 90.80, 95.42, 98.79), (72.03, 80.76, 85.62, 85.80)),
    _table_8("GM-DP", 1.0, (78.40, 84.55, 91.17, 95.41, 99.08), (71.29, 80.37, 87.05, 87.85)),
)
TABLES: Mapping[tuple[str, str], Table] = {
    ("gep", "1"): Table(
        (
            _gep("GP", "dpsgd", (94.7, 96.8, 97.2), (43.6, 52.2, 56.4)),
            _gep("B-GEP", "bgep", (93.1, 94.5, 95.9), (50.3, 59.5, 63.0)),
            _gep("GEP", "gep", (96.3, 97.9, 98.4), (59.7, 70.1, 74.9)),
        ),
        _GEP_EPSILONS,
    ),
    ("rgp", "2"): Table(
        (
            _rgp("Full (N.P.)", "dpsgd", 93.3, private=False),
            _rgp("RGP (N.P.)", "rgp", 91.2, private=False),
            _rgp("DP-SGD", "dpsgd", 55.9),
            _rgp("RGP-random", "rgp_random", 51.0),
            _rgp("RGP", "rgp", 63.4),
        ),
        (None, 8.0),
    ),
    ("freeze", "1"): Table(
        (_BASELINE, _freeze("Random freeze (r = 0.7)", (61.1, 66.7), _MOMENTUM, _RANDOM_7)), _FREEZE_EPSILONS
    ),
    **{
        ("freeze", number): Table(
            (_BASELINE, _BETTER, _freeze(name, values, _ADJUSTED, {"freeze": kind, **_LAST}, 20)), _FREEZE_EPSILONS
        )
        for number, kind, name, values in (
            ("3", "random", "Random freeze (r = 0.9)", (64.5, 70.2)),
            ("4", "ranked", "Ranked freeze (r = 0.9)", (64.6, 70.0)),
        )
    },
    ("datalens", "8"): Table(_TOP_ARMS, (0.05, 0.1, 0.2, 1.0, 8.0, None), (0.05, 0.2, 1.0, 8.0, None), _DATALENS_SIZES),
    ("datalens", "9"): Table(_TOP_ARMS, (0.05, 0.1, 0.2), None, _DATALENS_SIZES),
    ("datalens", "10"): Table(
        (
            _table_10("TopK-GM-DP", 0.8, (83.86, 94.95), 1 / math.sqrt(0.8)),
            _table_10("TopAgg", 0.8, (85.88, 95.42)),
            _table_10("TopK-SGD", 0.8, (91.96, 98.03), 0.0),
            _table_10("GM-DP", 1.0, (85.05, 95.56)),
            _table_10("clipped SGD", 1.0, (94.26, 98.94), 0.0),
        ),
        (0.1, 1.0),
        None,
        _DATALENS_SIZES,
    ),
}
# Keeping a share of the coordinates is not private at the paper's noise, so these rows of Table 9 are not run.
_BY_COORDINATES = {0.05: (74.25, 78.45, 73.55), 0.1: (83.65, 85.59, 86.41), 0.2: (89.10, 90.48, 89.30)}
NEEDS = (
    "To keep a share of the *coordinates* leaves a gradient whose length lies in these at its clip: its sensitivity is "
    "C, and with the noise of sqrt(k) C it is not private. These rows of Table 9 are told and not run."
)


def classifier_rows(paper: str, number: str, dataset: str, budget: str) -> list[Row]:
    """Train every arm of a table on one set and return its rows, in per cent."""
    table, whole, rows = TABLES[paper, number], FOLDERS[dataset](), list[Row]()
    size = table.sizes[budget]
    epsilons = (table.quick_epsilons or table.epsilons) if budget == "quick" else table.epsilons
    shown = _TOP_EPSILONS.get(dataset, epsilons) if (paper, number) == ("datalens", "8") else epsilons
    for epsilon in (epsilon for epsilon in epsilons if epsilon in shown):
        for arm in table.arms:
            if arm.epochs and epsilon not in arm.epochs:
                continue
            setting, found = _measured(arm, whole, epsilon, budget, size)
            found["published"] = arm.published.get((dataset, epsilon))
            rows.append(row_of(paper, number, arm.name, dataset, epsilon, setting, **found))
            print(f"  {arm.name} at {epsilon}: {rows[-1]['ours']:.1f}, {rows[-1]['seconds']:.0f} s", flush=True)
        if (paper, number) == ("datalens", "9"):
            for keep, value in zip((0.2, 0.4, 0.6), _BY_COORDINATES[epsilon or 0], strict=True):
                name, why = f"TopAgg by coordinates, k = {keep:g}", "not run: not private at the published noise"
                published = value if dataset == "mnist" else None
                rows.append(row_of(paper, number, name, dataset, epsilon, why, published=published))
    return rows


def _measured(arm: Arm, whole: Folder, epsilon: float | None, budget: str, size: Size) -> tuple[str, dict[str, Any]]:
    started, options = time.monotonic(), {**_QUICK, **arm.quick} if budget == "quick" else dict(arm.full)
    folder = whole if size.records is None else whole.first(size.records)
    batch = options["expected_batch"]
    steps = size.steps or round(arm.epochs[epsilon] * len(folder.images) / batch)

    def percent(on: Folder, seed: int, **more: float) -> float:
        plan = steps_plan(on, {**options, **more}, epsilon or 1.0, seed, steps)
        return 100 * accuracy(train_plan(on, arm.noisy(plan, epsilon)), on)

    setting = f"{options['architecture']}, first {len(folder.images):,} images, {steps} steps of {batch}"
    chosen: dict[str, float] = {}
    if size.rates:
        held = whole.tuning(len(whole.images) - HELD_OUT, HELD_OUT)
        tries = {rate: percent(held, TUNING_SEED, learning_rate=rate) for rate in size.rates}
        chosen = {"learning_rate": max(tries, key=lambda rate: tries[rate])}
        setting += f", delta {DELTA:g}" + ("" if arm.noise == 1 else f", {arm.noise:.3g} of its noise") + "; "
        setting += ", ".join(f"rate {rate:g}: {found:.1f} held out" for rate, found in tries.items())
    runs = [percent(folder, seed, **chosen) for seed in range(size.seeds)]
    return setting, {**spread(runs), "seconds": since(started)}


_ATTACKED: Mapping[str, tuple[Options, float]] = {  # RGP's Table 4: options, and what was published for BERT on SST-2
    "Full (N.P.)": ({"estimator": "dpsgd", "clip": _WIDE, "learning_rate": 0.2, "momentum": 0.9}, 57.7),
    "RGP (N.P.)": ({"estimator": "rgp", "rank": 2, "clip": _WIDE, "learning_rate": 0.2, "momentum": 0.9}, 52.6),
    "RGP": ({"estimator": "rgp", "rank": 2, "clip": 1.0, "learning_rate": 1.0, "momentum": 0.0}, 50.1),
}


@torch.no_grad()
def _losses(model: PrivateClassifier, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return losses(torch.cat([model(part) for part in torch.split(images.float() / 255, 500)]), labels)


def membership_rows(dataset: str, budget: str, seeds: Sequence[int] = (0, 1, 2)) -> list[Row]:
    """Attack trained images by a loss threshold beside as many test images; guessing is right on half of them."""
    members, steps, network = (1_000, 300, "cnn") if budget == "quick" else (10_000, 2_000, "wrn28_4")
    folder, rows = FOLDERS[dataset]().first(members), []
    inside = channels_first(folder.images), torch.from_numpy(folder.labels)
    outside = tuple(part[:members] for part in tests_of(folder))
    setting = f"{network}, {members:,} members, {steps} steps of 100: attack's success"
    for method, (options, published) in _ATTACKED.items():
        started, found = time.monotonic(), []
        for seed in seeds:
            plan = steps_plan(folder, {"architecture": network, "expected_batch": 100, **options}, 8.0, seed, steps)
            model = train_plan(folder, plan if method == "RGP" else without_noise(plan))
            halves = torch.Generator().manual_seed(seed)
            found.append(attack_by_loss(_losses(model, *inside), _losses(model, *outside), generator=halves))
        more = {**spread([attack.success_rate for attack in found], 100), "seconds": since(started)}
        more |= {"published": published, "error_of_one": 100 * max(each.standard_error for each in found)}
        rows.append(row_of("rgp", "4", method, dataset, 8.0 if method == "RGP" else None, setting, **more))
    return rows
