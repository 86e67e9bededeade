"""Why DataLens' loop stays at chance in one set of networks and learns in another: Algorithms 1 to 3, rung by rung.

A rung says who generates, who teaches and what of the teachers' gradients reaches the generator: their mean, the sum of
their signs, of the signs of the k largest, the thresholded sum, and that with noise. An iteration is the published one:
m = 15 images, two updates of the teachers (ten before the first), one of the generator on x + gamma g. 1,301 images are
what the paper's accounting affords at epsilon 1, so 86 iterations are its whole training.

Noise is that of 4,000 teachers. Fewer get as much for each of them, so that a vote is as hard to hear: a stand-in that
shows how the loop learns, at no epsilon that is told. So are published teachers, however many: their shards have 15
records each, so that a record that is added moves others. `benchmarks.paper.loop_rows` has the rungs.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from benchmarks.aggregators.loop import LinearTeachers, linear_teachers
from benchmarks.budgets import NoLedger
from benchmarks.competitors.players import Teachers, unit_pixels
from benchmarks.paper.published_networks import LATENT, PublishedGenerator, PublishedTeachers
from benchmarks.paper_algorithm import PixelStudent
from benchmarks.small_data import Folder, channels_first
from models.dcgan import DcganConfig, DcganGenerator
from privacy.accounting.filter import NANO, release_nano
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.aggregation import topagg
from privacy.aggregation.topagg_config import TopAggConfig
from privacy.mechanisms.noise import SecureNoise
from workers.evaluation.utility import train_and_test
from workers.recipes.interface import Means

DELTA, PIXELS, CLASSES = 1e-5, 784, 10
IMAGES, GAMMA, RATE = 15, 1e-3, 1e-3  # m, the published step, and Adam's
FIRST_UPDATES, UPDATES = 10, 2
ALL = 4000  # teachers
RECORDS = 15  # of a published teacher
PUBLISHED, LINEAR, DENSE, DCGAN = "published", "linear", "dense", "DC-GAN"
MEAN, SIGNS, TOP_K, THRESHOLD = "mean gradient", "signs", "top-k signs", "thresholded top-k signs"


@dataclasses.dataclass(frozen=True)
class Rung:
    """One loop.

    Attributes:
        teachers: published (convolutional), dense (`TeacherEnsemble`), or linear (one gradient step from zero on own
            records, as in `benchmarks.aggregators.loop`).
        count: N.
        generator: published, DC-GAN's with GroupNorm, or dense (`PixelStudent`).
        release: what reaches the generator.
        noise: whether there is any.
        k, stddev, beta: the paper's; stddev is of 4,000 teachers.
        iterations: of 15 images each.
        width: features and dense units of a published teacher.
        balanced: whether each published teacher has as many records of every class.
        updates: of the generator on each release.
    """

    teachers: str = LINEAR
    count: int = ALL
    generator: str = PUBLISHED
    release: str = THRESHOLD
    noise: bool = True
    k: int = 200
    stddev: float = 5000.0
    beta: float = 0.7
    iterations: int = 86
    width: tuple[int, int] = (32, 256)
    balanced: bool = True
    updates: int = 1

    @property
    def aggregation(self) -> TopAggConfig:
        """TopAgg's parameters, with as much noise for a teacher as 4,000 have."""
        return TopAggConfig(
            k=self.k,
            c=1e-5,
            stddev=self.stddev * self.count / ALL,
            beta=self.beta,
            teachers=self.count,
            dimension=PIXELS,
            top_k=self.release != SIGNS,
            threshold=self.release == THRESHOLD,
        )

    @property
    def epsilon(self) -> float | None:
        """What the whole training costs at delta 1e-5; None where it is not private."""
        if not self.noise or self.release == MEAN or self.count < ALL or self.teachers == PUBLISHED:
            return None
        price = release_nano(self.aggregation.event(1)) * self.iterations * IMAGES
        return gaussian_epsilon(math.sqrt(price / NANO), DELTA)

    def described(self) -> str:
        """For tables."""
        noise = "noise" if self.noise else "no noise"
        wide = "" if self.width == (32, 256) else f" of {self.width[0]} features and {self.width[1]} units"
        wide += "" if self.balanced else " with records at random"
        more = "" if self.updates == 1 else f", {self.updates} updates on each release"
        who = f"{self.count:,} {self.teachers} teachers{wide}, {self.generator} generator"
        return f"{who}, {self.release}, {noise}{more}"


class Taught(Protocol):
    """Teachers, whatever they are. PRIVATE."""

    def learn(self, images: Tensor, labels: Tensor, updates: int) -> None:
        """Tell own records from public images (m, d) of classes (m,)."""

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        """How each would have public images look more real, (N, m, d)."""


@dataclasses.dataclass(frozen=True, repr=False)
class _Linear:
    private: LinearTeachers

    def learn(self, images: Tensor, labels: Tensor, updates: int) -> None:
        """A step from zero is taken anew for every image."""

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        return torch.where(self.private.private_there[:, labels], self.private.private_means[:, labels] - images, 0.0)


@dataclasses.dataclass(frozen=True, repr=False)
class _Dense:
    private: Teachers

    def learn(self, images: Tensor, labels: Tensor, updates: int) -> None:
        self.private.learn(images, labels, updates)

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        found = [part for _, part in self.private.ensemble.image_gradients(images, labels)]
        return torch.cat(found) * self.private.active[:, None, None]


def _teachers(rung: Rung, folder: Folder, secret: bytes, seed: int) -> Taught:
    rows = torch.from_numpy(folder.images.reshape(len(folder.images), -1)).float() / 255
    if rung.teachers == LINEAR:
        return _Linear(linear_teachers(rows, folder.images, folder.labels, CLASSES, rung.count, secret))
    if rung.teachers == DENSE:
        means = Means(budget=NoLedger(), secret=secret)
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
    coins, config = Means(budget=NoLedger(), secret=secret).generator("vote coins"), rung.aggregation
    for iteration in range(rung.iterations):
        latents = generator.latents(IMAGES)
        labels = (torch.arange(IMAGES) + 5 * iteration) % CLASSES
        with torch.no_grad():
            shown = generator.images(latents, labels)
        teachers.learn(shown, labels, UPDATES if iteration else FIRST_UPDATES)
        labels = torch.randint(CLASSES, (IMAGES,), generator=public)
        with torch.no_grad():
            images = generator.images(latents, labels)
        direction = _released(rung, config, teachers.gradients(images, labels), coins, secret, iteration)
        generator.follow(latents, labels, images + GAMMA * direction, rung.updates)
    return generator


def _released(
    rung: Rung, config: TopAggConfig, gradients: Tensor, coins: torch.Generator, secret: bytes, iteration: int
) -> Tensor:
    """Return what reaches the generator of the teachers' gradients (N, m, d): (m, d)."""
    if rung.release == MEAN:
        return gradients.mean(dim=0)
    votes = topagg.count_votes(gradients, config, coins)
    if rung.noise:
        votes = topagg.noisy_sum(votes, config, SecureNoise.derive(secret, "votes", iteration))
    return topagg.threshold(votes, config)


def judged(draw: Callable[[Tensor], Tensor], folder: Folder, samples: int, seed: int, epochs: int | None) -> float:
    """Return the accuracy on a folder's test images of a CNN that learned samples."""
    labels = torch.arange(samples) % CLASSES
    test, truth = channels_first(folder.test_images), torch.from_numpy(folder.test_labels)
    drawn = draw(labels)
    return train_and_test("cnn", drawn, labels, test, truth, classes=CLASSES, seed=seed, epochs=epochs).accuracy
