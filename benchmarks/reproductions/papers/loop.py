"""Why DataLens' loop stays at chance in one set of networks and learns in another: Algorithms 1 to 3, rung by rung.

A rung says who generates, who teaches and what of the teachers' gradients reaches the generator: their mean, the sum of
their signs, of the signs of the k largest, the thresholded sum, and that with noise. An iteration is the published one:
m = 15 images, two updates of the teachers (ten before the first), one of the generator on x + gamma g. 1,301 images are
what the paper's accounting affords at epsilon 1, so 86 iterations are its whole training.

Noise is that of 4,000 teachers. Fewer get as much for each of them, so that a vote is as hard to hear: a stand-in that
shows how the loop learns, at no epsilon that is told. So are published teachers, however many: their shards have 15
records each, so that a record that is added moves others. `reproductions.papers.loop_rows` has the rungs.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from benchmarks.budgets import NoLedger
from benchmarks.reproductions.aggregators.loop import LinearTeachers, linear_teachers
from benchmarks.reproductions.competitors.players import Teachers, unit_pixels
from benchmarks.reproductions.papers.dense_networks import PixelStudent
from benchmarks.reproductions.papers.published_networks import LATENT, PublishedGenerator, PublishedTeachers
from benchmarks.reproductions.papers.rungs import (
    CLASSES,
    DCGAN,
    DENSE,
    GAMMA,
    IMAGES,
    LINEAR,
    PUBLISHED,
    Rung,
    released,
)
from benchmarks.small_data import Folder, channels_first
from models.portable.dcgan import DcganConfig, DcganGenerator
from workers.evaluation.utility import train_and_test
from workers.recipes.interface import TrustedCurator

FIRST_UPDATES, UPDATES = 10, 2
RECORDS = 15  # of a published teacher
RATE = 1e-3  # of Adam


class Taught(Protocol):
    """Teachers, whatever they are. PRIVATE."""

    def learn(self, images: Tensor, labels: Tensor, updates: int) -> None:
        """Tell own records from public images (m, d) of classes (m,)."""

    def gradients(self, images: Tensor, labels: Tensor, asked: slice) -> Tensor:
        """How each that is asked would have public images look more real, (N, m, d)."""


@dataclasses.dataclass(frozen=True, repr=False)
class _Linear:
    private: LinearTeachers

    def learn(self, images: Tensor, labels: Tensor, updates: int) -> None:
        """A step from zero is taken anew for every image."""

    def gradients(self, images: Tensor, labels: Tensor, asked: slice) -> Tensor:
        there, means = self.private.private_there[asked], self.private.private_means[asked]
        return torch.where(there[:, labels], means[:, labels] - images, 0.0)


@dataclasses.dataclass(frozen=True, repr=False)
class _Dense:
    private: Teachers

    def learn(self, images: Tensor, labels: Tensor, updates: int) -> None:
        self.private.learn(images, labels, updates)

    def gradients(self, images: Tensor, labels: Tensor, asked: slice) -> Tensor:
        found = [part for _, part in self.private.ensemble.image_gradients(images, labels)]
        return (torch.cat(found) * self.private.active[:, None, None])[asked]


def _teachers(rung: Rung, folder: Folder, secret: bytes, seed: int) -> Taught:
    rows = torch.from_numpy(folder.images.reshape(len(folder.images), -1)).float() / 255
    if rung.teachers == LINEAR:
        return _Linear(linear_teachers(rows, folder.images, folder.labels, CLASSES, rung.count, secret))
    if rung.teachers == DENSE:
        means = TrustedCurator(budget=NoLedger(), secret=secret)
        return _Dense(Teachers(folder.images, folder.labels, CLASSES, rung.count, 32, means))
    own = _dealt(torch.from_numpy(folder.labels), rung.count, rung.balanced, seed)
    return PublishedTeachers(rows[own], torch.from_numpy(folder.labels)[own], seed, *rung.width)


def _dealt(labels: Tensor, count: int, balanced: bool, seed: int) -> Tensor:
    """Return (count, RECORDS) places of records; where balanced, the classes in turn, as the published code deals."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    wanted = count * RECORDS
    if balanced:
        each = [shuffled[labels[shuffled] == label][: -(-wanted // CLASSES)] for label in range(CLASSES)]
        shuffled = torch.stack(each, dim=1).flatten()
    return shuffled[:wanted].view(count, RECORDS)


class LoopGenerator:
    """A generator of flat images in [0, 1], its optimiser and its latents: public."""

    def __init__(self, kind: str, seed: int) -> None:
        self._kind, self._stream = kind, torch.Generator().manual_seed(seed)
        self._latent = LATENT if kind == PUBLISHED else 64
        self.network = _network(kind, seed, self._latent)
        self._optimiser = torch.optim.Adam(self.network.parameters(), lr=RATE, betas=(0.5, 0.999))

    def latents(self, count: int) -> Tensor:
        if self._kind == DCGAN:
            return torch.randn(count, self._latent, generator=self._stream)
        return torch.rand(count, self._latent, generator=self._stream) * 2 - 1

    def images(self, latents: Tensor, labels: Tensor) -> Tensor:
        if self._kind == DENSE:
            known = torch.nn.functional.one_hot(labels, CLASSES).to(latents)
            drawn: Tensor = self.network(torch.cat([latents, known], dim=1))
            return drawn
        drawn = self.network(latents, labels)
        return unit_pixels(drawn) if self._kind == DCGAN else drawn

    def follow(self, latents: Tensor, labels: Tensor, target: Tensor, updates: int) -> None:
        """Descend the squared distance to x + gamma g so many times."""
        for _ in range(updates):
            loss = (self.images(latents, labels) - target).square().sum()
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()

    @torch.no_grad()
    def sample(self, labels: Tensor) -> Tensor:
        """(n,) classes -> (n, 1, 28, 28) uint8; a batch's images depend on one another where there is BatchNorm."""
        drawn = torch.cat([self.images(self.latents(len(part)), part) for part in labels.split(500)])
        return (drawn * 255).round().byte().view(-1, 1, 28, 28)


def _network(kind: str, seed: int, latent: int) -> torch.nn.Module:
    if kind == PUBLISHED:
        return PublishedGenerator(seed)
    if kind == DCGAN:
        return DcganGenerator(DcganConfig(CLASSES, 1, 28, 28, latent, 16), seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PixelStudent(CLASSES).network


def train(rung: Rung, folder: Folder, seed: int) -> LoopGenerator:
    """Run a rung's loop with a fresh secret and return its generator."""
    secret, public = secrets.token_bytes(32), torch.Generator().manual_seed(seed)
    teachers, generator = _teachers(rung, folder, secret, seed), LoopGenerator(rung.generator, seed)
    coins = TrustedCurator(budget=NoLedger(), secret=secret).generator("vote coins")
    for iteration in range(rung.iterations):
        latents = generator.latents(IMAGES)
        labels = (torch.arange(IMAGES) + 5 * iteration) % CLASSES
        with torch.no_grad():
            shown = generator.images(latents, labels)
        teachers.learn(shown, labels, UPDATES if iteration else FIRST_UPDATES)
        labels = torch.randint(CLASSES, (IMAGES,), generator=public)
        with torch.no_grad():
            images = generator.images(latents, labels)
        direction = released(rung, teachers.gradients(images, labels, rung.asked(iteration)), coins, secret, iteration)
        generator.follow(latents, labels, images + GAMMA * direction, rung.updates)
    return generator


def judged(draw: Callable[[Tensor], Tensor], folder: Folder, samples: int, seed: int, epochs: int | None) -> float:
    """Return the accuracy on a folder's test images of a CNN that learned samples."""
    labels = torch.arange(samples) % CLASSES
    test, truth = channels_first(folder.test_images), torch.from_numpy(folder.test_labels)
    drawn = draw(labels)
    return train_and_test("cnn", drawn, labels, test, truth, classes=CLASSES, seed=seed, epochs=epochs).accuracy
