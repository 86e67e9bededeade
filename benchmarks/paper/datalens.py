"""DataLens, Table 1: accuracy of a CNN trained on what each method draws, at epsilon 1 and 10.

Made here: DataLens' default, Algorithms 1 to 3 as the paper has them (`full` only: ten minutes each), and DP-MERF,
which the paper does not have. Its other competitors are rows without a figure of ours. The evaluation's CNN learns the
synthetic images to the last step and is tested once on real test images.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.budgets import NoLedger
from benchmarks.dp_merf import embedded_sums, fit_generator, frequencies, release_embedding
from benchmarks.paper.accuracies import FOLDERS
from benchmarks.paper_algorithm import train_paper_algorithm
from benchmarks.small_data import Folder, channels_first, facts_of
from benchmarks.small_folders import DELTA, OURS, train
from privacy.accounting.filter import open_filter
from privacy.mechanisms.noise import SecureNoise
from workers.evaluation.utility import train_and_test

Row = dict[str, Any]
Draw = Callable[[Tensor, torch.Generator], Tensor]  # labels (n,), public stream -> images (n, pixels) in [0, 1]
EPSILONS = (1.0, 10.0)
_QUICK, _FULL = "quick", "full"
_SAMPLES = {_QUICK: 10_000, _FULL: 60_000}
_SEEDS = {_QUICK: (0,), _FULL: (0, 1, 2)}
_MERF = {_QUICK: (2000, 2000), _FULL: (10_000, 6000)}  # features, steps
_DEFAULT, _PAPER, _DP_MERF = "DataLens, our default", "DataLens, Algorithms 1-3", "DP-MERF"
# By (data set, method): at epsilon 1 and 10; DC-GAN has no privacy.
PUBLISHED: Mapping[tuple[str, str], tuple[float | None, float | None]] = {
    ("fashion-mnist", "DC-GAN without privacy"): (0.8032, 0.8032),
    ("fashion-mnist", "DP-GAN"): (0.1053, 0.6098),
    ("fashion-mnist", "PATE-GAN"): (0.4222, 0.6218),
    ("fashion-mnist", "G-PATE"): (0.5567, 0.6934),
    ("fashion-mnist", "GS-WGAN"): (0.1661, 0.6579),
    ("fashion-mnist", _PAPER): (0.6478, 0.7061),
    ("mnist", _PAPER): (0.7123, 0.8066),
}
NEEDS = (
    "DC-GAN, DP-GAN, PATE-GAN, G-PATE and GS-WGAN have no figure of ours yet. Algorithms 1-3 are run by --budget full; "
    "their figures on Fashion-MNIST stand in docs/benchmarks/datalens.md. CelebA and Places365 are in no package."
)


def _default(folder: Folder, epsilon: float, _seed: int, _budget: str) -> Draw:
    generator = train(folder, OURS, epsilon)[0]
    return lambda labels, stream: generator.sample(labels, stream).flatten(1)


def _paper(folder: Folder, epsilon: float, seed: int, _budget: str) -> Draw:
    student, _ = train_paper_algorithm(epsilon, DELTA, folder.images, folder.labels, NoLedger(), seed)
    return lambda labels, _: student.propose(labels).detach()


def _merf(folder: Folder, epsilon: float, seed: int, budget: str) -> Draw:
    features, steps = _MERF[budget]
    waves = frequencies(facts_of(folder).pixels, features, seed)
    sums = embedded_sums(folder.images, folder.labels, waves, len(folder.classes))
    noise = SecureNoise(secrets.token_bytes(32))
    released = release_embedding(sums, open_filter(epsilon, DELTA).capacity_nano, NoLedger(), noise)
    return fit_generator(released, len(folder.labels), waves, steps, seed).sample


_METHODS = {_DEFAULT: _default, _PAPER: _paper, _DP_MERF: _merf}


def table_1(dataset: str, budget: str) -> list[Row]:
    """Make every row of a data set: those that are run, and those that have a published figure alone."""
    folder = FOLDERS[dataset]()
    run = (_DEFAULT, _DP_MERF) if budget == _QUICK or folder.images.shape[1:] != (28, 28) else tuple(_METHODS)
    others = [method for of, method in PUBLISHED if of == dataset and method not in run]
    return [_row(dataset, folder, method, epsilon, budget) for method in run for epsilon in EPSILONS] + [
        {**_empty(dataset, method, epsilon), "setting": "not run"} for method in others for epsilon in EPSILONS
    ]


def _row(dataset: str, folder: Folder, method: str, epsilon: float, budget: str) -> Row:
    started, found = time.monotonic(), []
    for seed in _SEEDS[budget]:
        draw, stream = _METHODS[method](folder, epsilon, seed, budget), torch.Generator().manual_seed(seed)
        labels = torch.arange(_SAMPLES[budget]) % len(folder.classes)
        drawn = torch.cat([draw(part, stream) for part in torch.split(labels, 2000)])
        facts = facts_of(folder)
        images = (drawn.view(-1, facts.channels, facts.height, facts.width) * 255).round().byte()
        found.append(_accuracy(images, labels, folder, seed))
    setting = f"{_SAMPLES[budget]:,} samples, delta {DELTA:g}"
    ours = {"ours": statistics.mean(found), "sd": statistics.stdev(found) if len(found) > 1 else None}
    more = {"setting": setting, "seeds": len(found), "seconds": round(time.monotonic() - started, 1)}
    return {**_empty(dataset, method, epsilon), **ours, **more}


def _accuracy(images: Tensor, labels: Tensor, folder: Folder, seed: int) -> float:
    test, truth = channels_first(folder.test_images), torch.from_numpy(folder.test_labels)
    return train_and_test("cnn", images, labels, test, truth, classes=len(folder.classes), seed=seed).accuracy


def _empty(dataset: str, method: str, epsilon: float) -> Row:
    published = PUBLISHED.get((dataset, method), (None, None))[EPSILONS.index(epsilon)]
    row: Row = {"paper": "datalens", "table": "1", "method": method, "dataset": dataset, "epsilon": epsilon}
    return row | {"ours": None, "sd": None, "seeds": 0, "published": published, "seconds": 0.0}
