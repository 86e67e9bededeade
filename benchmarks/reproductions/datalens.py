"""DataLens: Tables 1 and 2 (accuracy of a CNN trained on synthetic images) and Figure 4 (what images look like).

Run here: the default recipe, Algorithms 1 to 3 (recipe `datalens`, preset `published`) and DP-MERF, which the paper
does not have. The paper's competitors are published figures. Tables 4 and 7 are made by `benchmarks.datalens_loop`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.budgets import NoLedger
from benchmarks.datalens_published import BY_EPSILON
from benchmarks.generator_runs import DELTA, OURS, SAMPLES, accuracy_of, tiled, train
from benchmarks.generator_runs import PUBLISHED as PAPERS
from benchmarks.reproductions.dp_merf import embedded_sums, fit_generator, frequencies, privatise_embedding
from benchmarks.reproductions.rows import FOLDERS, row_of
from benchmarks.results import Row, since, spread
from benchmarks.small_data import Folder, channels_first, facts_of
from privacy.accounting.filter import open_filter
from privacy.mechanisms.noise import SecureNoise
from workers.evaluation.utility import train_and_test

Draw = Callable[[Tensor, torch.Generator], Tensor]  # labels (n,), public stream -> images (n, pixels) in [0, 1]
EPSILONS, SMALL_EPSILONS = (1.0, 10.0), (0.2, 0.4, 0.6, 0.8, 1.0)
SEEDS: Mapping[str, Sequence[int]] = {"quick": (0,), "full": (0, 1, 2)}
_SAMPLES = {"quick": 10_000, "full": 60_000}
_MERF = {"quick": (2000, 2000), "full": (10_000, 6000)}  # features, steps
DEFAULT, PAPER, DP_MERF = "moments, our default", "DataLens, Algorithms 1-3", "DP-MERF"
METHODS = (DEFAULT, PAPER, DP_MERF)
DC_GAN, DP_GAN, PATE_GAN, G_PATE, GS_WGAN = "DC-GAN without privacy", "DP-GAN", "PATE-GAN", "G-PATE", "GS-WGAN"
# By data set and method at epsilon 0.2 to 1 and 10. At 1 as in Table 1; Table 2 has 0.4046 for DP-GAN on MNIST.
PUBLISHED: Mapping[str, Mapping[str, Mapping[float, float]]] = {
    dataset: {
        PAPER: BY_EPSILON[dataset],
        **{method: dict(zip((*SMALL_EPSILONS, 10.0), values, strict=True)) for method, values in competitors.items()},
    }
    for dataset, competitors in {
        "mnist": {
            DP_GAN: (0.1104, 0.1524, 0.1022, 0.3732, 0.4036, 0.8011),
            PATE_GAN: (0.2176, 0.2399, 0.3484, 0.3571, 0.4168, 0.6667),
            G_PATE: (0.2230, 0.2478, 0.4184, 0.5377, 0.5810, 0.8092),
            GS_WGAN: (0.0972, 0.1029, 0.1044, 0.1170, 0.1432, 0.8075),
        },
        "fashion-mnist": {
            DP_GAN: (0.1021, 0.1302, 0.0998, 0.1210, 0.1053, 0.6098),
            PATE_GAN: (0.1605, 0.2977, 0.3698, 0.3659, 0.4222, 0.6218),
            G_PATE: (0.1874, 0.3020, 0.4283, 0.5258, 0.5567, 0.6934),
            GS_WGAN: (0.1000, 0.1001, 0.1144, 0.1242, 0.1661, 0.6579),
        },
    }.items()
}
WITHOUT_PRIVACY = {"mnist": 0.9653, "fashion-mnist": 0.8032}  # DC-GAN, Table 1
NEEDS = "DP-GAN, PATE-GAN, G-PATE, GS-WGAN and DC-GAN are published figures. CelebA and Places365 are in no package."
_COLUMNS, _GAP, _WHITE = 6, 8, 255  # of Figure 4
_PLACE = Path("var/benchmarks")


def table_1(dataset: str, budget: str, seeds: Sequence[int] | None = None) -> list[Row]:
    """Make a row of every method at each epsilon."""
    without = {"published": WITHOUT_PRIVACY.get(dataset)}
    more = [row_of("datalens", "1", DC_GAN, dataset, None, "published, no privacy", **without)]
    return _rows("1", dataset, budget, EPSILONS, seeds) + more


def table_2(dataset: str, budget: str, seeds: Sequence[int] | None = None) -> list[Row]:
    """Make a row of every method where epsilon is at most 1."""
    return _rows("2", dataset, budget, SMALL_EPSILONS, seeds)


def _rows(table: str, dataset: str, budget: str, epsilons: Sequence[float], seeds: Sequence[int] | None) -> list[Row]:
    folder, rows, samples = FOLDERS[dataset](), list[Row](), _SAMPLES[budget] if table == "1" else SAMPLES
    published = PUBLISHED.get(dataset, {})
    for method in dict.fromkeys((*METHODS, *published)):
        for epsilon in epsilons:
            found, started, setting = {}, time.monotonic(), "published"
            if method in METHODS:
                runs = [
                    _accuracy(table, method, folder, epsilon, seed, budget, samples) for seed in seeds or SEEDS[budget]
                ]
                found, setting = spread(runs), setting_of(method, samples)
                print(f"  {method} at {epsilon:g}: {runs}", flush=True)
            found |= {"published": published.get(method, {}).get(epsilon), "seconds": since(started)}
            rows.append(row_of("datalens", table, method, dataset, epsilon, setting, **found))
    return rows


def _accuracy(table: str, method: str, folder: Folder, epsilon: float, seed: int, budget: str, samples: int) -> float:
    images, labels = drawn(method, folder, epsilon, seed, budget, samples)
    if table == "2":  # ten epochs
        return accuracy_of(images, labels, folder, seed)
    test, truth = channels_first(folder.test_images), torch.from_numpy(folder.test_labels)
    return train_and_test("cnn", images, labels, test, truth, classes=len(folder.classes), seed=seed).accuracy


def setting_of(method: str, samples: int) -> str:
    """Return a row's setting."""
    more = ", recipe datalens, preset published" if method == PAPER else ""
    return f"{samples:,} samples, delta {DELTA:g}{more}"


def drawn(method: str, folder: Folder, epsilon: float, seed: int, budget: str, samples: int) -> tuple[Tensor, Tensor]:
    """Train a method and draw images (n, c, h, w) uint8 with their labels (n,), the classes in turn."""
    draw, stream = _drawer(method, folder, epsilon, seed, budget), torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % len(folder.classes)
    rows = torch.cat([draw(part, stream) for part in torch.split(labels, 2000)])
    facts = facts_of(folder)
    return (rows.view(-1, facts.channels, facts.height, facts.width) * 255).round().byte(), labels


def _drawer(method: str, folder: Folder, epsilon: float, seed: int, budget: str) -> Draw:
    if method != DP_MERF:
        generator = train(folder, PAPERS if method == PAPER else OURS, epsilon)[0]
        return lambda labels, stream: generator.sample(labels, stream).flatten(1)
    features, steps = _MERF[budget]
    waves = frequencies(facts_of(folder).pixels, features, seed)
    sums = embedded_sums(folder.images, folder.labels, waves, len(folder.classes))
    noise = SecureNoise(secrets.token_bytes(32))
    released = privatise_embedding(sums, open_filter(epsilon, DELTA).capacity_nano, NoLedger(), noise)
    return fit_generator(released, len(folder.labels), waves, steps, seed).sample


def figure_4(dataset: str, budget: str) -> list[Row]:
    """Draw Algorithms 1-3 and the default, each at epsilon 1 and 10, into one file: six images of each class."""
    folder, rows, blocks = FOLDERS[dataset](), list[Row](), list[np.ndarray]()
    file = _PLACE / f"datalens_figure_4_{dataset}.png"
    for method in (PAPER, DEFAULT):
        for epsilon in EPSILONS:
            started = time.monotonic()
            images, labels = drawn(method, folder, epsilon, 0, budget, _COLUMNS * len(folder.classes))
            blocks.append(tiled(images, labels, len(folder.classes)))
            setting = f"columns {(len(blocks) - 1) * _COLUMNS + 1} to {len(blocks) * _COLUMNS} of {file}"
            rows.append(row_of("datalens", "figure 4", method, dataset, epsilon, setting, seconds=since(started)))
    gap = np.full((len(blocks[0]), _GAP, *blocks[0].shape[2:]), _WHITE, dtype=np.uint8)
    beside = [part for block in blocks for part in (block, gap)][:-1]
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(beside, axis=1).squeeze()).save(file, optimize=True)
    return rows
