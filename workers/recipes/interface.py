"""What a recipe is given and what it must respect: a budget, a way to report, private data and a checkpoint directory.

A recipe is one complete training loop. It knows neither the database nor the queue: whatever it spends goes through
`Budget.charge` *before* the noisy value exists, and whatever it says goes through `Progress`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from models.released import ReleasedGenerator, save_released
from privacy.mechanisms.noise import SecureNoise, derive_key
from workers.recipes.ranks import from_first, least_of_all, object_from_first, pay_once, privatise_once, rank, ranks

if TYPE_CHECKING:
    import numpy.typing as npt

    from models.extractor import Extractor
    from privacy.accounting.events import Event
    from privacy.plans.plan import Plan, PublicFacts

T = TypeVar("T")


class Cancelled(Exception):
    """Raised by `Progress` when the training must stop now. A recipe lets it pass through."""


class NothingUseful(Exception):
    """Raised by a recipe whose budget ended before there was anything worth publishing."""


class CheckpointDamaged(Exception):
    """A checkpoint is not what was written. Nothing of it is used."""


class Budget(Protocol):
    """The only way to pay for a release of private data."""

    def charge(self, event: Event, stage: str) -> None:
        """Pay for `event.count` releases; the payment is durable when this returns.

        Args:
            event: what is about to be released, with its sensitivity and noise.
            stage: the name of the plan's stage that this belongs to.

        Raises:
            BudgetExceeded: the hold does not cover the event, or the training is to end early. Nothing was charged and
                nothing may be released: the recipe ends its private part here and finishes with what it has.
        """


class Progress(Protocol):
    """How a recipe says where it is. Only public numbers fit through."""

    def __call__(self, *, stage: str, step: int, steps: int) -> bool | None:
        """Report that `step` of `steps` of `stage` are done.

        Returns:
            True where the training is to end early: its budget refuses, and steps that are paid for may be left out.

        Raises:
            Cancelled: the training was asked to stop at once.
        """


@dataclass(frozen=True, repr=False)
class TrainingData:
    """The private images of one dataset. Its text form shows nothing, so that no log or traceback can.

    Args:
        private_images: `(n, h, w)` or `(n, h, w, c)` uint8, usually a read-only memory map.
        private_labels: `(n,)` int64, each below `len(classes)`.
        classes: the declared (public) class names, in label order.
        private_subjects: `(n,)` int64, the random number of each record's subject (`service.ingest.subjects`); None
            where the account's unit is the record.
        public_extractor: what the plan's option `extractor` names; None where it names none.
        public_anchors: uint8 images, shaped as private ones but of any size, of the dataset that the plan's option
            `anchors_dataset_id` or `public_dataset_id` names; None where it names none.
        public_anchor_labels: `(n,)` int64 of those, each below `len(public_anchor_classes)`; None likewise.
        public_anchor_classes: their class names, in label order.
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
    """Where one job keeps its checkpoint, whose private values nobody can read once the data are deleted."""

    def replace(self, write: Callable[[BinaryIO], None]) -> None:
        """Let `write` fill a new checkpoint, then put it in the place of the old one: readers see one or the other."""

    def open(self) -> BinaryIO | None:
        """Open the checkpoint for reading; None before the first one.

        Raises:
            CheckpointDamaged: it is not what was written.
        """


@runtime_checkable
class SavesItself(Protocol):
    """What is published and is no generator: a histogram, a classifier."""

    def save(self, directory: Path) -> None:
        """Write it into an existing, empty directory."""


Trained = ReleasedGenerator | SavesItself  # what a recipe hands over; all of it may be published


def save_trained(trained: Trained, directory: Path) -> None:
    """Write it into an existing, empty directory. These files, and no others, are what was trained."""
    if isinstance(trained, SavesItself):
        trained.save(directory)
    else:
        save_released(trained, directory)


class Unkept:
    """A checkpoint folder that keeps nothing."""

    def replace(self, write: Callable[[BinaryIO], None]) -> None:
        """Write nothing."""

    def open(self) -> BinaryIO | None:
        """There is never a checkpoint."""
        return None


def _tell_nobody(*, stage: str, step: int, steps: int) -> None:
    del stage, step, steps


@dataclass(frozen=True, kw_only=True, repr=False)
class TrustedCurator:
    """What a mechanism needs of its training: it pays, draws noise, privatises and tells where it is.

    Where several processes train together (`workers.recipes.ranks`), it is they who do, once. Its text form shows
    nothing.

    Attributes:
        budget: is charged by `pay`.
        secret: of the job; noise and coins derive from it.
        attempt: its number. Two attempts never share noise.
        progress: is told how far the training is.
        device: to compute on.
    """

    budget: Budget
    secret: bytes
    attempt: int = 1
    progress: Progress = _tell_nobody
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def pay(self, event: Event, stage: str) -> None:
        """Charge for releases that do not exist yet; on several ranks, once for all of them.

        Raises:
            BudgetExceeded: on every rank, as from `Budget.charge`.
        """
        pay_once(lambda: self.budget.charge(event, stage))

    def tell(self, stage: str, step: int, steps: int) -> bool:
        """Report that `step` of `steps` are done; return, on every rank alike, whether the training is to end early.

        Raises:
            Cancelled: from `progress`.
        """
        ending = bool(self.progress(stage=stage, step=step, steps=steps))
        return ending if ranks() == 1 else bool(self.agree(torch.tensor(ending)))

    def privatise(self, private_sum: Tensor, add_noise: Callable[[Tensor], Tensor]) -> Tensor:
        """Privatise the sum of all ranks' shares, once: see `workers.recipes.ranks.privatise_once`."""
        return privatise_once(private_sum, add_noise)

    def agree(self, public: Tensor) -> Tensor:
        """Return the first rank's tensor on every rank: what is public may differ between them by rounding."""
        return from_first(public)

    def all_agree(self, answer: bool) -> bool:
        """Return, on every rank alike, whether all of them say yes. Public."""
        return bool(least_of_all(torch.tensor(int(answer))))

    def on_first(self, work: Callable[[], T]) -> T:
        """Let the first rank alone work, and return what it returns on every rank."""
        return object_from_first(work() if rank() == 0 else None)

    def noise(self, purpose: str, *labels: str | int) -> SecureNoise:
        """Return the secret noise, or coins, of one purpose: of this attempt and these labels alone."""
        return SecureNoise.derive(self.secret, purpose, self.attempt, *labels)

    def generator(self, purpose: str, *labels: str | int, on_device: bool = False) -> torch.Generator:
        """Return secret torch randomness, for weights and coins of teachers; never for noise that is paid for."""
        seed = int.from_bytes(derive_key(self.secret, purpose, self.attempt, *labels)[:7], "big")
        return torch.Generator(self.device if on_device else "cpu").manual_seed(seed)


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(TrustedCurator):
    """One attempt at a training: all that a recipe is given.

    Attributes:
        plan: what was ordered, and is paid for.
        facts: what the owner declared.
        data: PRIVATE.
        checkpoints: the job's own. When it holds a checkpoint the training goes on from there, and steps done again
            are paid again. A budget that refuses everything makes of a checkpoint what can be made of it.
    """

    plan: Plan
    facts: PublicFacts
    data: TrainingData
    checkpoints: CheckpointFolder = field(default_factory=Unkept)


class Trainer(Protocol):
    """The signature of every recipe in `workers.recipes.registry`."""

    def __call__(self, run: Run) -> Trained:
        """Train and return what is released.

        Raises:
            NothingUseful: the budget ended before there was anything worth publishing; so does a BudgetExceeded that
                a recipe lets pass.
            Cancelled: from `run.progress`.
        """


@dataclass(frozen=True)
class Piece:
    """A part of a job, of those from which the time left is estimated.

    Recipes say theirs in `work(plan, facts)`, from the plan and what was declared alone. Costs are seconds on two cores
    for images of 28 x 28 grey pixels, measured roughly: only their ratios matter.

    Attributes:
        stage: its name in reports.
        steps: how many steps it reports.
        work: what it costs, in a unit that all pieces of a job share.
    """

    stage: str
    steps: int
    work: float


@dataclass(frozen=True, repr=False)
class TrainingCheckpoint:
    """A training's state after `step` steps. `state` may hold private values; `header` is JSON."""

    step: int
    header: dict[str, Any]
    state: dict[str, Any]

    def __repr__(self) -> str:
        return f"TrainingCheckpoint(step={self.step})"


def save_checkpoint(
    folder: CheckpointFolder, *, step: int, state: Mapping[str, Any], header: Mapping[str, Any] | None = None
) -> None:
    """Replace the checkpoint of a job atomically.

    Args:
        folder: the job's own, shared by its attempts.
        step: how many steps are done; training goes on with this step.
        state: tensors, numbers, strings and nested dicts and lists of them (what `torch.load` accepts with
            `weights_only=True`): weights, optimiser state, released targets.
        header: JSON-able facts to check on resume, such as the recipe and a digest of its config.

    Of several ranks, only rank 0 writes.
    """
    if rank() != 0:
        return
    document = {"step": step, "header": json.dumps(dict(header or {}), sort_keys=True), "state": dict(state)}
    folder.replace(lambda file: torch.save(document, file))


def load_checkpoint(folder: CheckpointFolder, *, device: torch.device | str = "cpu") -> TrainingCheckpoint | None:
    """Read the checkpoint of a job, or None before the first one.

    Of several ranks, all call it and rank 0 reads: the others might find what it writes later.

    Raises:
        CheckpointDamaged: it is not what was written.
    """
    file = folder.open() if rank() == 0 else None
    if ranks() > 1:
        content = object_from_first(None if file is None else _read_whole(file))
        file = None if content is None else io.BytesIO(content)
    if file is None:
        return None
    with file:
        document = torch.load(file, map_location=device, weights_only=True)
    return TrainingCheckpoint(
        step=int(document["step"]), header=json.loads(document["header"]), state=document["state"]
    )


def _read_whole(file: BinaryIO) -> bytes:
    with file:
        return file.read()
