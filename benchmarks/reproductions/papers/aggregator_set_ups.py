"""Where aggregators are compared: records, teachers and images of `aggregators.loop`, and what is measured.

Every method gets the same number of tries, drawn by a public seed from its own grid of settings and judged on training
images that were held out; the best one is then run with several seeds and tested on the test images once. The budget
is the same for all: so many images are aggregated, at the noise that each one's own sensitivity needs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.budgets import NoLedger
from benchmarks.reproductions.aggregators.cosine_features import CosineFeatures, cosine_features
from benchmarks.reproductions.aggregators.d2p_fed import D2PFed
from benchmarks.reproductions.aggregators.fetch_sgd import FetchSgd
from benchmarks.reproductions.aggregators.gaussian import ClippedSum
from benchmarks.reproductions.aggregators.loop import Learned, LinearTeachers, learn, linear_teachers, nearest
from benchmarks.reproductions.aggregators.release import Aggregator
from benchmarks.reproductions.aggregators.topagg import TopAgg
from benchmarks.reproductions.papers.accuracies import FOLDERS
from benchmarks.small_data import Folder, channels_first, facts_of
from privacy.accounting.filter import open_filter
from workers.evaluation.utility import train_and_test

DELTA = 1e-5
TRIES = 24  # of each method, at most
TOPAGG, NO_COMPRESSION = "TopAgg", "no compression"
_START, _SPREAD = 64 / 255, 0.8  # public: a dark grey image; spread of the student's samples around their class's image
_TRIES_SEED = 14
_HELD_OUT, _LAST_FEW = 5000, 4


@dataclasses.dataclass(frozen=True)
class SetUp:
    """Public parameters of a comparison.

    Attributes:
        dataset: of `FOLDERS`.
        records: how many of its private images.
        teachers: N.
        coefficients: lowest cosine waves that describe an image; 0 for its pixels.
        iterations: T; each aggregates one image for each class.
        epsilon: of all together.
    """

    dataset: str
    records: int
    teachers: int
    coefficients: int = 0
    iterations: int = 10
    epsilon: float = 1.0

    @property
    def name(self) -> str:
        """For tables."""
        on = f"{self.coefficients} cosine coefficients" if self.coefficients else "pixels"
        return f"{self.records:,} records, {self.teachers:,} teachers, {on}, {self.iterations} images of each class"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One try: an aggregator's parameters, and the length of a step."""

    aggregator: type[Aggregator]
    parameters: Mapping[str, Any]
    gamma: float

    def described(self) -> str:
        """For tables."""
        return ", ".join(f"{name} {value:g}" for name, value in [*self.parameters.items(), ("gamma", self.gamma)])


def _steps(low: float, high: float) -> list[float]:
    return [float(f"{value:.2g}") for value in np.geomspace(low, high, 8)]


def _tries(aggregator: type[Aggregator], gammas: Sequence[float], grid: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Draw as many settings as every method may try; a grid with fewer is tried as a whole."""
    everything = [
        Setting(aggregator, dict(zip(grid, values, strict=True)), gamma)
        for *values, gamma in itertools.product(*grid.values(), gammas)
    ]
    return random.Random(_TRIES_SEED).sample(everything, min(TRIES, len(everything)))


_MEAN_STEPS, _SIGN_STEPS = _steps(0.01, 5.0), _steps(0.01, 0.5)


def votes(d: int, top_k: bool, stochastic: bool, threshold: bool) -> list[Setting]:
    """TopAgg with some of its three components: what is tried."""
    grid: dict[str, Sequence[Any]] = {
        "k": [d // 4, d // 2] if top_k else [d],
        "c": [0.3, 1.0] if stochastic else [1e-5],
        "stochastic_sign": [stochastic],
        **({"beta": [0.1, 0.3]} if threshold else {}),
    }
    return _tries(TopAgg, _SIGN_STEPS if threshold else _MEAN_STEPS, grid)


def competitors(d: int) -> dict[str, list[Setting]]:
    """The methods of Tables 5 and 6, and no compression: what is tried of each."""
    length = np.sqrt(d / 784)  # gradients of fewer coordinates are shorter
    fetch = {"k": [d // 4, d // 2], "c": [1e-5], "rows": [1, 3], "columns": [d // 3, d]}
    return {
        TOPAGG: votes(d, top_k=True, stochastic=True, threshold=True),
        "D2P-Fed": _tries(D2PFed, _MEAN_STEPS, {"levels": [2, 4, 16], "clip": [0.1, 0.3, 1.0]}),
        "FetchSGD": _tries(FetchSgd, _MEAN_STEPS, fetch),
        NO_COMPRESSION: _tries(ClippedSum, _MEAN_STEPS, {"clip": [float(c * length) for c in (1.0, 2.0, 4.0)]}),
    }


@dataclasses.dataclass(frozen=True, repr=False)
class Place:
    """A set-up with its records: the private side of a comparison."""

    set_up: SetUp
    folder: Folder
    features: CosineFeatures | None

    @property
    def dimension(self) -> int:
        """Coordinates of one image."""
        return self.set_up.coefficients or facts_of(self.folder).pixels

    @functools.cached_property
    def test_rows(self) -> Tensor:
        """The test images as the student sees images."""
        return self._rows(self.folder.test_images)

    @functools.cached_property
    def start(self) -> Tensor:
        """The student's first images: public."""
        return torch.full((len(self.folder.classes), self.dimension), 0.0 if self.features else _START)

    def _rows(self, images: Any) -> Tensor:
        if self.features is None:
            return torch.from_numpy(images.reshape(len(images), -1)).float() / 255
        return self.features(images)

    def teachers(self, secret: bytes) -> LinearTeachers:
        """Deal the records out to teachers. PRIVATE."""
        rows = self._rows(self.folder.images)
        arguments = (self.folder.images, self.folder.labels, len(self.folder.classes), self.set_up.teachers, secret)
        return linear_teachers(rows, *arguments)

    def run(self, setting: Setting, noise: bool = True) -> Learned:
        """Run the loop with a fresh secret."""
        of, secret = self.set_up, secrets.token_bytes(32)
        made = setting.aggregator(teachers=of.teachers, dimension=self.dimension, stddev=1e3, **setting.parameters)
        images = of.iterations * len(self.folder.classes)
        paid = made.affording(open_filter(of.epsilon if noise else _NO_NOISE, DELTA).capacity_nano, images)
        return learn(paid, self.teachers(secret), self.start, of.iterations, setting.gamma, NoLedger(), secret)

    def accuracy(self, learned: Learned) -> float:
        """Share of test images that are nearest to their class's image."""
        return nearest(learned.images, self.test_rows, self.folder.test_labels)

    def classifier_accuracy(self, learned: Learned, kind: str, samples: int, seed: int) -> float:
        """Accuracy of a classifier that learned samples: a class's image and public waves of nature's amplitudes."""
        facts, stream = facts_of(self.folder), torch.Generator().manual_seed(seed)
        waves = cosine_features(facts, self.set_up.coefficients or 256)
        means = learned.images
        if self.features is not None:
            means = (means * waves.scale) @ waves.basis + _START
        labels = torch.arange(samples) % len(self.folder.classes)
        spread = torch.randn(samples, len(waves.scale), generator=stream) * _SPREAD * waves.scale
        drawn = (means[labels] + spread @ waves.basis).clamp(0, 1)
        images = (drawn.view(samples, facts.channels, facts.height, facts.width) * 255).round().byte()
        test, truth = channels_first(self.folder.test_images), torch.from_numpy(self.folder.test_labels)
        return train_and_test(kind, images, labels, test, truth, classes=len(self.folder.classes), seed=seed).accuracy


_NO_NOISE = 1e4  # an epsilon so large that noise is nothing


@functools.cache
def place(set_up: SetUp, held_out: bool) -> Place:
    """Read a set-up's records; those held out are training images.

    Args:
        set_up: which.
        held_out: whether settings are chosen there, or results tested.
    """
    whole = FOLDERS[set_up.dataset]()
    folder = whole.held_out(set_up.records, test=_HELD_OUT) if held_out else whole.cut(set_up.records)
    features = cosine_features(facts_of(folder), set_up.coefficients) if set_up.coefficients else None
    return Place(set_up, folder, features)


def chosen(set_up: SetUp, tries: Sequence[Setting]) -> Setting:
    """Return the try that does best on the images that were held out.

    Noise makes one run lucky: the best few are run three times, and their means compared.
    """
    where = place(set_up, held_out=True)
    once = [where.accuracy(where.run(setting)) for setting in tries]
    best = sorted(range(len(tries)), key=lambda at: once[at], reverse=True)[:_LAST_FEW]
    again = {at: once[at] + sum(where.accuracy(where.run(tries[at])) for _ in range(2)) for at in best}
    return tries[max(again, key=lambda at: again[at])]
