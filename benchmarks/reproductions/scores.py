"""DataLens, Tables 3 and 12: Inception Score, Frechet distance, and with them precision, recall and three classifiers.

The extractor is a small CNN that learned the first half of the public test images; samples are compared with the
other half. Its Frechet distances must not be compared with published FIDs, which are of an ImageNet network, except
where `--extractor FILE` gives the usual one (TorchScript, inception-2015-12-05.pt). Precision and recall:
Kynkaanniemi et al. 2019, arXiv:1904.06991, three neighbours.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchmarks.reproductions.datalens import (
    DP_GAN,
    EPSILONS,
    G_PATE,
    GS_WGAN,
    METHODS,
    PAPER,
    PATE_GAN,
    SEEDS,
    drawn,
)
from benchmarks.reproductions.rows import FOLDERS, Maker, row_of
from benchmarks.results import Row, since, spread
from benchmarks.small_data import Folder, channels_first
from models.classifiers import CLASSIFIER_KINDS, build_classifier
from workers.evaluation.likeness import frechet_distance, precision_and_recall
from workers.evaluation.utility import train_and_test

_SAMPLES = {"quick": 5_000, "full": 10_000}
_EPOCHS, _BATCH, _RATE, _DECAY = 20, 100, 3e-3, 1e-3  # of the extractor
_COMPARED = 2_000  # images of a side whose neighbours are looked for
REAL = "real images"
PUBLISHED_METHODS = (REAL, DP_GAN, PATE_GAN, G_PATE, GS_WGAN, PAPER)
# Table 12 at epsilon 1 and 10; Table 3 is its Inception Score. By measure, in the order above.
PUBLISHED: Mapping[tuple[str, str], tuple[Sequence[float], Sequence[float]]] = {
    ("mnist", "IS"): ((9.86, 1.00, 1.19, 3.60, 1.00, 4.37), (9.86, 1.00, 1.46, 5.16, 8.59, 5.78)),
    ("mnist", "FID"): (
        (1.04, 470.20, 231.54, 153.38, 489.75, 186.06),
        (1.04, 304.86, 253.55, 150.62, 58.77, 173.50),
    ),
    ("fashion-mnist", "IS"): ((9.01, 1.03, 1.69, 3.41, 1.00, 3.93), (9.01, 1.05, 2.35, 4.33, 5.87, 4.58)),
    ("fashion-mnist", "FID"): (
        (1.54, 472.03, 253.19, 214.78, 587.31, 194.98),
        (1.54, 433.38, 229.25, 171.90, 135.47, 167.68),
    ),
}
NEEDS = (
    "Without --extractor it is a CNN of half of the public test images. A Frechet distance that is comparable with "
    "published FIDs needs the usual Inception network's file, which is in no package. CelebA is in none either."
)


class Extractor(Protocol):
    """A public network that looks at images (n, c, h, w) uint8; returns float64."""

    name: str

    def features(self, images: Tensor) -> Tensor:
        """Return features (n, d)."""

    def probabilities(self, images: Tensor) -> Tensor:
        """Return probabilities of classes (n, classes)."""


class OwnExtractor:
    """A small CNN that learns public images of the set's own classes; features are its last hidden layer."""

    name = "a CNN of half of the test images"

    def __init__(self, images: Tensor, labels: Tensor, classes: int, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            _, channels, height, width = images.shape
            network = build_classifier("cnn", channels=channels, height=height, width=width, classes=classes)
            steps = _EPOCHS * (len(images) // _BATCH)
            optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=steps)
            for _ in range(steps):
                chosen = torch.randint(len(images), (_BATCH,))
                loss = nn.functional.cross_entropy(network(images[chosen].float() / 255), labels[chosen])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
        layers = list(network.eval())  # type: ignore[call-overload]
        self._hidden, self._head = nn.Sequential(*layers[:-2]), nn.Sequential(*layers[-2:])

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        return torch.cat([self._hidden(part.float() / 255) for part in images.split(1000)]).double()

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        return self._head(self.features(images).float()).double().softmax(dim=1)


class ScriptedExtractor:
    """A TorchScript network that is called as the usual Inception network is, on (n, 3, h, w) uint8 of any size."""

    def __init__(self, file: Path) -> None:
        self._network = torch.jit.load(str(file), map_location="cpu").eval()  # type: ignore[no-untyped-call]
        self.name = file.name

    def features(self, images: Tensor) -> Tensor:
        return self._seen(images, return_features=True)

    def probabilities(self, images: Tensor) -> Tensor:
        return self._seen(images, no_output_bias=True)

    @torch.no_grad()
    def _seen(self, images: Tensor, **wanted: bool) -> Tensor:
        parts = images.expand(-1, 3, -1, -1).split(100)
        return torch.cat([self._network(part, **wanted) for part in parts]).double()


def inception_score(probabilities: Tensor) -> float:
    """Return exp E KL(p(y | x) || p(y)) of (n, classes): 1, up to the number of classes (Salimans et al. 2016)."""
    of_all = probabilities.mean(dim=0, keepdim=True)
    tiny = torch.finfo(probabilities.dtype).tiny
    ratio = probabilities.clamp(min=tiny).log() - of_all.clamp(min=tiny).log()
    return math.exp(float((probabilities * ratio).sum(dim=1).mean()))


def second_half(folder: Folder) -> tuple[Tensor, Tensor]:
    """Return the test images (n, c, h, w) uint8 and labels (n,) that no extractor has learned."""
    half = len(folder.test_labels) // 2
    return channels_first(folder.test_images[half:]), torch.from_numpy(folder.test_labels[half:])


def measures(
    images: Tensor, labels: Tensor, folder: Folder, extractor: Extractor, real: Tensor, seed: int
) -> dict[str, float]:
    """Measure images (n, c, h, w) uint8 with their labels against the second half of a folder's test images.

    `real` are the extractor's features of that half, (n, d).
    """
    test, truth = second_half(folder)
    fake = extractor.features(images)
    precision, recall = precision_and_recall(real[:_COMPARED], fake[:_COMPARED])
    found = {"IS": inception_score(extractor.probabilities(images)), "FID": frechet_distance(real, fake)}
    found |= {"precision": precision, "recall": recall}
    for kind in CLASSIFIER_KINDS:
        told = train_and_test(kind, images, labels, test, truth, classes=len(folder.classes), seed=seed)
        found[f"accuracy, {kind.replace('_', ' ')}"] = told.accuracy
    return found


def extractor_of(folder: Folder, seed: int) -> OwnExtractor:
    """Train the extractor on the first half of a folder's test images."""
    half = len(folder.test_labels) // 2
    images, labels = channels_first(folder.test_images[:half]), torch.from_numpy(folder.test_labels[:half])
    return OwnExtractor(images, labels, len(folder.classes), seed)


def scores(
    table: str, dataset: str, budget: str, seeds: Sequence[int] | None = None, extractor: str | None = None
) -> list[Row]:
    """Make the rows of Table 12; Table 3 has the Inception Score alone."""
    folder, rows = FOLDERS[dataset](), list[Row]()
    given = None if extractor is None else ScriptedExtractor(Path(extractor))
    extractors: dict[int, Extractor] = {seed: given or extractor_of(folder, seed) for seed in seeds or SEEDS[budget]}
    real = {each: each.features(second_half(folder)[0]) for each in set(extractors.values())}
    for method in (REAL, *METHODS):
        for epsilon in (None,) if method == REAL else EPSILONS:
            started, found = time.monotonic(), list[dict[str, float]]()
            for seed, each in extractors.items():
                images, labels = _of(method, folder, epsilon, seed, budget)
                found.append(measures(images, labels, folder, each, real[each], seed))
            seconds = since(started)
            print(
                f"  {method} at {epsilon}: IS {found[0]['IS']:.2f}, FID {found[0]['FID']:.1f}, {seconds} s", flush=True
            )
            for measure in found[0] if table == "12" else ("IS",):
                more: dict[str, Any] = {**spread([of[measure] for of in found]), "measure": measure}
                more |= {"seconds": seconds, "published": _published(dataset, measure, method, epsilon)}
                setting = f"{measure}: {_SAMPLES[budget]:,} images against {len(folder.test_labels) // 2:,} real ones"
                setting += f", seen by {each.name}" if given else ""
                rows.append(row_of("datalens", table, method, dataset, epsilon, setting, **more))
    for method in set(PUBLISHED_METHODS) - {REAL, *METHODS}:
        for epsilon, measure in itertools.product(EPSILONS, ("IS", "FID") if table == "12" else ("IS",)):
            theirs = {"measure": measure, "published": _published(dataset, measure, method, epsilon)}
            rows.append(row_of("datalens", table, method, dataset, epsilon, f"{measure}: published", **theirs))
    return rows


def _of(method: str, folder: Folder, epsilon: float | None, seed: int, budget: str) -> tuple[Tensor, Tensor]:
    """Return images (n, c, h, w) uint8 and labels (n,) of a method, or the first private images themselves."""
    count = _SAMPLES[budget]
    if method == REAL:
        return channels_first(folder.images[:count]), torch.from_numpy(folder.labels[:count])
    return drawn(method, folder, epsilon or EPSILONS[0], seed, budget, count)


def _published(dataset: str, measure: str, method: str, epsilon: float | None) -> float | None:
    if method not in PUBLISHED_METHODS or (dataset, measure) not in PUBLISHED:
        return None
    column = 0 if epsilon is None else EPSILONS.index(epsilon)
    return PUBLISHED[dataset, measure][column][PUBLISHED_METHODS.index(method)]


TABLES: Mapping[tuple[str, str], Maker] = {
    ("datalens", table): functools.partial(scores, table) for table in ("3", "12")
}
