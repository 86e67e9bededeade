"""DataLens, Tables 1, 2, 4 and 7 (accuracy of a CNN trained on synthetic images), 3 and 12 (scores of these images).

Run here: the default recipe, Algorithms 1 to 3 (recipe `datalens`, preset `published`) and DP-MERF, which the paper
does not have. Its competitors are published figures. Tables 4 and 7 vary one option of `published` at epsilon 1.

Scores are the Inception Score, the Frechet distance, precision and recall (Kynkaanniemi et al. 2019, arXiv:1904.06991,
three neighbours) and three classifiers. Their extractor is a small CNN that learned the first half of the public test
images; samples are compared with the other half, so distances must not be compared with published FIDs.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.reproductions.dp_merf import embedded_sums, fit_generator, frequencies, privatise_embedding
from benchmarks.reproductions.rows import FOLDERS, row_of
from benchmarks.results import Row, since, spread
from benchmarks.runs import DELTA, MOMENTS, PUBLISHED, SAMPLES, NoLedger, draw, small_accuracy, tests_of, trained
from benchmarks.small_data import Folder, channels_first, facts_of
from models.classifiers import CLASSIFIER_KINDS, build_classifier
from privacy.accounting.filter import open_filter
from privacy.mechanisms.noise import SecureNoise
from workers.evaluation.likeness import frechet_distance, precision_and_recall
from workers.evaluation.utility import train_and_test

EPSILONS, SMALL_EPSILONS = (1.0, 10.0), (0.2, 0.4, 0.6, 0.8, 1.0)
SEEDS: Mapping[str, Sequence[int]] = {"quick": (0,), "full": (0, 1, 2)}
SAMPLES_BY_BUDGET = {"quick": 10_000, "full": 60_000}
SCORED = {"quick": 5_000, "full": 10_000}  # images of Tables 3 and 12
MERF = {"quick": (2000, 2000), "full": (10_000, 6000)}  # features, steps
DEFAULT, PAPER, DP_MERF, REAL = "moments, our default", "DataLens, Algorithms 1-3", "DP-MERF", "real images"
METHODS = (DEFAULT, PAPER, DP_MERF)
_PAPERS = ("DP-GAN", "PATE-GAN", "G-PATE", "GS-WGAN", PAPER)
# Tables 1 and 2 in the order of _PAPERS, at epsilon 0.2 to 1 and 10 (Table 2 has 0.4046 for DP-GAN on MNIST at 1).
ACCURACIES: Mapping[str, tuple[tuple[float, ...], ...]] = {
    "mnist": (
        (0.1104, 0.1524, 0.1022, 0.3732, 0.4036, 0.8011),
        (0.2176, 0.2399, 0.3484, 0.3571, 0.4168, 0.6667),
        (0.2230, 0.2478, 0.4184, 0.5377, 0.5810, 0.8092),
        (0.0972, 0.1029, 0.1044, 0.1170, 0.1432, 0.8075),
        (0.2344, 0.2919, 0.4201, 0.6485, 0.7123, 0.8066),
    ),
    "fashion-mnist": (
        (0.1021, 0.1302, 0.0998, 0.1210, 0.1053, 0.6098),
        (0.1605, 0.2977, 0.3698, 0.3659, 0.4222, 0.6218),
        (0.1874, 0.3020, 0.4283, 0.5258, 0.5567, 0.6934),
        (0.1000, 0.1001, 0.1144, 0.1242, 0.1661, 0.6579),
        (0.2226, 0.3863, 0.4314, 0.5534, 0.6478, 0.7061),
    ),
}
WITHOUT_PRIVACY = {"mnist": 0.9653, "fashion-mnist": 0.8032}  # DC-GAN, Table 1
# Tables 4 and 7 at epsilon 1: an option of `published`, and the accuracies on MNIST and Fashion-MNIST.
VARIED: Mapping[str, tuple[tuple[dict[str, Any], float, float], ...]] = {
    "4": (
        ({"top_k": 100}, 0.5889, 0.5738),
        ({"top_k": 300}, 0.6753, 0.6088),
        ({"teachers": 2000}, 0.5841, 0.5608),
        ({"teachers": 3000}, 0.7061, 0.5952),
        ({"beta": 1e-6}, 0.6361, 0.5859),  # any vote at all
        ({"beta": 0.1}, 0.6450, 0.6103),
        ({"beta": 0.3}, 0.6890, 0.6060),
        ({"beta": 0.5}, 0.6921, 0.6122),
        ({"beta": 0.9}, 0.6956, 0.6478),
    ),
    "7": (
        ({}, 0.7123, 0.6478),
        ({"use_top_k": False}, 0.5170, 0.4775),
        ({"use_stochastic_sign": False}, 0.6741, 0.6159),
        ({"use_threshold": False}, 0.6361, 0.5859),
    ),
}
# Table 12 in the order (real images, *_PAPERS) at epsilon 1 and 10; Table 3 is its Inception Score.
SCORES: Mapping[tuple[str, str], tuple[Sequence[float], Sequence[float]]] = {
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
    "Competitors are published figures. CelebA and Places365 are in no package. Frechet distances are those of a small "
    "CNN: the usual Inception network's file is in no package either."
)
_EPOCHS, _BATCH, _RATE, _DECAY = 20, 100, 3e-3, 1e-3  # of the extractor
_COMPARED = 2_000  # images of a side whose neighbours are compared


def published(dataset: str, method: str, epsilon: float) -> float | None:
    """Return the accuracy that the paper has for a method, or None."""
    if dataset not in ACCURACIES or method not in _PAPERS:
        return None
    return ACCURACIES[dataset][_PAPERS.index(method)][(*SMALL_EPSILONS, 10.0).index(epsilon)]


def table_1(dataset: str, budget: str, seeds: Sequence[int] | None = None) -> list[Row]:
    """Return a row of every method at epsilon 1 and 10."""
    without = {"published": WITHOUT_PRIVACY.get(dataset)}
    more = row_of("datalens", "1", "DC-GAN without privacy", dataset, None, "published, no privacy", **without)
    return [*_accuracies("1", dataset, budget, EPSILONS, seeds), more]


def table_2(dataset: str, budget: str, seeds: Sequence[int] | None = None) -> list[Row]:
    """Return a row of every method where epsilon is at most 1."""
    return _accuracies("2", dataset, budget, SMALL_EPSILONS, seeds)


def _accuracies(
    table: str, dataset: str, budget: str, epsilons: Sequence[float], seeds: Sequence[int] | None
) -> list[Row]:
    folder, rows, samples = FOLDERS[dataset](), list[Row](), SAMPLES_BY_BUDGET[budget] if table == "1" else SAMPLES
    judge = small_accuracy if table == "2" else _cnn
    for method, epsilon in itertools.product(dict.fromkeys((*METHODS, *_PAPERS)), epsilons):
        found, started, setting = {}, time.monotonic(), "published"
        if method in METHODS:
            runs = [
                judge(*drawn(method, folder, epsilon, seed, budget, samples), folder, seed)
                for seed in seeds or SEEDS[budget]
            ]
            found, setting = spread(runs), f"{samples:,} samples, delta {DELTA:g}"
            print(f"  {method} at {epsilon:g}: {runs}", flush=True)
        found |= {"published": published(dataset, method, epsilon), "seconds": since(started)}
        rows.append(row_of("datalens", table, method, dataset, epsilon, setting, **found))
    return rows


def varied(table: str, dataset: str, budget: str, seeds: Sequence[int] | None = None) -> list[Row]:
    """Return a row of `published` with each option that Table 4 or 7 varies, at epsilon 1."""
    folder, rows = FOLDERS[dataset](), list[Row]()
    for options, on_mnist, on_fashion in VARIED[table]:
        started, runs = time.monotonic(), []
        for seed in seeds or SEEDS[budget]:
            generator = trained(folder, "datalens", {"preset": "published", **options}, 1.0)[0]
            images = draw(generator, len(folder.classes), SAMPLES_BY_BUDGET["quick"], seed)
            runs.append(_cnn(*images, folder, seed))
        more = {"published": {"mnist": on_mnist, "fashion-mnist": on_fashion}.get(dataset), "seconds": since(started)}
        setting = ", ".join(f"{name} {value}" for name, value in options.items()) or "nothing varied"
        rows.append(row_of("datalens", table, PAPER, dataset, 1.0, setting, **spread(runs), **more))
    return rows


def _cnn(images: Tensor, labels: Tensor, folder: Folder, seed: int) -> float:
    return train_and_test("cnn", images, labels, *tests_of(folder), classes=len(folder.classes), seed=seed).accuracy


def drawn(method: str, folder: Folder, epsilon: float, seed: int, budget: str, samples: int) -> tuple[Tensor, Tensor]:
    """Train a method and draw images (n, c, h, w) uint8 with their labels (n,), the classes in turn."""
    if method != DP_MERF:
        generator = trained(folder, *(PUBLISHED if method == PAPER else MOMENTS), epsilon)[0]
        return draw(generator, len(folder.classes), samples, seed)
    facts, (features, steps) = facts_of(folder), MERF[budget]
    waves = frequencies(facts.pixels, features, seed)
    sums = embedded_sums(folder.images, folder.labels, waves, len(folder.classes))
    noise = SecureNoise(secrets.token_bytes(32))
    released = privatise_embedding(sums, open_filter(epsilon, DELTA).capacity_nano, NoLedger(), noise)
    merf, stream = fit_generator(released, len(folder.labels), waves, steps, seed), torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % len(folder.classes)
    rows = torch.cat([merf.sample(part, stream) for part in torch.split(labels, 2000)])
    return (rows.view(-1, facts.channels, facts.height, facts.width) * 255).round().byte(), labels


class Extractor:
    """A small CNN that learned public images of the set's own classes; features are its last hidden layer."""

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
        """Return features (n, d) float64 of images (n, c, h, w) uint8."""
        return torch.cat([self._hidden(part.float() / 255) for part in images.split(1000)]).double()

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """Return class probabilities (n, classes) float64."""
        return self._head(self.features(images).float()).double().softmax(dim=1)


def inception_score(probabilities: Tensor) -> float:
    """Return exp E KL(p(y | x) || p(y)) of (n, classes): 1, up to the number of classes (Salimans et al. 2016)."""
    of_all = probabilities.mean(dim=0, keepdim=True)
    tiny = torch.finfo(probabilities.dtype).tiny
    ratio = probabilities.clamp(min=tiny).log() - of_all.clamp(min=tiny).log()
    return math.exp(float((probabilities * ratio).sum(dim=1).mean()))


def scores_of(images: Tensor, labels: Tensor, folder: Folder, extractor: Extractor, seed: int) -> dict[str, float]:
    """Score images (n, c, h, w) uint8 against the half of the test images that the extractor has not learned."""
    half = len(folder.test_labels) // 2
    test, truth = (part[half:] for part in tests_of(folder))
    real, fake = extractor.features(test), extractor.features(images)
    precision, recall = precision_and_recall(real[:_COMPARED], fake[:_COMPARED])
    found = {"IS": inception_score(extractor.probabilities(images)), "FID": frechet_distance(real, fake)}
    found |= {"precision": precision, "recall": recall}
    for kind in CLASSIFIER_KINDS:
        tested = train_and_test(kind, images, labels, test, truth, classes=len(folder.classes), seed=seed)
        found[f"accuracy, {kind.replace('_', ' ')}"] = tested.accuracy
    return found


def scores(table: str, dataset: str, budget: str, seeds: Sequence[int] | None = None) -> list[Row]:
    """Return the rows of Table 12; Table 3 has the Inception Score alone."""
    folder, rows, count = FOLDERS[dataset](), list[Row](), SCORED[budget]
    learned = [part[: len(folder.test_labels) // 2] for part in tests_of(folder)]
    extractors = {seed: Extractor(*learned, len(folder.classes), seed) for seed in seeds or SEEDS[budget]}
    first = channels_first(folder.images[:count]), torch.from_numpy(folder.labels[:count])
    names = ("IS", "FID") if table == "12" else ("IS",)
    for method in (REAL, *METHODS):
        for epsilon in (None,) if method == REAL else EPSILONS:
            started, found = time.monotonic(), list[dict[str, float]]()
            for seed, extractor in extractors.items():
                images = first if epsilon is None else drawn(method, folder, epsilon, seed, budget, count)
                found.append(scores_of(*images, folder, extractor, seed))
            print(f"  {method} at {epsilon}: IS {found[0]['IS']:.2f}, FID {found[0]['FID']:.1f}", flush=True)
            for measure in found[0] if table == "12" else names:
                more: dict[str, Any] = {**spread([each[measure] for each in found]), "measure": measure}
                more |= {"seconds": since(started), "published": _published_score(dataset, measure, method, epsilon)}
                setting = f"{measure}: {count:,} images against {len(folder.test_labels) // 2:,} real ones"
                rows.append(row_of("datalens", table, method, dataset, epsilon, setting, **more))
    for method, epsilon, measure in itertools.product(_PAPERS[:-1], EPSILONS, names):
        theirs = {"measure": measure, "published": _published_score(dataset, measure, method, epsilon)}
        rows.append(row_of("datalens", table, method, dataset, epsilon, f"{measure}: published", **theirs))
    return rows


def _published_score(dataset: str, measure: str, method: str, epsilon: float | None) -> float | None:
    methods = (REAL, *_PAPERS)
    if method not in methods or (dataset, measure) not in SCORES:
        return None
    return SCORES[dataset, measure][0 if epsilon is None else EPSILONS.index(epsilon)][methods.index(method)]


TABLES: Mapping[str, Callable[..., list[Row]]] = {
    "1": table_1,
    "2": table_2,
    "3": lambda *given: scores("3", *given),
    "4": lambda *given: varied("4", *given),
    "7": lambda *given: varied("7", *given),
    "12": lambda *given: scores("12", *given),
}
