"""Usefulness of synthetic images: train a classifier on them and test it on public images.

The protocol is fixed in advance: train on a fixed number of images (at most 20 epochs) under a one-cycle schedule, and
keep the weights of the last step. Nothing is selected on the test set, which is used once, at the end.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Self

import torch
from torch import nn

from models.classifiers import (
    ClassifierKind,
    Dropout,
    between_layers,
    build_classifier,
    logits_in_batches,
    mixed_precision,
)


@dataclass(frozen=True)
class ClassifierTraining:
    """Training parameters of one kind of classifier: total images seen, peak learning rate, weight decay."""

    images_seen: int
    learning_rate: float
    weight_decay: float
    batch: int = 250

    def steps(self, n: int, epochs: int | None = None) -> int:
        """Return the number of training steps on n synthetic images."""
        each = max(1, n // min(self.batch, n))
        steps = each * (EPOCHS_MAX if epochs is None else epochs)
        return steps if epochs is not None else min(steps, self.images_seen // min(self.batch, n))


SIDE_MAX = 64  # pixels per side; larger images are reduced to this for classifiers
UNEVEN_FROM = 1.5  # ratio of class sizes in the test set; above it, accuracy mostly reflects the large classes
_AVERAGED = 64  # images at a time: bounds memory
_TOGETHER, _PIXELS_TOGETHER = 2000, 2**22  # images, and pixels in all, per forward pass
_SEEDING = Lock()  # torch's random stream is shared by all threads
EPOCHS_MAX = 20  # epochs, at most, on a small synthetic set

TRAINING: dict[ClassifierKind, ClassifierTraining] = {
    "logistic_regression": ClassifierTraining(300_000, learning_rate=2e-3, weight_decay=1e-4),
    "mlp": ClassifierTraining(300_000, learning_rate=2e-3, weight_decay=1e-4),
    "cnn": ClassifierTraining(360_000, learning_rate=3e-3, weight_decay=1e-3),
}


@dataclass(frozen=True)
class Utility:
    """Accuracy in [0, 1] on the public test images and the confusion counts [true class][predicted class]."""

    accuracy: float
    confusion: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, labels: torch.Tensor, predicted: torch.Tensor, classes: int) -> Self:
        """Compute accuracy and confusion counts from true and predicted labels, (n,) each."""
        places = labels.long() * classes + predicted.long()
        confusion = torch.bincount(places, minlength=classes**2).reshape(classes, classes)
        accuracy = float(confusion.diagonal().sum()) / int(confusion.sum())
        return cls(accuracy, tuple(tuple(int(v) for v in row) for row in confusion))

    @property
    def balanced_accuracy(self) -> float:
        """Mean of `accuracy_by_class` over the classes that have images."""
        return statistics.mean(share for share in accuracy_by_class(self.confusion) if share is not None)


def accuracy_by_class(confusion: Sequence[Sequence[int]]) -> list[float | None]:
    """Return the share of correctly classified images of each class; None for a class without images.

    `confusion` contains counts (classes, classes), one row per true class.
    """
    return [row[index] / sum(row) if sum(row) else None for index, row in enumerate(confusion)]


def are_uneven(confusion: Sequence[Sequence[int]]) -> bool:
    """Return whether the largest class has over UNEVEN_FROM times as many images as the smallest non-empty class."""
    counts = [sum(row) for row in confusion if sum(row)]
    return max(counts) > UNEVEN_FROM * min(counts)


def seen_size(height: int, width: int) -> tuple[int, int]:
    """Return the height and width of images as classifiers see them: at most SIDE_MAX, with the aspect ratio kept."""
    shrunk = min(1.0, SIDE_MAX / max(height, width))
    return max(1, round(height * shrunk)), max(1, round(width * shrunk))


def as_seen(images: torch.Tensor) -> torch.Tensor:
    """Return images (n, c, h, w), uint8 or float, as classifiers see them: large images reduced by area averaging.

    Training a classifier on all 256 x 256 pixels would take hours.
    """
    size = seen_size(images.shape[2], images.shape[3])
    if size == (images.shape[2], images.shape[3]):
        return images
    seen = images.new_empty(*images.shape[:2], *size)
    for start in range(0, len(images), _AVERAGED):
        block = images[start : start + _AVERAGED]
        averaged = nn.functional.adaptive_avg_pool2d(block.float(), size)
        seen[start : start + _AVERAGED] = averaged.round() if images.dtype == torch.uint8 else averaged
    return seen


def train_and_test(
    kind: ClassifierKind,
    train_images: torch.Tensor,
    train_labels: torch.Tensor,
    test_images: torch.Tensor,
    test_labels: torch.Tensor,
    *,
    classes: int,
    seed: int,
    device: torch.device | str = "cpu",
    epochs: int | None = None,
    look: Callable[[int, int], None] = lambda _done, _steps: None,
) -> Utility:
    """Train a new classifier on synthetic images and test it once. Images are reduced by `as_seen`.

    Args:
        train_images: synthetic, (n, c, h, w), uint8 in 0..255 or float in [0, 1]. `test_images` are public and have the
            same form.
        train_labels: (n,) integers in 0..classes-1.
        seed: public; determines initial weights, order of batches and dropout.
        epochs: passes over the synthetic images; overrides the protocol's number of images (for tests).
        look: called before every layer, in training and test, with the number of finished steps and the total; an
            exception from it stops the computation.
    """
    if len(train_images) == 0 or len(test_images) == 0:
        raise ValueError("a classifier needs at least one training image and one test image")
    train_images, test_images = as_seen(train_images), as_seen(test_images)
    _, channels, height, width = train_images.shape
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_classifier(kind, channels=channels, height=height, width=width, classes=classes)
    on_processor, stream = torch.device(device).type == "cpu", torch.Generator().manual_seed(seed)
    with nullcontext() if on_processor else torch.random.fork_rng():
        if not on_processor:
            torch.manual_seed(seed)
        training = TRAINING[kind]
        model = fit(model, training, train_images, train_labels, stream=stream, device=device, epochs=epochs, look=look)
        steps = training.steps(len(train_images), epochs)
        with between_layers(model.modules(), lambda: look(steps, steps)):
            parts = (_unit_interval(part.to(device)) for part in torch.split(test_images, _together(test_images)))
            predicted = torch.cat([logits_in_batches(model, part).argmax(dim=1).cpu() for part in parts])
    return Utility.of(test_labels.cpu(), predicted, classes)


def fit(
    model: nn.Module,
    training: ClassifierTraining,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    stream: torch.Generator,
    device: torch.device | str = "cpu",
    epochs: int | None = None,
    look: Callable[[int, int], None] = lambda _done, _steps: None,
) -> nn.Module:
    """Train any classifier like `train_and_test`; return it in training mode, on its device.

    `stream` determines the order of batches and, on a CPU, dropout, so that several classifiers can train in parallel.
    """
    model = model.to(device).to(memory_format=torch.channels_last)
    n = len(images)
    batch = min(training.batch, n)
    steps_per_epoch = n // batch
    steps = training.steps(n, epochs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, training.learning_rate, total_steps=max(2, steps))
    model.train()
    if torch.device(device).type == "cpu":
        for layer in model.modules():
            if isinstance(layer, Dropout):
                layer.stream = stream
    order, done = torch.empty(0), 0
    with between_layers(model.modules(), lambda: look(done, steps)):
        for step in range(steps):
            if step % steps_per_epoch == 0:
                order = torch.randperm(n, generator=stream)
            position = (step % steps_per_epoch) * batch
            index = order[position : position + batch]
            optimizer.zero_grad(set_to_none=True)
            for part in torch.split(index, _together(images)):
                seen = _unit_interval(images[part].to(device)).contiguous(memory_format=torch.channels_last)
                with mixed_precision(device):
                    logits = model(seen)
                loss = nn.functional.cross_entropy(logits.float(), labels[part].to(device)) * (len(part) / batch)
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            done = step + 1
    return model


def _together(images: torch.Tensor) -> int:
    """Return how many images (n, c, h, w) to process in one pass, so that memory is bounded."""
    return max(1, min(_TOGETHER, _PIXELS_TOGETHER // (images.shape[2] * images.shape[3])))


def _unit_interval(images: torch.Tensor) -> torch.Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images
