"""Whole trainings set up for a one-run audit: canary records among public ones, and what is seen of each release.

The recipes run as they are. Three places are tapped, where noise has been added and nothing has been made of it yet:
`topagg.noisy_sum`, `warm_start.noisy_means` and `warm_start.noisy_scatter`. Scores are projections of what was
released on what each canary would add, which the auditor computes from everything but the coins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import hadamard
from sklearn.datasets import load_digits

from benchmarks.fetching import fetched_fashion_mnist
from benchmarks.payment_order import Payer, PaymentJournal
from models.closed_form_teachers import KernelTeachers, LinearTeachers
from models.portable.generator import Generator
from models.shards import Shards
from privacy.accounting.events import GaussianEvent
from privacy.mechanisms import partition, topagg
from privacy.mechanisms.noise import SecureNoise, derive_key
from privacy.plans.datalens import VOTES, DataLensConfig, TopAggConfig
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.warm_start import BY_CLASS, MEANS, POOLED, QUANTISATION, warm_start_event
from workers.recipes import coefficients, datalens, warm_start
from workers.recipes import moments as class_moments
from workers.recipes.datalens import PixelStudent, Release
from workers.recipes.interface import Run, TrainingData
from workers.recipes.released_sums import quantised

Array = npt.NDArray[np.float64]
_GREY, _AMPLITUDE = 64, 63


@dataclasses.dataclass(frozen=True)
class Population:
    """Public records that are always there, and canaries of which each is there or not."""

    images: npt.NDArray[np.uint8]  # (n, h, w)
    labels: npt.NDArray[np.int64]
    canary_images: npt.NDArray[np.uint8]  # (m, h, w) patterns around mid-grey, (nearly) orthogonal to one another
    canary_labels: npt.NDArray[np.int64]  # the classes in turn
    classes: int

    @property
    def facts(self) -> PublicFacts:
        """The facts that the owner would declare."""
        records = len(self.images) + len(self.canary_images)
        height, width = self.images.shape[1:]
        return PublicFacts(tuple(map(str, range(self.classes))), height, width, 1, records, "record")

    def data(self, included: npt.NDArray[np.bool_]) -> TrainingData:
        """Return the public records and the canaries that the coins chose."""
        images = np.concatenate([self.images, self.canary_images[included]])
        labels = np.concatenate([self.labels, self.canary_labels[included]])
        return TrainingData(images, labels, self.facts.classes)


def digits_population(canaries: int = 640, records: int = 1797) -> Population:
    """Scikit-learn's digits; up to 64 canaries a class, exactly orthogonal (Hadamard patterns)."""
    digits = load_digits()
    pattern = hadamard(64).reshape(64, 8, 8)[np.arange(canaries) // 10 % 64]
    images, labels = (digits.images[:records] * (255 / 16)).astype(np.uint8), digits.target[:records].astype(np.int64)
    return _population(images, labels, pattern)


def fashion_population(records: int = 20_000, canaries: int = 1000, seed: int = 7) -> Population:
    """Training images of Fashion-MNIST; canaries are random patterns of signs."""
    images, labels = fetched_fashion_mnist("train")[:2]
    pattern = np.random.default_rng(seed).choice([-1, 1], (canaries, 14, 14)).repeat(2, axis=1).repeat(2, axis=2)
    return _population(images[:records], labels[:records], pattern)


def _population(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], pattern: npt.NDArray[np.int64]
) -> Population:
    canary_images = (_GREY + _AMPLITUDE * pattern).astype(np.uint8)
    return Population(images, labels, canary_images, np.arange(len(pattern)) % 10, 10)


@dataclasses.dataclass
class Tap:
    """The releases of a training, in order. The journal notes each at the moment its noise is drawn."""

    journal: PaymentJournal | None = None
    means: Array | None = None  # counts and means, (classes, 1 + f)
    scatters: list[Array] = dataclasses.field(default_factory=list)  # pooled, then one for each class
    votes: list[torch.Tensor] = dataclasses.field(default_factory=list)  # (images, d) integers of each noisy sum
    releases: list[Release] = dataclasses.field(default_factory=list)  # that the student learned from
    # The student's images and labels that kernel teachers saw before each release.
    shown: list[tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=list)
    _announced: list[GaussianEvent] = dataclasses.field(default_factory=list)
    _inside: bool = False

    @contextmanager
    def mechanism(self, *events: GaussianEvent) -> Iterator[None]:
        """Enter a mechanism; its release is made when it draws the first noise, not before."""
        self._announced, self._inside = list(events), True
        try:
            yield
        finally:
            self._inside = False

    def drawing(self) -> None:
        """Note the release that noise is now drawn for."""
        if not self._inside:
            raise RuntimeError("noise is drawn outside the mechanisms that are audited")
        while self._announced:
            event = self._announced.pop()
            if self.journal is not None:
                self.journal.note_release(event)


@contextmanager
def tapped(tap: Tap) -> Iterator[None]:
    """Run production code and keep what its mechanisms return; nothing is changed."""
    noisy_sum, noisy_means, noisy_scatter = topagg.noisy_sum, warm_start.noisy_means, warm_start.noisy_scatter
    draw, descend, update = SecureNoise.discrete_gaussian, PixelStudent.learn, KernelTeachers.update

    def watched_draw(noise: SecureNoise, shape: int | tuple[int, ...], stddev: float) -> npt.NDArray[np.int64]:
        tap.drawing()
        return draw(noise, shape, stddev)

    def watched_sum(votes: torch.Tensor, cfg: Any, noise: Any) -> torch.Tensor:
        with tap.mechanism(cfg.event(len(votes))):
            tap.votes.append(noisy_sum(votes, cfg, noise))
        return tap.votes[-1]

    def watched_means(rows: Array, labels: Any, classes: int, clip: float, stddev: float, noise: Any) -> Any:
        with tap.mechanism(warm_start_event(MEANS, stddev)):
            tap.means = noisy_means(rows, labels, classes, clip, stddev, noise)
        return tap.means

    def watched_scatter(rows: Array, clip: float, stddev: float, noise: Any, blocks: Any) -> Array:
        # Pooled, then the classes, which share one release: a record is in one of them.
        first = len(tap.scatters) < 2
        with tap.mechanism(*[warm_start_event(BY_CLASS if tap.scatters else POOLED, stddev)] * first):
            tap.scatters.append(noisy_scatter(rows, clip, stddev, noise, blocks))
        return tap.scatters[-1]

    def watched_descent(student: PixelStudent, release: Release) -> None:
        tap.releases.append(release)
        descend(student, release)

    def watched_update(teachers: KernelTeachers, real: Any, fake: torch.Tensor, labels: torch.Tensor) -> None:
        tap.shown.append((fake, labels))
        update(teachers, real, fake, labels)

    with ExitStack() as stack:
        for target, name, watched in (
            (topagg, "noisy_sum", watched_sum),
            (warm_start, "noisy_means", watched_means),
            (warm_start, "noisy_scatter", watched_scatter),
            (PixelStudent, "learn", watched_descent),
            (KernelTeachers, "update", watched_update),
            (SecureNoise, "discrete_gaussian", watched_draw),
        ):
            stack.enter_context(mock.patch.object(target, name, watched))
        yield


def train(
    plan: Plan, population: Population, included: npt.NDArray[np.bool_], tap: Tap, budget: Payer, secret: bytes
) -> Any:
    """Run the whole recipe once on the public records and the chosen canaries; return what it publishes."""
    run = Run(plan=plan, facts=population.facts, data=population.data(included), budget=budget, secret=secret)
    recipe = datalens if plan.recipe == "datalens" else class_moments
    with tapped(tap):
        return recipe.train(run)


def decode(projections: Array, gram: Array, noise: float = 1.0) -> Array:
    """Return the best linear estimates of m fair coins from what was released, (m,)."""
    ridge = 4 * noise**2 * np.eye(len(gram))  # a fair coin has variance 1/4
    scores: Array = np.linalg.solve(gram + ridge, projections)
    return scores


def warm_start_scores(tap: Tap, plan: Plan, population: Population, noise: float = 1.0) -> Array:
    """Decode the coins from the three warm start releases, (m,), believing in that share of the claimed noise."""
    config, facts = plan.config_of(MomentsConfig), population.facts
    stddevs = plan.noise_stddev
    basis, size = coefficients.image_basis(config, facts), float(np.sqrt(facts.pixels / 784))
    public = len(population.images)
    images = np.concatenate([population.images, population.canary_images])
    labels = np.concatenate([population.labels, population.canary_labels])
    presence = np.where(np.arange(len(images)) < public, 1.0, 0.5)  # expected
    alike = labels[public:, None] == labels[None, public:]  # (m, m)
    assert tap.means is not None
    counts, means = tap.means[:, 0], tap.means[:, 1:]

    rows = coefficients.MatrixWaves(basis).of(images, 0.25)
    clip = config.mean_clip * size
    adds = np.column_stack([quantised(rows, clip), np.full(len(rows), QUANTISATION)]) / stddevs[MEANS]
    sums = np.column_stack([means * counts[:, None] / clip, counts]) * (QUANTISATION / stddevs[MEANS])
    for label in range(population.classes):
        sums[label] -= presence[labels == label] @ adds[labels == label]
    adds = adds[public:]
    projections = (sums[labels[public:]] * adds).sum(1)
    gram = (adds @ adds.T) * alike

    rows = rows - means[labels]
    clip = config.deviation_clip * size
    part, product = _scatter_projections(tap.scatters[0], rows, presence, clip, stddevs[POOLED])
    projections, gram = projections + part, gram + product

    values, vectors = np.linalg.eigh(tap.scatters[0])
    components = vectors[:, np.argsort(-values, kind="stable")[: config.latent_size(facts)]]
    rows = coefficients.exact_product(rows, components, largest=warm_start._FAR * size)
    clip = config.component_clip * size
    for label in range(population.classes):
        own = labels == label
        canaries = np.flatnonzero(own[public:])
        part, product = _scatter_projections(tap.scatters[1 + label], rows[own], presence[own], clip, stddevs[BY_CLASS])
        projections[canaries] += part
        gram[np.ix_(canaries, canaries)] += product
    return decode(projections, gram, noise)


def _scatter_projections(
    released: Array, rows: Array, presence: Array, clip: float, stddev: float
) -> tuple[Array, Array]:
    """Project a released scatter on each canary's outer product, (m,), and these on one another, (m, m).

    Off the diagonal a number has half the variance and stands for two. So the products of outer products are the
    squares of the rows' products, up to what discreteness adds to the noise.
    """
    q = quantised(rows, clip).astype(np.float64)  # (n, f)
    rest = released * (QUANTISATION / clip) ** 2 - (q * presence[:, None]).T @ q
    canaries = q[presence < 1]  # (m, f)
    projections: Array = np.einsum("mf,mf->m", canaries @ rest, canaries) / stddev**2
    return projections, ((canaries @ canaries.T) / stddev) ** 2


def generator_scores(generator: Generator, population: Population) -> Array:
    """Project the finished generator's class means on each canary, (m,): all that a customer holds."""
    means = generator.mean.double().numpy()  # (classes, pixels)
    canaries = population.canary_images.reshape(len(population.canary_images), -1) / 255
    public = population.images.reshape(len(population.images), -1) / 255
    scores = np.zeros(len(canaries))
    for label in range(population.classes):
        own, others = canaries[population.canary_labels == label], public[population.labels == label]
        expected = (others.sum(0) + own.sum(0) / 2) / (len(others) + len(own) / 2)
        scores[population.canary_labels == label] = (own - expected) @ (means[label] - expected)
    return scores


def pixel_vote_scores(tap: Tap, plan: Plan, population: Population, secret: bytes, noise: float = 1.0) -> Array:
    """Decode the coins from the noisy sums of all images, by how each canary would turn its teacher's votes.

    Returns:
        (m,) a score for each canary.
    """
    config, facts = plan.config_of(DataLensConfig), population.facts
    aggregation = config.topagg(facts, plan.noise_stddev[VOTES])
    everyone = population.data(np.ones(len(population.canary_images), dtype=bool))
    units = partition.record_units(everyone.private_images, everyone.private_labels)
    teacher = partition.shard_of(units, derive_key(secret, "shards"), config.teachers)
    rows = torch.from_numpy(everyone.private_images.reshape(len(teacher), -1))
    labels, public = torch.from_numpy(everyone.private_labels), len(population.images)
    worlds = [
        _teachers(Shards(rows[:n], labels[:n], partition.shard_members(teacher[:n], config.teachers)), config, facts)
        for n in (public, len(teacher))
    ]
    home, label = torch.from_numpy(teacher[public:]), labels[public:]
    projections, gram = np.zeros(len(home)), np.zeros((len(home), len(home)))
    for number, release in enumerate(tap.releases):
        for world in worlds:
            if isinstance(world, KernelTeachers):
                world._shown, world._shown_labels = tap.shown[number]
        absent, present = (_votes(world, release, aggregation) for world in worlds)  # (N, images, d) each
        middle = (absent.sum(0) + present.sum(0)) / 2  # (images, d)
        rest = (release.released_sums - middle) / (noise * aggregation.stddev)
        same = (label[:, None] == release.released_labels)[:, :, None]  # (m, images, 1)
        turn = ((present[home] - absent[home]) * same / (noise * aggregation.stddev)).flatten(1)  # (m, images d)
        projections += (turn @ rest.flatten()).double().numpy()
        gram += (turn @ turn.T).double().numpy()
    return decode(projections, gram)


def _teachers(shards: Shards, config: DataLensConfig, facts: PublicFacts) -> LinearTeachers | KernelTeachers:
    if config.teacher_network == "kernel":
        return KernelTeachers(shards, len(facts.classes), config.teacher_bandwidth * facts.size**0.5)
    return LinearTeachers(shards, len(facts.classes))


def _votes(teachers: LinearTeachers | KernelTeachers, release: Release, cfg: TopAggConfig) -> torch.Tensor:
    shape = len(release.released_inputs), cfg.dimension
    blocks = teachers.image_gradients(release.released_inputs, release.released_labels)
    return torch.cat(
        [topagg.topk_sto_sign_grad(g.reshape(-1, cfg.dimension), cfg, 0).view(-1, *shape) for _, g in blocks]
    )
