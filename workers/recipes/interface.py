"""The contract of a recipe: one complete training loop without database or queue.

A recipe pays through `Budget.charge` before a noisy value exists, and reports through `Progress`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.extractor import Extractor
from models.released import ReleasedGenerator, save_released
from privacy.accounting.events import Event
from privacy.gradients.estimator import Curator
from privacy.mechanisms.noise import SecureNoise, derive_key
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.ranks import from_first, object_from_first, pay_once, privatise_once, rank, ranks

T = TypeVar("T")


class Cancelled(Exception):
    """Raised by `Progress` when the training must stop now. A recipe lets it propagate."""


class NothingUseful(Exception):
    """The budget ended before the recipe had a useful result. A recipe may let BudgetExceeded propagate instead."""


class CheckpointDamaged(Exception):
    """A checkpoint differs from the data that was written. No part of it is used."""


class Budget(Protocol):
    """The only way to pay for a release of private data."""

    def charge(self, event: Event, stage: str) -> None:
        """Pay for `event.count` releases of a stage; durable when this returns.

        Raises:
            BudgetExceeded: the hold does not cover the event, or the training must end early. Nothing was charged and
                nothing may be released. The recipe stops its private part and finishes with the releases made so far.
        """


class Progress(Protocol):
    """Reports a recipe's progress, in public numbers only."""

    def __call__(self, *, stage: str, step: int, steps: int) -> bool | None:
        """Report that `step` of `steps` of `stage` are done; return True if the training should end early.

        Raises:
            Cancelled: the training must stop at once.
        """


@dataclass(frozen=True, repr=False)
class TrainingData:
    """The private images of one dataset. The `repr` shows no image, so that logs and tracebacks cannot.

    Args:
        private_images: `(n, h, w)` or `(n, h, w, c)` uint8, usually a read-only memory map.
        private_labels: `(n,)` int64, each below `len(classes)`.
        classes: the declared (public) class names, in label order.
        private_subjects: `(n,)` int64, a random number for each record's subject; None if the unit is the record.
        public_extractor: the extractor of the plan's option `extractor`, or None.
        public_anchors: uint8 images of any size from the plan's public dataset, or None.
        public_anchor_labels: labels of the anchors, `(n,)` int64, each below `len(public_anchor_classes)`, or None.
        public_anchor_classes: class names of the anchors, in label order.
    """

    private_images: npt.NDArray[np.uint8] = field(repr=False)
    private_labels: npt.NDArray[np.int64] = field(repr=False)
    classes: tuple[str, ...]
    private_subjects: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    public_extractor: Extractor | None = field(default=None, repr=False)
    public_anchors: npt.NDArray[np.uint8] | None = field(default=None, repr=False)
    public_anchor_labels: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    public_anchor_classes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"TrainingData(<private>, classes={len(self.classes)})"


class CheckpointFolder(Protocol):
    """Storage of one job's checkpoint. Its private values become unreadable once the dataset is deleted."""

    def replace(self, write: Callable[[BinaryIO], None]) -> None:
        """Replace the checkpoint atomically."""

    def open(self) -> BinaryIO | None:
        """Open the checkpoint for reading; return None if there is none yet."""


@runtime_checkable
class SavesItself(Protocol):
    """A release other than a generator: a histogram, a classifier."""

    def save(self, directory: Path) -> None:
        """Write the release into an existing, empty directory."""


Trained = ReleasedGenerator | SavesItself  # the result of a recipe; all of it may be published


def save_trained(trained: Trained, directory: Path) -> None:
    """Write the result of a training into an existing, empty directory."""
    if isinstance(trained, SavesItself):
        trained.save(directory)
    else:
        save_released(trained, directory)


class NullCheckpoints:
    """A checkpoint folder that stores nothing."""

    def replace(self, write: Callable[[BinaryIO], None]) -> None: ...

    def open(self) -> BinaryIO | None:
        return None


@dataclass(frozen=True, kw_only=True, repr=False)
class TrustedCurator(Curator):
    """The interface between a mechanism and its training: pay, draw noise, privatise and report.

    The processes of one training (`workers.recipes.ranks`) do each of these once, together. Two attempts never share
    noise. The `repr` is empty.
    """

    budget: Budget
    secret: bytes
    attempt: int = 1
    progress: Progress = lambda **_: None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def pay(self, event: Event, stage: str) -> None:
        """Charge for releases that do not exist yet, once for all ranks. BudgetExceeded is raised on every rank."""
        pay_once(lambda: self.budget.charge(event, stage))

    def tell(self, stage: str, step: int, steps: int) -> bool:
        """Report progress; return, identically on every rank, whether the training must end early."""
        ending = bool(self.progress(stage=stage, step=step, steps=steps))
        return ending if ranks() == 1 else bool(self.agree(torch.tensor(ending)))

    def privatise(self, private_sum: Tensor, add_noise: Callable[[Tensor], Tensor]) -> Tensor:
        """Privatise the sum of all ranks' shares once; see `workers.recipes.ranks.privatise_once`."""
        return privatise_once(private_sum, add_noise)

    def agree(self, public: Tensor) -> Tensor:
        """Return the first rank's tensor on every rank, because public values may differ between ranks by rounding."""
        return from_first(public)

    def on_first(self, work: Callable[[], T]) -> T:
        """Run `work` on the first rank alone, and return its result on every rank."""
        return object_from_first(work() if rank() == 0 else None)

    def noise(self, purpose: str, *labels: str | int) -> SecureNoise:
        """Return a secret source of noise or coins, used only for this purpose, attempt and labels."""
        return SecureNoise.derive(self.secret, purpose, self.attempt, *labels)

    def generator(self, purpose: str, *labels: str | int) -> torch.Generator:
        """Return a secret torch generator for teachers' weights and coins. Never draw paid noise from it."""
        seed = int.from_bytes(derive_key(self.secret, purpose, self.attempt, *labels)[:7], "big")
        return torch.Generator().manual_seed(seed)


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(TrustedCurator):
    """The inputs of a recipe in one attempt at a training. `data` is PRIVATE.

    Training resumes from a checkpoint, and repeated steps are paid again. If the budget refuses every charge, a recipe
    returns the result that the checkpoint allows.
    """

    plan: Plan
    facts: PublicFacts
    data: TrainingData
    checkpoints: CheckpointFolder = field(default_factory=NullCheckpoints)


Trainer = Callable[[Run], Trained]  # `train` of every recipe in `workers.recipes.registry`


@dataclass(frozen=True)
class Piece:
    """A part of a job, for estimating the time left: its name in reports, its number of steps, and its cost.

    A recipe's `work(plan, facts)` lists its pieces from public numbers. Costs are approximate seconds on two cores for
    grey 28 x 28 images; only ratios matter.
    """

    stage: str
    steps: int
    work: float


def save_checkpoint(folder: CheckpointFolder, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint of a job atomically. If there are several ranks, only rank 0 writes.

    `state` must be loadable by `torch.load` with `weights_only=True`. It may contain private values.
    """
    if rank() == 0:
        folder.replace(lambda file: torch.save(dict(state), file))


def load_checkpoint(folder: CheckpointFolder, *, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the state in a job's checkpoint, or an empty dict. Every rank must call this; only rank 0 reads."""
    file = folder.open() if rank() == 0 else None
    if ranks() > 1:
        content = None
        if file is not None:
            with file:
                content = file.read()
        content = object_from_first(content)
        file = None if content is None else io.BytesIO(content)
    if file is None:
        return {}
    with file:
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    return state
