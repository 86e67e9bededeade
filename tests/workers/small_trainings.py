"""What the tests of the DP-SGD family's recipes share: digits, a purse, a checkpoint in memory, trainings and jobs."""

import dataclasses
import functools
import io
import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sklearn.datasets import load_digits

from models.portable.generator import Generator, GeneratorConfig
from models.released import ReleasedGenerator
from models.shards import Shards
from obscura.wire.words import JobState, SampleFormat
from privacy.accounting.events import PoissonGaussianEvent
from privacy.accounting.filter import open_filter
from privacy.errors import BudgetExceeded
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan
from service import jobs
from service.audit.signing import SigningKey
from service.db.job_tables import Release, Sample
from service.storage.interface import digest_directory
from workers.evaluation.utility import TRAINING
from workers.recipes import private_steps
from workers.recipes.datalens import Release as VoteRelease
from workers.recipes.interface import Cancelled, Run, TrainingData
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import ExitStatus
from workers.train.drawing import SampleRequest, draw
from workers.train.packing import SampleFile, pack

ACCOUNT = open_filter(8.0, 1e-5)
SECRET = bytes(range(32))
DIGITS = tuple(str(digit) for digit in range(10))
FACTS = PublicFacts(DIGITS, 8, 8, 1, 1500, "record")
TINY_DATALENS: dict[str, Any] = {  # 12 iterations of 5 images, paid by fives: 25, 25, 10
    "teachers": 100,
    "images": 60,
    "images_per_iteration": 5,
    "top_k": 4,
}
# Moments of three classes of small images, with clusters, and the shares of the budget of their releases.
THREE = PublicFacts(("a", "b", "c"), 8, 8, 1, 6000, "record")
CLUSTERED: dict[str, Any] = {
    **{"mean_fraction": 0.2, "pooled_covariance_fraction": 0.3, "class_covariance_fraction": 0.3},
    **{"cluster_fraction": 0.2, "clusters": 2},
}
# Trainings of every recipe that take a second.
STEPWISE: dict[str, Any] = {"expected_batch": 30, "anchors": 30, "basis_size": 20, "rank": 2}
WARM_UP: dict[str, Any] = {"central_batch": 300, "central_steps": 3, "evaluation_samples": 100}
GAN: dict[str, Any] = {"latent": 4, "generator_batch": 64, "generator_learning_rate": 1e-3, "evaluation_samples": 500}
SMALL: dict[str, dict[str, Any]] = {
    "dp_classifier": {**STEPWISE, "architecture": "cnn", "epochs": 0.2, "learning_rate": 1.0, "clip": 0.5},
    "dp_diffusion": {
        **{**STEPWISE, "features": 4, "blocks": 1, "epochs": 0.12, "multiplicity": 2, "learning_rate": 1e-3},
        **{**WARM_UP, "sampling_steps": 3, "ema": 0.9, "anchors": 20, "basis_size": 60},
    },
    "dpgan": {**STEPWISE, **GAN, "features": 4, "expected_batch": 150, "epochs": 1.0, "learning_rate": 1e-3},
    "moments": {"components": 6},
    "datalens": {"teachers": 40, "images": 20, "top_k": 3},
    "class_histogram": {},
    "select_public": {"public_dataset_id": "ds_public", "choices": 4},
}


class Purse:
    """A budget that writes down what was paid for; it refuses after so many releases or charges, and closed stages."""

    def __init__(self, releases: int = 10**6, *, charges: int = 10**6, closed: tuple[str, ...] = ()) -> None:
        self.left, self.charges, self.closed = releases, charges, closed
        self.paid: list[tuple[str, Any]] = []

    def charge(self, event: Any, stage: str) -> None:
        if stage in self.closed or self.left < event.count or len(self.paid) >= self.charges:
            raise BudgetExceeded(event.count, self.left)
        self.left -= event.count
        self.paid.append((stage, event))

    @property
    def counts(self) -> list[tuple[str, int]]:
        return [(stage, event.count) for stage, event in self.paid]

    @property
    def events(self) -> list[Any]:
        return [event for _, event in self.paid]

    def releases(self, stage: str) -> int:
        return sum(event.count for paid, event in self.paid if paid == stage)


class Memory:
    def __init__(self) -> None:
        self.kept: bytes | None = None
        self.writes = self.reads = 0

    def replace(self, write: Any) -> None:
        file = io.BytesIO()
        write(file)
        self.kept, self.writes = file.getvalue(), self.writes + 1

    def open(self) -> BinaryIO | None:
        self.reads += 1
        return None if self.kept is None else io.BytesIO(self.kept)


@functools.cache
def all_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    found = load_digits()
    return (found.images * (255 / 16)).astype(np.uint8), found.target.astype(np.int64)


def digits(last: int | None = 1500, first: int = 0) -> TrainingData:
    own = slice(first, last)
    images, labels = (array[own].copy() for array in all_digits())
    return TrainingData(images, labels, DIGITS, public_anchors=images[:40])


TWO = PublicFacts(("zero", "one"), 8, 8, 1, 300, "record")


def zeros_and_ones() -> TrainingData:
    found = digits(1797)
    chosen = np.flatnonzero(found.private_labels < 2)[:300]
    return TrainingData(found.private_images[chosen], found.private_labels[chosen], TWO.classes)


def noise_shards(teachers: int) -> Shards:
    """Return 120 records of nine numbers in three classes; the last two teachers have none."""
    rng = np.random.default_rng(0)
    owner = rng.integers(0, teachers - 2, 120)
    records = torch.randn(120, 9, generator=torch.Generator().manual_seed(0)) + 3.0
    members = [np.flatnonzero(owner == teacher) for teacher in range(teachers)]
    return Shards(records, torch.from_numpy(rng.integers(0, 3, 120)), members)


class Pupil:
    """Proposes nine numbers from a public stream, moves by a step with what it is taught, and keeps that."""

    def __init__(self, step: float = 0.0) -> None:
        self.stream, self.mean, self.step = torch.Generator().manual_seed(1), torch.zeros(9), step
        self.lessons = list[VoteRelease]()

    def propose(self, labels: torch.Tensor) -> torch.Tensor:
        return self.mean + torch.randn(len(labels), 9, generator=self.stream) * 0.1

    def learn(self, release: VoteRelease) -> None:
        self.lessons.append(release)
        self.mean = self.mean + self.step * release.released_direction.mean(dim=0)


def plan_of(recipe: str, options: dict[str, Any], facts: PublicFacts = FACTS, epsilon: float = 8.0) -> Plan:
    return build_plan(recipe, options, ACCOUNT, ACCOUNT.nano_of(epsilon), facts)


def small_plan(recipe: str, facts: PublicFacts = FACTS, **options: Any) -> Plan:
    return plan_of(recipe, {**SMALL[recipe], **options}, facts)


def nearly_without_noise(plan: Plan) -> Plan:
    """The plan with noise so small that only learning is tested. No filter would sell it at this price."""
    return dataclasses.replace(
        plan,
        stages=tuple(
            dataclasses.replace(stage, event=dataclasses.replace(stage.event, noise_multiplier=0.05))
            if isinstance(stage.event, PoissonGaussianEvent)
            else stage
            for stage in plan.stages
        ),
    )


def train(plan: Plan, data: TrainingData, facts: PublicFacts = FACTS, **changes: Any) -> Any:
    given: dict[str, Any] = {"budget": Purse(), "secret": SECRET, **changes}
    return TRAINERS[plan.recipe](Run(plan=plan, facts=facts, data=data, **given))


def weights(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in network.state_dict().values()])


def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainings begin without a trial of the machine's arithmetic, which costs as much as several steps."""
    monkeypatch.setattr(private_steps, "places_alike", lambda *_: True)


def classifiers_see(monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    for kind, training in TRAINING.items():
        monkeypatch.setitem(TRAINING, kind, dataclasses.replace(training, images_seen=images))


def random_generator(channels: int = 1, height: int = 6, width: int = 5) -> Generator:
    made = Generator(GeneratorConfig(3, channels, height, width, components=4))
    stream = torch.Generator().manual_seed(1)
    made.mean.copy_(torch.rand(made.mean.shape, generator=stream))
    made.factor.copy_(torch.randn(made.factor.shape, generator=stream) * 0.1)
    return made


KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))
PRIVACY_CARD = {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}


def write_drawing(
    path: Path,
    generator: ReleasedGenerator,
    sample_format: str,
    *,
    title: str = "A | title",
    card: dict[str, Any] = PRIVACY_CARD,
    **request: Any,
) -> Path:
    file = SampleFile(SampleFormat(sample_format), title, card, "rel_small", KEY.sign)
    asked = SampleRequest(**{"seed": 5, **request})
    pack(path, draw(generator, asked), asked, file)
    return path


def stop_at(when: int, at_stage: str) -> Any:
    def progress(*, stage: str, step: int, steps: int) -> None:
        if (stage, step) == (at_stage, when):
            raise Cancelled

    return progress


def share_nearest_to_own_class(generator: ReleasedGenerator, classes: int = 10, count: int = 200) -> float:
    found = load_digits()
    means = np.stack([found.images[found.target == label].mean(axis=0) for label in range(classes)]) / 16
    labels = torch.arange(count) % classes
    images = generator.sample(labels, torch.Generator().manual_seed(1)).flatten(1)
    nearest = torch.cdist(images, torch.from_numpy(means).float().flatten(1)).argmin(dim=1)
    return float((nearest == labels).float().mean())


class Constant:
    """Adds a constant in place of noise, so that the integers below it can be read; counts the numbers drawn."""

    def __init__(self, value: int = 0) -> None:
        self.value, self.drawn = value, list[tuple[int, float]]()

    def discrete_gaussian(self, shape: int | tuple[int, ...], stddev: float) -> npt.NDArray[np.int64]:
        self.drawn.append((math.prod(np.atleast_1d(shape).tolist()), stddev))
        return np.full(shape, self.value, dtype=np.int64)


def secret(*labels: str | int) -> SecureNoise:
    return SecureNoise.derive(SECRET, *labels)


def work(workshop: Any, job_id: str, trainers: Any = TRAINERS) -> None:
    assert workshop.work(job_id, trainers) == ExitStatus.ENDED


def published_by(workshop: Any, job_id: str, trainers: Any = TRAINERS) -> Release:
    """Run a training and return the release that it became, with its digest; the account shows what was charged."""
    work(workshop, job_id, trainers)
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    release: Release = workshop.release_of(job_id)
    assert digest_directory(workshop.settings.data_dir / release.artifact_dir) == release.artifact_sha256
    return release


def evaluated(workshop: Any, release: Release) -> dict[str, Any]:
    work(workshop, workshop.evaluation(release.id).job_id)
    return workshop.evaluation(release.id).results


def drawn_twice(workshop: Any, release: Release) -> npt.NDArray[np.uint8]:
    """Draw 30 images (30, 8, 8) from a release in two jobs of one seed, whose files are the same."""
    drawings = [workshop.sample(release.id, count=30, seed=11) for _ in range(2)]
    for job_id in drawings:
        work(workshop, job_id)
    first, second = (workshop.do(jobs.made_by, Sample, job_id) for job_id in drawings)
    assert first.sha256 == second.sha256
    with np.load(workshop.settings.data_dir / first.path, allow_pickle=False) as arrays:
        images: npt.NDArray[np.uint8] = arrays["images"]
    assert images.shape == (30, 8, 8)
    return images
