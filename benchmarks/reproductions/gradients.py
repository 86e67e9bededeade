"""Figures about gradients: how much of them a basis holds (GEP, Figures 4 and 7), and their stable ranks (Figure 5).

A classifier is trained without noise. As it stands at first and after half and all of its steps, the gradients of 200
of its records are projected on the basis that GEP finds on public patterns with random labels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.classifier_runs import first, plan_of, trained, without_noise
from benchmarks.reproductions.rows import FOLDERS, row_of
from benchmarks.results import Row, since, spread
from benchmarks.small_data import Folder, channels_first, facts_of
from models.private_classifier import ClassifierConfig, PrivateClassifier
from models.public_patterns import public_patterns
from privacy.gradients.estimator import shapes_of
from privacy.gradients.gep import Gep
from privacy.gradients.per_sample import Traces, trace_gradients
from workers.recipes.dp_classifier import losses

_RECORDS = 200
_OPTIONS = {"expected_batch": 128, "clip": 1.0, "learning_rate": 2.0, "momentum": 0.0}
_BUDGETS = {  # network, images, steps, sizes of bases, anchors
    "quick": ("cnn", 5_000, 100, (50, 100, 200), 200),
    "full": ("resnet20", 50_000, 1_000, (500, 1000, 2000), 2000),
}


def stable_rank(rows: torch.Tensor) -> float:
    """Return the squared Frobenius norm over the squared spectral norm of a matrix (n, d)."""
    return float(rows.square().sum() / torch.linalg.matrix_norm(rows, 2).square())


def projected(estimator: Gep, rows: torch.Tensor, random: bool = False) -> torch.Tensor:
    """Return what a step's basis leaves of gradients (n, d); `random` takes a random basis of as many vectors."""
    residual, stream = rows.clone(), torch.Generator().manual_seed(1)
    for basis in estimator.bases:
        used = basis.vectors[: basis.size, : basis.coordinates]  # (k, p)
        if random:
            used = torch.linalg.qr(torch.randn(used.shape, generator=stream).mT)[0].mT
        residual[:, basis.index] -= rows[:, basis.index] @ used.mT @ used
    return residual


def gradient_rows(dataset: str, budget: str, seeds: Sequence[int] = (0, 1, 2)) -> list[Row]:
    """Return projection errors by size of the basis, and stable ranks, at three moments of a training."""
    architecture, records, steps, sizes, anchors = _BUDGETS[budget]
    folder = first(FOLDERS[dataset](), records)
    facts, options = facts_of(folder), {"architecture": architecture, **_OPTIONS}
    shape = ClassifierConfig(architecture, folder.classes, facts.channels, facts.height, facts.width)
    rows: list[Row] = []
    for done in (0, steps // 2, steps):
        started = time.monotonic()
        found: dict[tuple[str, str, str], list[float]] = {}
        for seed in seeds:
            model = PrivateClassifier(shape, seed)
            if done:
                model = trained(folder, without_noise(plan_of(folder, options, 1.0, seed, done)))
            for *which, ours in _measured(model, folder, sizes, anchors):
                found.setdefault(tuple(which), []).append(ours)
        seconds = since(started)
        for (figure, method, what), values in found.items():
            setting = f"{architecture}, after {done} steps without noise, {what}"
            more = {**spread(values), "seconds": seconds}
            rows.append(row_of("gep", f"figure {figure}", method, dataset, None, setting, **more))
    return rows


def _measured(
    model: PrivateClassifier, folder: Folder, sizes: Sequence[int], anchors: int
) -> list[tuple[str, str, str, float]]:
    """Return (figure, method, what, number) of one network."""
    facts = facts_of(folder)
    public = 2 * public_patterns(anchors, facts.channels, facts.height, facts.width, 1) - 1
    images = 2 * (channels_first(folder.images[:_RECORDS]).float() / 255) - 1
    labels = torch.from_numpy(folder.labels[:_RECORDS])

    def traces(network: nn.Module, stream: torch.Generator) -> Traces:
        return trace_gradients(network, losses, public, torch.randint(len(facts.classes), (anchors,), generator=stream))

    found = []
    for size in sizes:
        estimator = Gep(
            shapes_of(model.head),
            traces,
            basis_size=size,
            clip=1.0,
            clip_residual=0.2,
            groups="widths",
            noise_multiplier=1.0,
            expected_batch=1.0,
        )
        estimator.begin_step(model.head)
        rows = estimator.rows(trace_gradients(model.head, losses, images, labels))
        residual, chance = projected(estimator, rows), projected(estimator, rows, random=True)
        error, by_chance = (float(left.mean(dim=0).norm() / rows.mean(dim=0).norm()) for left in (residual, chance))
        energy = 1 - float(residual.square().sum() / rows.square().sum())
        found.append(("4", "anchors", f"k = {size}: projection error of the mean gradient", error))
        found.append(("4", "anchors", f"k = {size}: energy of single gradients in the basis", energy))
        found.append(("7", "random basis", f"k = {size}: projection error of the mean gradient", by_chance))
    found.append(("5", "gradients", "stable rank", stable_rank(rows)))
    found.append(("5", "residuals", f"k = {sizes[-1]}: stable rank", stable_rank(residual)))
    return found
