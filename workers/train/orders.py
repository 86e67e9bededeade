"""A training as it was accepted: its rows, what follows from them, and what its recipe is given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

import torch
from sqlalchemy.orm import Session

from models.extractor import Extractor, ExtractorUnusable, read_extractor
from obscura.wire.words import DatasetState, EntryKind, Visibility
from privacy.accounting.filter import Filter
from privacy.mechanisms.noise import derive_key
from privacy.plans.plan import Plan, PublicFacts, Stage, stage_from_json
from privacy.plans.registry import plan_from_json
from service import jobs, ledger
from service.datasets.vault import Images, Labels, key_id_of, key_path, open_datasets, read_key
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import SessionFactory, transaction
from service.errors import Conflict, LedgerCorruption, NotFound, SeveralDatasets
from service.failpoints import failpoint
from service.jobs.training_sets import facts_of
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import Storage, work_key
from workers.recipes.interface import Budget, Progress, Run, Trainer, TrainingData
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import Attempt
from workers.train.checkpoints import SealedFolder
from workers.train.unions import key_of_all, open_together

_PAGE_ROWS = 1000
Ended = TypeVar("Ended")


class NotHere(Conflict):
    """This machine lacks what a training needs before data is opened, or to publish. The training is all right."""

    code: ClassVar[str] = "not_here"


@dataclass(frozen=True)
class Context:
    """One attempt at a job of any kind, in its process.

    Args:
        stop: set when it should stop at its next step.
        alive: shows that the main loop goes on (`workers.supervise.signs`).
    """

    settings: Settings
    factory: SessionFactory
    attempt: Attempt
    stop: threading.Event
    device: torch.device
    alive: Callable[[], None] = field(default=lambda: None, kw_only=True)
    trainers: Mapping[str, Trainer] = field(default_factory=lambda: TRAINERS, kw_only=True)

    def end(self, finish: Callable[..., Ended], *, at: str = "", **found: Any) -> Ended:
        """End the job, in one transaction, with what this attempt has found.

        Args:
            finish: of `service.jobs`.
            at: the failpoints around the commit, where there are any.
            found: what `finish` takes besides the attempt and the time.
        """
        with transaction(self.factory) as session:
            attempt = {"job_id": self.attempt.job_id, "attempt": self.attempt.number}
            ended = finish(session, **attempt, **found, now=datetime.now(UTC))
            if at:
                failpoint(f"{at}.before")
        if at:
            failpoint(f"{at}.after")
        return ended

    @property
    def storage(self) -> Storage:
        """Where files are kept."""
        return storage_of(self.settings)


@dataclass(frozen=True)
class Payer:
    """An account that pays for a training: its hold, and what the same releases cost it."""

    account: ledger.Account
    privacy_filter: Filter  # by which its hold was priced: the account's may have changed since
    hold_id: str
    stages: Mapping[str, Stage]
    charged_nano: int  # by earlier attempts


@dataclass(frozen=True, repr=False)
class Training:
    """A training as it was ordered and paid for. All of it is public but `secret`, which seeds the noise.

    Attributes:
        datasets: that it reads, its own first.
        payers: every account that pays, in the order in which they are locked.
    """

    job: Job
    account: ledger.Account
    datasets: tuple[Dataset, ...]
    anchors: Dataset | None
    plan: Plan
    facts: PublicFacts
    payers: tuple[Payer, ...]
    secret: bytes

    @property
    def dataset(self) -> Dataset:
        """Its own: the first that was named."""
        return self.datasets[0]

    @property
    def payer(self) -> Payer:
        """The account of its own dataset, which the plan speaks of."""
        return next(payer for payer in self.payers if payer.account.id == self.account.id)


def read_training(session: Session, attempt: Attempt) -> Training:
    """Read what a training needs to start; no private data is touched.

    Raises:
        NotFound: the dataset's content is gone.
        SeveralDatasets: an earlier version accepted the job.
        LedgerCorruption: the job lacks what every training has, or is not what its hold was taken for.
    """
    job = jobs.get_job(session, attempt.job_id)
    if job.account_id is None or job.dataset_id is None or job.hold_id is None:
        raise LedgerCorruption("A training job lacks its hold, account or dataset.", job_id=job.id)
    account = ledger.get_account(session, job.account_id)
    named = [job.dataset_id, *(row.dataset_id for row in ledger.further_datasets(session, job.id))]
    if len(named) > 1:  # accepted by an earlier version
        raise SeveralDatasets(len(named))
    datasets = tuple(session.get_one(Dataset, dataset_id) for dataset_id in named)
    for dataset in datasets:
        if dataset.state is not DatasetState.READY:
            raise NotFound("The dataset has no content.", dataset_id=dataset.id)
    secret = jobs.secret_of(session, job_id=job.id, attempt=attempt.number)
    ledger.require_as_held(session, job, secret.hex())
    plan = plan_from_json(job.plan)
    return Training(
        job=job,
        account=account,
        datasets=datasets,
        anchors=anchors_of(session, plan),
        plan=plan,
        facts=facts_of(datasets, account),
        payers=tuple(_payer(session, hold_id, plan) for hold_id in ledger.holds_of(session, job.id)),
        secret=secret,
    )


def _payer(session: Session, hold_id: str, plan: Plan) -> Payer:
    """Return who pays by a hold, at the prices of the entry that took it; old ones tell none, and have the plan's."""
    reserved, entry = ledger.get_hold(session, hold_id), ledger.entry_of_hold(session, hold_id, EntryKind.HOLD)
    told = [stage_from_json(stage, plan.facts) for stage in entry.details.get("stages", ())]
    return Payer(
        account=ledger.get_account(session, reserved.account_id),
        privacy_filter=ledger.filter_of_hold(session, hold_id),
        hold_id=hold_id,
        stages={stage.name: stage for stage in told or plan.stages},
        charged_nano=reserved.charged_nano,
    )


def anchors_of(session: Session, plan: Plan) -> Dataset | None:
    """Return the public dataset whose images a plan needs; None where it names none.

    Raises:
        LedgerCorruption: it is not public.
        NotFound: it has not been compared with the private ones.
    """
    anchors_id = plan.config.needed_anchors
    return public_dataset(session, anchors_id) if anchors_id else None


def public_dataset(session: Session, dataset_id: str) -> Dataset:
    """Return a dataset that a job reads as public; errors as `anchors_of`."""
    dataset = session.get_one(Dataset, dataset_id)
    if dataset.visibility is not Visibility.PUBLIC:
        raise LedgerCorruption("A dataset that a job reads as public is not.", dataset_id=dataset_id)
    if dataset.unchecked:
        raise NotFound("A public dataset has not been compared with the private ones.", dataset_id=dataset_id)
    return dataset


def read_keys(settings: Settings, datasets: Iterable[Dataset]) -> dict[str, bytes]:
    """Return the keys of datasets by the names of their contents.

    Raises:
        LedgerCorruption: one is not the key that its content arrived under: other arrays might be sealed under it.
        NotFound: one is gone.
    """
    keys: dict[str, bytes] = {}
    for dataset in datasets:
        key = read_key(key_path(settings, dataset.content))
        if dataset.key_id not in (None, key_id_of(key)):  # None: uploaded before keys had ids
            raise LedgerCorruption(
                "The key of a dataset is not the one that it was stored under.", dataset_id=dataset.id
            )
        keys[dataset.content] = key
    return keys


@dataclass(frozen=True, repr=False)
class PublicParts:
    """What a training needs and nobody pays for: the extractor and the public dataset that its plan names, or None."""

    extractor: Extractor | None = field(default=None, repr=False)
    anchors: Images | None = field(default=None, repr=False)
    anchor_labels: Labels | None = field(default=None, repr=False)
    anchor_classes: tuple[str, ...] = ()

    def given(self) -> dict[str, Any]:
        """Return the same as fields of `TrainingData`."""
        return {
            "public_extractor": self.extractor,
            "public_anchors": self.anchors,
            "public_anchor_labels": self.anchor_labels,
            "public_anchor_classes": self.anchor_classes,
        }


def public_parts(context: Context, plan: Plan, anchors: Dataset | None) -> PublicParts:
    """Read what a plan names and nobody pays for. Without it nothing is armed, opened or paid.

    Raises:
        NotHere: the plan's extractor is missing or unusable.
        NotFound: the public dataset that the plan names has no content; other errors as `read_keys`.
    """
    settings = context.settings
    name = plan.config.needed_extractor
    try:
        extractor = read_extractor(settings.extractors_path, name) if name else None
    except ExtractorUnusable as error:
        raise NotHere(f"The training cannot begin: {error}.", extractor=name) from None
    if anchors is None:
        return PublicParts(extractor)
    images, labels, _ = open_datasets(context.storage, read_keys(settings, [anchors]))
    return PublicParts(extractor, images, labels, tuple(anchors.classes))


def open_run(
    context: Context,
    training: Training,
    keys: Mapping[str, bytes],
    public: PublicParts,
    budget: Budget,
    progress: Progress,
) -> Run:
    """Open the private data of holds that are armed, and return what the recipe is given.

    Args:
        context: of the attempt, on the device to train on.
        keys: of the datasets that it reads (`read_keys`).
        budget: of the hold, or one that refuses, where another process pays.

    Raises:
        NotFound: the dataset has no content.
    """
    job_id, key = training.job.id, key_of_all(keys.values())
    images, labels, subjects = open_together(context.storage, keys, with_subjects=training.facts.unit == "subject")
    data = TrainingData(images, labels, training.facts.classes, subjects, **public.given())
    return Run(
        plan=training.plan,
        facts=training.facts,
        data=data,
        budget=budget,
        # Without the key, what the database holds does not tell the noise: it can be computed no more than the images.
        secret=derive_key(training.secret + key, "training", job_id),
        attempt=context.attempt.number,
        progress=progress,
        checkpoints=SealedFolder(context.storage, work_key(job_id), key, f"checkpoint {job_id}"),
        device=context.device,
    )
