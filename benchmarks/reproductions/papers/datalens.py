"""DataLens, Table 1: accuracy of a CNN trained on what each method draws, at epsilon 1 and 10.

The default of images, Algorithms 1 to 3 as the service's recipe trains them with the preset `published`, the paper's
competitors, and DP-MERF, which the paper does not have. The evaluation's CNN
learns the synthetic images to the last step and is tested once on real test images. DC-GAN has no privacy, so that one
run stands at both epsilons.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.budgets import NoLedger
from benchmarks.datalens_published import BY_EPSILON
from benchmarks.generator_runs import DELTA, OURS, train
from benchmarks.generator_runs import PUBLISHED as PAPERS
from benchmarks.reproductions.competitors.dc_gan import DcGan, train_dc_gan
from benchmarks.reproductions.competitors.dp_gan import DpGan, train_dp_gan
from benchmarks.reproductions.competitors.dp_merf import embedded_sums, fit_generator, frequencies, privatise_embedding
from benchmarks.reproductions.competitors.g_pate import GPate, train_g_pate
from benchmarks.reproductions.competitors.gs_wgan import GsWgan, train_gs_wgan
from benchmarks.reproductions.competitors.pate_gan import PateGan, train_pate_gan
from benchmarks.reproductions.papers.accuracies import FOLDERS
from benchmarks.reproductions.papers.rows import Row, row_of, since, spread
from benchmarks.small_data import Folder, channels_first, facts_of
from models.portable.dcgan import DcganGenerator
from privacy.accounting.filter import open_filter
from privacy.mechanisms.noise import SecureNoise
from workers.evaluation.utility import train_and_test
from workers.recipes.interface import TrustedCurator

Draw = Callable[[Tensor, torch.Generator], Tensor]  # labels (n,), public stream -> images (n, pixels) in [0, 1]
Method = Callable[[Folder, float, int, str], Draw]  # private folder, epsilon, public seed, quick or full
EPSILONS = (1.0, 10.0)
_QUICK, _FULL = "quick", "full"
_SAMPLES = {_QUICK: 10_000, _FULL: 60_000}
SEEDS = {_QUICK: (0,), _FULL: (0, 1, 2)}
_MERF = {_QUICK: (2000, 2000), _FULL: (10_000, 6000)}  # features, steps
DEFAULT, PAPER, DP_MERF = "moments, our default", "DataLens, Algorithms 1-3", "DP-MERF"
DC_GAN, DP_GAN, PATE_GAN, G_PATE, GS_WGAN = "DC-GAN without privacy", "DP-GAN", "PATE-GAN", "G-PATE", "GS-WGAN"
# Sizes of the competitors: for minutes on a CPU, and networks and numbers of teachers like the papers'.
_SIZES: dict[str, dict[str, Any]] = {
    _QUICK: {
        DC_GAN: DcGan(steps=1500),
        DP_GAN: DpGan(steps=500),
        PATE_GAN: PateGan(teachers=100, iterations=1000, batch=32),
        G_PATE: GPate(teachers=1000, iterations=200, teacher_steps=1),
        GS_WGAN: GsWgan(critics=500, visits=2),
    },
    _FULL: {
        DC_GAN: DcGan(steps=20_000, features=64, latent=100, rate=2e-4),
        DP_GAN: DpGan(steps=50_000, features=64, latent=100),
        PATE_GAN: PateGan(teachers=1000, iterations=2000, student_steps=5, features=64, latent=100),
        G_PATE: GPate(teachers=4000, iterations=500, batch=32, features=64, latent=100),
        GS_WGAN: GsWgan(critics=1000, visits=20, batch=32, features=64),
    },
}
# By (data set, method): at epsilon 1 and 10; DC-GAN has no privacy.
PUBLISHED: Mapping[tuple[str, str], tuple[float | None, float | None]] = {
    ("fashion-mnist", DC_GAN): (0.8032, 0.8032),
    ("fashion-mnist", DP_GAN): (0.1053, 0.6098),
    ("fashion-mnist", PATE_GAN): (0.4222, 0.6218),
    ("fashion-mnist", G_PATE): (0.5567, 0.6934),
    ("fashion-mnist", GS_WGAN): (0.1661, 0.6579),
    ("mnist", DC_GAN): (0.9653, 0.9653),
    ("mnist", DP_GAN): (0.4036, 0.8011),
    ("mnist", PATE_GAN): (0.4168, 0.6667),
    ("mnist", G_PATE): (0.5810, 0.8092),
    ("mnist", GS_WGAN): (0.1432, 0.8075),
    **{(name, PAPER): (of[EPSILONS[0]], of[EPSILONS[1]]) for name, of in BY_EPSILON.items()},
}
NEEDS = (
    "--budget full trains the competitors' GANs at DC-GAN's sizes and wants a GPU for hours. "
    "CelebA and Places365 are in no package."
)


def _by_a_recipe(variant: str) -> Method:
    """Make a method of a recipe of the service."""

    def made(folder: Folder, epsilon: float, _seed: int, _budget: str) -> Draw:
        generator = train(folder, variant, epsilon)[0]
        return lambda labels, stream: generator.sample(labels, stream).flatten(1)

    return made


def _merf(folder: Folder, epsilon: float, seed: int, budget: str) -> Draw:
    features, steps = _MERF[budget]
    waves = frequencies(facts_of(folder).pixels, features, seed)
    sums = embedded_sums(folder.images, folder.labels, waves, len(folder.classes))
    noise = SecureNoise(secrets.token_bytes(32))
    released = privatise_embedding(sums, open_filter(epsilon, DELTA).capacity_nano, NoLedger(), noise)
    return fit_generator(released, len(folder.labels), waves, steps, seed).sample


def _dc_gan(folder: Folder, _epsilon: float, seed: int, budget: str) -> Draw:
    return _flat(train_dc_gan(folder, _SIZES[budget][DC_GAN], seed))


def _dp_gan(folder: Folder, epsilon: float, seed: int, budget: str) -> Draw:
    account = open_filter(epsilon, DELTA)
    sizes = _SIZES[budget][DP_GAN]
    return _flat(train_dp_gan(folder, sizes, account, account.capacity_nano, _means(), seed))


def _of_teachers(method: str, train_it: Callable[..., DcganGenerator]) -> Method:
    """Make a method of one that spends a budget on releases of teachers."""

    def made(folder: Folder, epsilon: float, seed: int, budget: str) -> Draw:
        capacity = open_filter(epsilon, DELTA).capacity_nano
        return _flat(train_it(folder, _SIZES[budget][method], capacity, _means(), seed))

    return made


def _means() -> TrustedCurator:
    return TrustedCurator(budget=NoLedger(), secret=secrets.token_bytes(32))


def _flat(generator: DcganGenerator) -> Draw:
    return lambda labels, stream: generator.sample(labels, stream).flatten(1)


METHODS: Mapping[str, Method] = {
    DEFAULT: _by_a_recipe(OURS),
    PAPER: _by_a_recipe(PAPERS),
    DP_MERF: _merf,
    DC_GAN: _dc_gan,
    DP_GAN: _dp_gan,
    PATE_GAN: _of_teachers(PATE_GAN, train_pate_gan),
    G_PATE: _of_teachers(G_PATE, train_g_pate),
    GS_WGAN: _of_teachers(GS_WGAN, train_gs_wgan),
}


def table_1(dataset: str, budget: str, seeds: Sequence[int] | None = None) -> list[Row]:
    """Make a row of every method at each epsilon."""
    folder, rows = FOLDERS[dataset](), list[Row]()
    for method in METHODS:
        for epsilon in EPSILONS:
            if method == DC_GAN and epsilon != EPSILONS[0]:
                theirs = published(dataset, method, epsilon)
                rows.append({**rows[-1], "epsilon": epsilon, "published": theirs, "seconds": 0.0})
            else:
                rows.append(_row(dataset, folder, method, epsilon, budget, seeds or SEEDS[budget]))
                print(f"  {method} at {epsilon:g}: {rows[-1]['runs']}, {rows[-1]['seconds']} s", flush=True)
    return rows


def _row(dataset: str, folder: Folder, method: str, epsilon: float, budget: str, seeds: Sequence[int]) -> Row:
    started, found = time.monotonic(), []
    for seed in seeds:
        images, labels = drawn(method, folder, epsilon, seed, budget, _SAMPLES[budget])
        found.append(_accuracy(images, labels, folder, seed))
    setting = setting_of(method, budget, _SAMPLES[budget])
    more = {**spread(found), "published": published(dataset, method, epsilon), "seconds": since(started)}
    return row_of("datalens", "1", method, dataset, epsilon, setting, **more)


def setting_of(method: str, budget: str, samples: int) -> str:
    """Return what a row says of how a method was run."""
    setting = f"{samples:,} samples, " + ("no privacy" if method == DC_GAN else f"delta {DELTA:g}")
    if method == PAPER:
        setting += ", recipe datalens, preset published"
    if method in _SIZES[budget]:
        setting += "".join(f", {name} {value:g}" for name, value in vars(_SIZES[budget][method]).items())
    return setting


def drawn(method: str, folder: Folder, epsilon: float, seed: int, budget: str, samples: int) -> tuple[Tensor, Tensor]:
    """Train a method and draw so many images (n, c, h, w) uint8 with their labels (n,), the classes in turn."""
    draw, stream = METHODS[method](folder, epsilon, seed, budget), torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % len(folder.classes)
    rows = torch.cat([draw(part, stream) for part in torch.split(labels, 2000)])
    facts = facts_of(folder)
    return (rows.view(-1, facts.channels, facts.height, facts.width) * 255).round().byte(), labels


def _accuracy(images: Tensor, labels: Tensor, folder: Folder, seed: int) -> float:
    test, truth = channels_first(folder.test_images), torch.from_numpy(folder.test_labels)
    return train_and_test("cnn", images, labels, test, truth, classes=len(folder.classes), seed=seed).accuracy


def published(dataset: str, method: str, epsilon: float) -> float | None:
    """Return what the paper's Table 1 has of a method, where it has anything."""
    return dict(zip(EPSILONS, PUBLISHED.get((dataset, method), (None, None)), strict=True)).get(epsilon)
