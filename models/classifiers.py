"""Small classifiers that judge synthetic images: logistic regression, an MLP and a CNN.

They see only synthetic images (training) and public images (testing), so nothing here is private and
BatchNorm is allowed.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

ClassifierKind = Literal["logistic_regression", "mlp", "cnn"]
CLASSIFIER_KINDS: tuple[ClassifierKind, ...] = ("logistic_regression", "mlp", "cnn")


def build_classifier(kind: ClassifierKind, *, channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Build an untrained classifier of images (batch, channels, height, width) in [0, 1].

    Returns:
        A module that maps images to logits (batch, classes).

    Raises:
        ValueError: `kind` is not one of CLASSIFIER_KINDS.
    """
    pixels = channels * height * width
    if kind == "logistic_regression":
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes))
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, classes))
    if kind == "cnn":
        # Pooling before the ReLU gives the same function at a quarter of the ReLU's cost.
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.4),
            nn.Linear(64 * (height // 4) * (width // 4), 128),
            nn.ReLU(),
            nn.Dropout(0.4),
            nn.Linear(128, classes),
        )
    raise ValueError(f"unknown classifier {kind!r}: choose one of {', '.join(CLASSIFIER_KINDS)}")


def logits_in_batches(model: nn.Module, images: torch.Tensor, batch: int = 2000) -> torch.Tensor:
    """Evaluate `model` on images (n, c, h, w) without gradients; returns logits (n, classes)."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(images[start : start + batch]).float() for start in range(0, len(images), batch)])
