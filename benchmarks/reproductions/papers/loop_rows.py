"""The rungs of DataLens' loop, from one discriminator of all records down to the published one, and the loop for real.

`--figure ablation` trains on 55,000 training images and judges a generator on the other 5,000 (4,000 samples, the CNN,
five epochs), with one seed, or three for `full`. `--figure loop` trains on all 60,000 with 4,000 linear teachers and
the noise that is paid for, three seeds, draws 10,000 samples and tests once, as `--table 1 --budget quick` does for
every method, and does the same with what others do in TopAgg's place at the same epsilon. `full` also trains
4,000 published teachers: 36 GB, on a processor days. `--figure dense` has small dense networks all through.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.reproductions.competitors.dc_gan import DcGan, train_dc_gan
from benchmarks.reproductions.papers import dense_networks
from benchmarks.reproductions.papers.accuracies import FOLDERS
from benchmarks.reproductions.papers.datalens import PAPER, published
from benchmarks.reproductions.papers.loop import judged, train
from benchmarks.reproductions.papers.rows import Row, row_of, since, spread
from benchmarks.reproductions.papers.rungs import (
    ALL,
    CLIPPED,
    DCGAN,
    DELTA,
    DENSE,
    G_PATE,
    GS_WGAN,
    IMAGES,
    LINEAR,
    MEAN,
    PAID,
    PUBLISHED,
    SIGNS,
    THRESHOLD,
    TOP_K,
    Rung,
)
from benchmarks.small_data import Folder

_HELD_OUT, _JUDGED_BY, _EPOCHS = 5000, 4000, 5
_TESTED_BY = 10_000
_SEEDS = {"quick": (0,), "full": (0, 1, 2)}
_FEW = {PUBLISHED: 30, DENSE: 400, LINEAR: ALL}  # teachers that train on a processor in two minutes
_MANY = {PUBLISHED: 3500, DENSE: ALL, LINEAR: ALL}  # that have their records among 55,000
_CEILING = (86, 300, 1000)  # generator steps
# By name: the method of Table 1, the epsilon that a row is put beside, and the loop.
REAL: Mapping[str, tuple[str, float, Rung]] = {
    "Algorithms 1-3, the paper's 1,290 images": (PAPER, 1.0, Rung()),
    **{f"Algorithms 1-3, as many images as epsilon {of:g} pays for": (PAPER, of, rung) for of, rung in PAID.items()},
    # What others make public, of the same teachers in as many iterations. Where one teacher is asked at a time a record
    # pays for the visits to its own alone, so that each has a visit.
    **{
        f"{release}, epsilon {of:g}": (
            method,
            of,
            Rung(release=release, iterations=ALL if release == GS_WGAN else rung.iterations, budget=of),
        )
        for method, release in (("no compression", CLIPPED), ("G-PATE", G_PATE), ("GS-WGAN", GS_WGAN))
        for of, rung in PAID.items()
    },
}


def rungs(budget: str) -> list[Rung]:
    """Return the ladder: who teaches whom with everything on, then what the gradients lose, then how many teach."""
    few = _FEW if budget == "quick" else _MANY
    who = [Rung(teachers, few[teachers], made) for made in (PUBLISHED, DCGAN, DENSE) for teachers in _FEW]
    lost = [
        Rung(teachers, few[teachers], release=release, noise=False)
        for teachers in (LINEAR, PUBLISHED)
        for release in (MEAN, SIGNS, TOP_K, THRESHOLD)
    ]
    loud = [Rung(release=TOP_K), Rung(beta=0.2, noise=False)]
    count = [Rung(LINEAR, count, release=MEAN, noise=False) for count in (10, 100, 1000)]
    other = [Rung(updates=4), Rung(PUBLISHED, few[PUBLISHED], balanced=False)]
    other += [Rung(PUBLISHED, few[PUBLISHED], width=(8, 32))]
    return who + lost + loud + count + other


def figure_ablation(dataset: str, budget: str) -> list[Row]:
    """Make a row for every rung."""
    folder = FOLDERS[dataset]().held_out(test=_HELD_OUT)
    rows = [_ceiling(folder, dataset, steps, _SEEDS[budget]) for steps in _CEILING]
    return rows + _judged("ablation", dataset, budget, folder, rungs(budget))


def figure_competitors(dataset: str, budget: str) -> list[Row]:
    """Make rows of what others make public of the same teachers' gradients, with noise and without."""
    folder = FOLDERS[dataset]().held_out(test=_HELD_OUT)
    wanted = [Rung(release=of, noise=noise) for of in (CLIPPED, G_PATE, GS_WGAN) for noise in (False, True)]
    return _judged("competitors", dataset, budget, folder, wanted)


def _judged(figure: str, dataset: str, budget: str, folder: Folder, wanted: Sequence[Rung]) -> list[Row]:
    rows = []
    for rung in wanted:
        started, found = time.monotonic(), []
        for seed in _SEEDS[budget]:
            found.append(judged(train(rung, folder, seed).sample, folder, _JUDGED_BY, seed, _EPOCHS))
        setting = f"{rung.described()}, beta {rung.beta:g}, {rung.iterations} iterations of {IMAGES} images"
        rows.append(_row(figure, rung.described(), dataset, rung.epsilon, setting, found, started))
        print(rows[-1]["method"], found, flush=True)
    return rows


def _ceiling(folder: Folder, dataset: str, steps: int, seeds: Sequence[int]) -> Row:
    """One discriminator that sees all records, and no more of the loop than its number of generator steps."""
    started, found = time.monotonic(), []
    for seed in seeds:
        generator, stream = train_dc_gan(folder, DcGan(steps=steps), seed), torch.Generator().manual_seed(seed)

        def draw(labels: Tensor, generator: Any = generator, stream: torch.Generator = stream) -> Tensor:
            drawn: Tensor = (generator.sample(labels, stream) * 255).round().byte()
            return drawn

        found.append(judged(draw, folder, _JUDGED_BY, seed, _EPOCHS))
    setting = f"DC-GAN, one discriminator of all records, {steps} steps of {DcGan(steps=1).batch} images"
    return _row("ablation", "one discriminator", dataset, None, setting, found, started)


def figure_loop(dataset: str, budget: str) -> list[Row]:
    """Train the loop that learns with what its budget pays for, and test it once a seed."""
    folder, rows = FOLDERS[dataset](), list[Row]()
    real = dict(REAL)
    if budget == "full":
        real |= {
            f"{name}, published teachers": (method, of, dataclasses.replace(rung, teachers=PUBLISHED))
            for name, (method, of, rung) in REAL.items()
            if method == PAPER
        }
    for name, (method, of, rung) in real.items():
        started, found = time.monotonic(), []
        for seed in (0, 1, 2):
            found.append(judged(train(rung, folder, seed).sample, folder, _TESTED_BY, seed, None))
        noise = f"k {rung.k}, sigma {rung.stddev:g}, beta {rung.beta:g}" if method == PAPER else f"epsilon {of:g}"
        setting = f"{rung.described()}, {noise}, {rung.iterations * IMAGES:,} images, "
        setting += f"{_TESTED_BY:,} samples, delta {DELTA:g}"
        row = _row("loop", name, dataset, rung.epsilon, setting, found, started)
        rows.append(row | {"published": published(dataset, method, of)})
        print(rows[-1]["method"], found, flush=True)
    return rows


def figure_dense(dataset: str, budget: str) -> list[Row]:
    """Train Algorithms 1 to 3 to the letter with small dense networks, and test them once a seed."""
    folder, rows = FOLDERS[dataset](), list[Row]()
    for epsilon in dense_networks.PAPER:
        started, found, asked = time.monotonic(), [], 0
        for seed in _SEEDS[budget]:
            student, asked = dense_networks.train_dense(folder, epsilon, seed)

            def draw(labels: Tensor, student: dense_networks.PixelStudent = student) -> Tensor:
                return (student.propose(labels).detach() * 255).round().byte().view(-1, 1, 28, 28)

            found.append(judged(draw, folder, _TESTED_BY, seed, None))
        setting = f"dense networks, {asked:,} images, {_TESTED_BY:,} samples, delta {DELTA:g}"
        row = _row("dense", "Algorithms 1-3, dense networks", dataset, epsilon, setting, found, started)
        rows.append(row | {"published": published(dataset, PAPER, epsilon)})
    return rows


def _row(
    figure: str, name: str, dataset: str, epsilon: float | None, setting: str, found: Sequence[float], started: float
) -> Row:
    return row_of("datalens", figure, name, dataset, epsilon, setting, **spread(found), seconds=since(started))


def papers_epsilon(images: int, k: int, stddev: float) -> float:
    """Return the epsilon that the paper's Theorem 1 gives so many images: Renyi orders are not rounded here."""
    half = images * 2 * k / stddev**2  # mu^2 / 2
    return half + 2 * math.sqrt(half * math.log(1 / DELTA))


FIGURES: Mapping[tuple[str, str], Callable[[str, str], list[Row]]] = {
    ("datalens", "ablation"): figure_ablation,
    ("datalens", "competitors"): figure_competitors,
    ("datalens", "dense"): figure_dense,
    ("datalens", "loop"): figure_loop,
}
