"""Small classifiers for evaluating synthetic images (logistic regression, an MLP and a CNN), and ways to run a network.

They are trained on synthetic images and tested on public images, so nothing here is private and BatchNorm is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

ClassifierKind = Literal["logistic_regression", "mlp", "cnn"]
CLASSIFIER_KINDS: tuple[ClassifierKind, ...] = ("logistic_regression", "mlp", "cnn")


class Dropout(nn.Dropout):
    """Dropout with fast random numbers on a CPU, optionally from its own stream.

    Attributes:
        stream: random stream on the CPU; None: torch's own, which all threads share.
    """

    stream: torch.Generator | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Set numbers to zero at the dropout rate, and scale up the others.

        If a random stream is given, the rate is rounded to a multiple of 1/65,536.
        """
        if self.stream is None or not self.training:
            return super().forward(input)
        words = torch.empty(-(-input.numel() // 4), dtype=torch.int64).random_(-(2**63), None, generator=self.stream)
        left_out = round(self.p * 2**16)
        kept = words.view(torch.int16)[: input.numel()].view(input.shape) >= left_out - 2**15
        return input * (kept.to(input.dtype) * (2**16 / (2**16 - left_out)))


def build_classifier(kind: ClassifierKind, *, channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Build an untrained classifier, which maps images (n, c, h, w) in [0, 1] to logits (n, classes)."""
    pixels = channels * height * width
    if kind == "logistic_regression":
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes))
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 256), nn.ReLU(), Dropout(0.2), nn.Linear(256, classes))
    if kind == "cnn":
        # Pooling before the ReLU gives the same result at a quarter of the ReLU's cost.
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            Dropout(0.4),
            nn.Linear(64 * (height // 4) * (width // 4), 128),
            nn.ReLU(),
            Dropout(0.4),
            nn.Linear(128, classes),
        )
    raise ValueError(f"unknown classifier {kind!r}: choose one of {', '.join(CLASSIFIER_KINDS)}")


def logits_in_batches(model: nn.Module, images: torch.Tensor, batch: int = 2000) -> torch.Tensor:
    """Return the logits (n, classes) of images (n, c, h, w), computed without gradients."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(images[start : start + batch]).float() for start in range(0, len(images), batch)])


def mixed_precision(device: torch.device | str) -> torch.autocast:
    """Return an autocast context that uses bfloat16 if the device supports it, and otherwise does nothing."""
    device_type = torch.device(device).type
    if device_type == "cuda":
        return torch.autocast(device_type, torch.bfloat16, enabled=torch.cuda.is_bf16_supported())
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return torch.autocast(device_type, torch.bfloat16, enabled=supported is not None and bool(supported()))


@contextmanager
def between_layers(modules: Iterable[nn.Module], look: Callable[[], object]) -> Iterator[None]:
    """Call `look` before each layer of a network computes, so that minutes of computation can stop within seconds.

    Args:
        modules: the network and all its parts, as `nn.Module.modules` lists them.
        look: must be fast; an exception from it stops the computation.
    """

    def before(*_: Any) -> None:  # a value that a hook returns would replace the layer's input
        look()

    layers = [module for module in modules if next(module.children(), None) is None]
    handles = [layer.register_forward_pre_hook(before) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
