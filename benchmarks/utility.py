"""Measure what released images and classifiers are worth: accuracy on real test images.

Run `python -m benchmarks.utility --suite small_folders --json FILE`. Each run trains with a fresh secret. Images: draw
samples, train classifiers on them to the last step, test each once on test images that took no part. Classifiers:
test the last weights once. Settings were chosen on training images that were held out.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.deep_classifiers import SHAPES, judged
from benchmarks.results import Results, Row, machine, parser_of, show, since
from benchmarks.runs import (
    DELTA,
    MOMENTS,
    PUBLISHED,
    accuracy,
    draw,
    here,
    plan_of,
    samples_of,
    small_accuracy,
    tests_of,
    tiled,
    train_plan,
)
from benchmarks.small_data import SETS, Folder, channels_first, load_clipart
from models.classifiers import CLASSIFIER_KINDS
from workers.evaluation.utility import train_and_test

CLIP_ART = 2_498  # images of openclipart-png that the prototype of select_public had
REAL = "real"  # the private images in place of synthetic ones
_DEEP_EPOCHS, _COLUMNS = 3, 12


@dataclass(frozen=True)
class Case:
    """A training to measure: a recipe with options on a data set, at epsilon (None: the real images)."""

    name: str
    dataset: str
    recipe: str
    options: Mapping[str, Any]
    epsilon: float | None


@dataclass(frozen=True)
class Suite:
    """The cases of a page and the protocol that measures them.

    `samples` are synthetic images to draw; None is 8,000 (2,500 large ones), learned for ten epochs. `judges` are
    classifiers of the evaluation's protocol, or small deep ones of DPImageBench's. Each of the `seeds` runs has a fresh
    secret.
    """

    cases: tuple[Case, ...]
    samples: int | None = None
    judges: tuple[str, ...] = ("cnn",)
    delta: float = DELTA
    seeds: int = 3


def _cases(
    dataset: str, recipes: Mapping[str, tuple[str, Mapping[str, Any]]], epsilons: Iterable[float]
) -> Iterator[Case]:
    for epsilon in epsilons:
        for name, (recipe, options) in recipes.items():
            yield Case(name, dataset, recipe, options, epsilon)


def _symmetric(*symmetries: str, **options: Any) -> dict[str, tuple[str, Mapping[str, Any]]]:
    return {symmetry: ("moments", {"symmetry": symmetry, **options}) for symmetry in symmetries}


_ALL = (1.0, 3.0, 10.0)
# Class means alone: the public prior says how images vary.
_PRIOR = {"mean_fraction": 1.0, "pooled_covariance_fraction": 0.0, "class_covariance_fraction": 0.0}
_SMALL = {"prior": ("moments", _PRIOR), "moments": MOMENTS}
_STEPS = {"expected_batch": 512, "epochs": 3.0, "clip": 1.0, "momentum": 0.0, "learning_rate": 4.0}
_CNN: dict[str, Any] = {"architecture": "cnn", **_STEPS}
_GEP = {"anchors_dataset_id": "openclipart", "anchors": 200, "basis_size": 100, "clip_residual": 1.0}
_FROZEN: dict[str, Any] = {"freeze": "random", "freeze_rate": 0.7, "freeze_cooling": 0.65}
_ESTIMATORS: Mapping[str, Mapping[str, Any]] = {
    "scatter_linear": {"preset": "default", "learning_rate": 12.0},
    "dpsgd": {**_CNN, "estimator": "dpsgd"},
    "dpsgd, C=0.1, momentum 0.9": {**_CNN, "clip": 0.1, "momentum": 0.9},
    "topagg, k=0.8": {**_CNN, "estimator": "topagg"},
    "random freeze": {**_CNN, **_FROZEN},
    "gep": {**_CNN, **_GEP, "estimator": "gep"},
    "bgep": {**_CNN, **_GEP, "estimator": "bgep"},
    "rgp, rank 8": {**_CNN, "estimator": "rgp"},
    "rgp_random, rank 8": {**_CNN, "estimator": "rgp_random"},
}
_CLASSIFIERS = {name: ("dp_classifier", options) for name, options in _ESTIMATORS.items()}
_PRESETS = {"published": PUBLISHED, "kernel": ("datalens", {"preset": "kernel"}), "moments": MOMENTS}
SUITES: Mapping[str, Suite] = {
    "fashion": Suite(
        (
            *_cases("fashion", {"moments": MOMENTS, "datalens": ("datalens", {})}, (1.0, 10.0)),
            *_cases("fashion", {"moments": MOMENTS}, (3.0,)),
        ),
        samples=60_000,
        judges=CLASSIFIER_KINDS,
    ),
    "cifar10": Suite(tuple(_cases("cifar10", {"moments": MOMENTS}, (1.0, 10.0))), samples=30_000),
    "datalens": Suite(tuple(_cases("fashion", _PRESETS, (1.0, 10.0))), samples=10_000),
    "dpimagebench": Suite(
        tuple(_cases("fashion_55000", {"moments": MOMENTS}, (1.0, 10.0))),
        samples=60_000,
        judges=tuple(SHAPES["quick"]),
        delta=1.67e-6,
        seeds=1,
    ),
    "small_folders": Suite(
        (
            *(
                case
                for dataset in ("digits", "fashion_3000", "fashion_10000", "emoji")
                for case in _cases(dataset, _SMALL, _ALL if dataset != "emoji" else (3.0, 10.0))
            ),
            *_cases("cifar10", _SMALL, (10.0,)),
            *(
                Case(REAL, dataset, "", {}, None)
                for dataset in ("digits", "fashion_3000", "fashion_10000", "emoji", "cifar10")
            ),
        )
    ),
    "symmetry": Suite(tuple(_cases("cifar10", _symmetric("mirror", "none", "square"), (1.0, 10.0))), samples=30_000),
    "symmetry_small": Suite(
        (
            *_cases("cifar10_5000", _symmetric("mirror", "none"), _ALL),
            *_cases("digits", _symmetric("mirror", "square", "none"), _ALL),
        )
    ),
    "guide": Suite(tuple(_cases("cifar10", _symmetric("mirror", guide=True), (10.0,))), samples=30_000),
    "select_public": Suite(
        tuple(_cases("emoji", {"selected": ("select_public", {"public_dataset_id": "openclipart-png"})}, (3.0, 10.0)))
    ),
    "dp_classifiers": Suite(tuple(_cases("fashion", _CLASSIFIERS, (1.0, 3.0)))),
}


def anchors_of(case: Case, folder: Folder) -> Any:
    """Return the public images that a recipe asks for, or None."""
    if case.recipe == "select_public":
        return load_clipart(CLIP_ART, folder.images.shape[1], colour=True)
    return load_clipart(case.options["anchors"], 28) if "anchors_dataset_id" in case.options else None


def measure(case: Case, folder: Folder, seed: int, samples: int | None, suite: Suite) -> tuple[Row, Row]:
    """Train once with a fresh secret and test; return what every run shares, and the run."""
    started, images, shared = time.monotonic(), None, dict[str, Any]()
    if case.epsilon is None:
        images = channels_first(folder.images), torch.from_numpy(folder.labels)
    else:
        options = {**case.options, "initial_seed": seed} if case.recipe == "dp_classifier" else case.options
        plan = plan_of(folder, case.recipe, options, case.epsilon, suite.delta)
        made, shared = train_plan(folder, plan, anchors_of(case, folder)), {"config": plan.config.model_dump()}
    seconds = since(started)
    if case.recipe == "dp_classifier":
        found = {"test": accuracy(made, folder)}
    else:
        count = samples or suite.samples or samples_of(folder)
        images = images or draw(made, len(folder.classes), count, seed)
        shared["samples"] = len(images[1])
        classes, test, device = len(folder.classes), tests_of(folder), here()[0]
        found = {}
        for judge in suite.judges:
            sizes: dict[str, Any] = {"classes": classes, "seed": seed, "device": device}
            if judge in SHAPES["quick"]:
                found[judge] = judged(SHAPES["quick"][judge], images, test, epochs=_DEEP_EPOCHS, **sizes)
            elif suite.samples is None:
                found[judge] = small_accuracy(*images, folder, seed)
            else:
                found[judge] = train_and_test(judge, *images, *test, **sizes).accuracy  # type: ignore[arg-type]
    return shared, {"seed": seed, "seconds": seconds, "accuracy": found, "machine": here()[1]}


def row_of(suite_name: str, case: Case, folder: Folder, runs: Sequence[Row], shared: Row, delta: float) -> Row:
    """Return the row of a case: the mean accuracy of each judge, its standard deviation, and every run."""
    by_judge = {judge: [run["accuracy"][judge] for run in runs] for judge in runs[0]["accuracy"]}
    row: Row = {"suite": suite_name, "name": case.name, "dataset": case.dataset, "records": len(folder.labels)}
    row |= {"recipe": case.recipe, "options": dict(case.options), "epsilon": case.epsilon, "delta": delta, **shared}
    row["accuracy"] = {judge: statistics.mean(values) for judge, values in by_judge.items()}
    row["sd"] = {judge: statistics.stdev(values) if len(values) > 1 else None for judge, values in by_judge.items()}
    return row | {"runs": list(runs)}


def draw_grid(case: Case, suite: Suite, folder: Folder, file: Path) -> None:
    """Write released samples to a file, one row of twelve for each class."""
    assert case.epsilon is not None
    plan = plan_of(folder, case.recipe, case.options, case.epsilon, suite.delta)
    made, classes = train_plan(folder, plan, anchors_of(case, folder)), len(folder.classes)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(tiled(*draw(made, classes, _COLUMNS * classes, 0), classes).squeeze()).save(file, optimize=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--suite", nargs="+", choices=list(SUITES), default=list(SUITES))
    parser.add_argument("--names", nargs="+", help="of cases")
    parser.add_argument("--datasets", nargs="+", choices=list(SETS))
    parser.add_argument("--epsilons", type=float, nargs="+")
    parser.add_argument("--seeds", type=int, help="runs of each case; default: the suite's")
    parser.add_argument("--samples", type=int, help="synthetic images; default: the suite's")
    parser.add_argument("--grids", type=Path, help="draw samples of each case into this folder")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results, load = Results(given.json, **machine()), functools.cache(lambda name: SETS[name]())
    for name in given.suite:
        suite = SUITES[name]
        for seed in range(given.seeds or suite.seeds):
            for case in suite.cases:
                wanted = (given.names, case.name), (given.datasets, case.dataset), (given.epsilons, case.epsilon)
                if any(chosen is not None and value not in chosen for chosen, value in wanted):
                    continue
                folder = load(case.dataset)
                key = {"suite": name, "name": case.name, "dataset": case.dataset, "epsilon": case.epsilon}
                row = results.find(**key)
                runs = row["runs"] if row is not None else []
                if len(runs) <= seed:
                    shared, run = measure(case, folder, seed, given.samples, suite)
                    results.put(row_of(name, case, folder, [*runs, run], shared, suite.delta), replaced=row)
                    print(f"  {name}: {case.name} {case.dataset} epsilon {case.epsilon}: {run}", flush=True)
                if given.grids is not None and case.epsilon is not None and seed == 0:
                    draw_grid(case, suite, folder, given.grids / f"{name}_{case.name}_{case.epsilon:g}.png")
    show(
        [{**row, "mean": statistics.mean(row["accuracy"].values()), "runs": len(row["runs"])} for row in results.rows],
        ("suite", "dataset", "records", "name", "epsilon", "mean:.4f", "runs"),
    )


if __name__ == "__main__":
    main()
