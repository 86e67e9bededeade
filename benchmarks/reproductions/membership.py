"""RGP's Table 4: does a loss threshold tell who was trained on? Half of them would be told by guessing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.classifier_runs import first, plan_of, trained, without_noise
from benchmarks.reproductions.rows import FOLDERS, row_of
from benchmarks.results import Row, since, spread
from benchmarks.small_data import channels_first
from models.private_classifier import PrivateClassifier
from workers.evaluation.membership import attack_by_loss
from workers.recipes.dp_classifier import losses

_WIDE = 1e3
_PUBLISHED = {"Full (N.P.)": 57.7, "RGP (N.P.)": 52.6, "RGP": 50.1}  # BERT on SST-2
_METHODS: dict[str, dict[str, Any]] = {
    "Full (N.P.)": {"estimator": "dpsgd", "clip": _WIDE, "learning_rate": 0.2, "momentum": 0.9},
    "RGP (N.P.)": {"estimator": "rgp", "rank": 2, "clip": _WIDE, "learning_rate": 0.2, "momentum": 0.9},
    "RGP": {"estimator": "rgp", "rank": 2, "clip": 1.0, "learning_rate": 1.0, "momentum": 0.0},
}


@torch.no_grad()
def _losses(model: PrivateClassifier, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    parts = torch.split(images.float() / 255, 500)
    return losses(torch.cat([model(part) for part in parts]), labels)


def membership_rows(dataset: str, budget: str, seeds: Sequence[int] = (0, 1, 2)) -> list[Row]:
    """Train on some images, attack with as many test images beside them, and return a row for each method."""
    quick = budget == "quick"
    members, steps, architecture = (1_000, 300, "cnn") if quick else (10_000, 2_000, "wrn28_4")
    folder, rows = first(FOLDERS[dataset](), members), []
    inside = channels_first(folder.images), torch.from_numpy(folder.labels)
    outside = channels_first(folder.test_images[:members]), torch.from_numpy(folder.test_labels[:members])
    setting = f"{architecture}, {members:,} members, {steps} steps of 100: attack's success"
    for method, options in _METHODS.items():
        started, found = time.monotonic(), []
        for seed in seeds:
            plan = plan_of(folder, {"architecture": architecture, "expected_batch": 100, **options}, 8.0, seed, steps)
            model = trained(folder, plan if method == "RGP" else without_noise(plan))
            halves = torch.Generator().manual_seed(seed)
            found.append(attack_by_loss(_losses(model, *inside), _losses(model, *outside), generator=halves))
        more = {**spread([attack.success_rate for attack in found], 100), "seconds": since(started)}
        more |= {"published": _PUBLISHED[method], "error_of_one": 100 * max(each.standard_error for each in found)}
        rows.append(row_of("rgp", "4", method, dataset, 8.0 if method == "RGP" else None, setting, **more))
    return rows
