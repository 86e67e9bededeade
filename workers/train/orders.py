"""A training as it was accepted: its rows, what follows from them, and what its recipe is given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

import torch
from sqlalchemy.orm import Session

from models.extractor import Extractor, ExtractorUnusable, read_extractor
from obscura.wire.words import DatasetState, Visibility
from privacy.accounting.filter import Filter
from privacy.mechanisms.noise import derive_key
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import plan_from_json
from service import jobs, ledger
from service.datasets.vault import Images, Labels, key_id_of, key_path, open_content, read_key
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import SessionFactory, transaction
from service.errors import Conflict, LedgerCorruption, NotFound
from service.failpoints import failpoint
from service.jobs.training_sets import facts_of
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import Storage, work_key
from workers.recipes.interface import Budget, Progress, Run, Trainer, TrainingData
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import Attempt
from workers.train.checkpoints import SealedFolder

_PAGE_ROWS = 1000
Ended = TypeVar("Ended")


class MissingPrerequisite(Conflict):
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


@dataclass(frozen=True, repr=False)
class Training:
    """A training as it was ordered and paid for. All of it is public but `secret`, which seeds the noise.

    Attributes:
        privacy_filter: by which the hold was priced; the account's may have changed since.
        charged_nano: by earlier attempts.
    """

    job: Job
    account: ledger.Account
    dataset: Dataset
    anchors: Dataset | None
    plan: Plan
    facts: PublicFacts
    hold_id: str
    privacy_filter: Filter
    charged_nano: int
    secret: bytes


def read_training(session: Session, attempt: Attempt) -> Training:
    """Read what a training needs to start; no private data is touched.

    Raises:
        NotFound: the dataset's content is gone.
        LedgerCorruption: the job lacks what every training has, or is not what its hold was taken for.
    """
    job = jobs.get_job(session, attempt.job_id)
    if job.account_id is None or job.dataset_id is None or job.hold_id is None:
        raise LedgerCorruption("A training job lacks its hold, account or dataset.", job_id=job.id)
    account = ledger.get_account(session, job.account_id)
    dataset = session.get_one(Dataset, job.dataset_id)
    if dataset.state is not DatasetState.READY:
        raise NotFound("The dataset has no content.", dataset_id=dataset.id)
    secret = jobs.secret_of(session, job_id=job.id, attempt=attempt.number)
    ledger.require_as_held(session, job, secret.hex())
    plan = plan_from_json(job.plan)
    return Training(
        job=job,
        account=account,
        dataset=dataset,
        anchors=anchors_of(session, plan),
        plan=plan,
        facts=facts_of(dataset, account),
        hold_id=job.hold_id,
        privacy_filter=ledger.filter_of_hold(session, job.hold_id),
        charged_nano=ledger.get_hold(session, job.hold_id).charged_nano,
        secret=secret,
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


def read_dataset_key(settings: Settings, dataset: Dataset) -> bytes:
    """Return the key of a dataset's content.

    Raises:
        LedgerCorruption: it is not the key that the content arrived under: other arrays might be sealed under it.
        NotFound: it is gone.
    """
    key = read_key(key_path(settings, dataset.content))
    if dataset.key_id not in (None, key_id_of(key)):  # None: uploaded before keys had ids
        raise LedgerCorruption("The key of a dataset is not the one that it was stored under.", dataset_id=dataset.id)
    return key


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
        MissingPrerequisite: the plan's extractor is missing or unusable.
        NotFound: the public dataset that the plan names has no content; other errors as `read_dataset_key`.
    """
    settings = context.settings
    name = plan.config.needed_extractor
    try:
        extractor = read_extractor(settings.extractors_path, name) if name else None
    except ExtractorUnusable as error:
        raise MissingPrerequisite(f"The training cannot begin: {error}.", extractor=name) from None
    if anchors is None:
        return PublicParts(extractor)
    images, labels, _ = open_content(context.storage, anchors.content, read_dataset_key(settings, anchors))
    return PublicParts(extractor, images, labels, tuple(anchors.classes))


def open_run(
    context: Context,
    training: Training,
    dataset_key: bytes,
    public: PublicParts,
    budget: Budget,
    progress: Progress,
) -> Run:
    """Open the private data of a hold that is armed, and return what the recipe is given.

    Args:
        context: of the attempt, on the device to train on.
        dataset_key: of its dataset (`read_dataset_key`).
        budget: of the hold, or one that refuses, where another process pays.

    Raises:
        NotFound: the dataset has no content.
    """
    job_id, key = training.job.id, dataset_key
    with_subjects = training.facts.unit == "subject"
    images, labels, subjects = open_content(context.storage, training.dataset.content, key, with_subjects=with_subjects)
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
