"""A training as it was accepted: its rows, and what follows from them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from sqlalchemy.orm import Session

from models.extractor import Extractor, ExtractorUnusable, read_extractor
from privacy.accounting.filters import Filter
from privacy.mechanisms.noise import derive_key
from privacy.plans.plan import Plan, plan_from_json
from privacy.plans.registry import PublicFacts
from service import jobs, ledger
from service.datasets.vault import Images, key_id_of, key_path, open_dataset, open_subjects, read_key
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import SessionFactory, transaction
from service.db.words import DatasetState, EntryKind, Visibility
from service.errors import Conflict, LedgerCorruption, NotFound
from service.extractors import folder_of
from service.jobs.planning import facts_of
from service.settings import Settings
from workers.recipes.interface import Budget, CheckpointFolder, Progress, Run, Trained, Trainer, TrainingData
from workers.supervise.attempts import Attempt

_PAGE_ROWS = 1000


@dataclass(frozen=True)
class Order:
    """One training. Everything in it is public but `secret`, which seeds the mechanism's noise."""

    job: Job
    account: ledger.Account
    dataset: Dataset
    anchors: Dataset | None
    plan: Plan
    facts: PublicFacts
    privacy_filter: Filter
    hold_id: str
    charged_nano: int
    secret: bytes = field(repr=False)


def read_order(context: Context, job_id: str) -> Order:
    """Read what a training needs to start; no private data is touched.

    Raises:
        StaleAttempt: another attempt has taken over.
        NotFound: the dataset's content is gone.
        LedgerCorruption: the job lacks what every training has, or it, or a dataset of it, is not what its hold was
            taken for.
    """
    with transaction(context.factory, read_only=True) as session:
        job = jobs.get_job(session, job_id)
        if job.account_id is None or job.dataset_id is None or job.hold_id is None:
            raise LedgerCorruption("A training job lacks its hold, account or dataset.", job_id=job.id)
        account = ledger.get_account(session, job.account_id)
        dataset = session.get_one(Dataset, job.dataset_id)
        if dataset.state is not DatasetState.READY:
            raise NotFound("The dataset has no content.", dataset_id=dataset.id)
        secret = jobs.secret_of(session, job_id=job.id, attempt=context.attempt.number)
        ledger.require_as_held(session, job, secret.hex())
        plan = plan_from_json(job.plan)
        anchors_id = plan.config.get("anchors_dataset_id")
        anchors = session.get_one(Dataset, anchors_id) if anchors_id else None
        if anchors is not None and anchors.visibility is not Visibility.PUBLIC:
            raise LedgerCorruption("The dataset of a job's anchors is not public.", job_id=job.id)
        if anchors is not None and anchors.unchecked:
            raise NotFound("The dataset of the anchors has not been compared with the private ones.")
        for used in (dataset, anchors):
            _require_its_key(context, used)
        return Order(
            job=job,
            account=account,
            dataset=dataset,
            anchors=anchors,
            plan=plan,
            facts=facts_of(dataset, account),
            privacy_filter=ledger.filter_of(account),
            hold_id=job.hold_id,
            charged_nano=ledger.get_hold(session, job.hold_id).charged_nano,
            secret=jobs.secret_of(session, job_id=job.id, attempt=context.attempt.number),
        )


def _require_its_key(context: Context, dataset: Dataset | None) -> None:
    """Refuse another key than the one that the content arrived under: other arrays might be sealed under it."""
    if dataset is None or dataset.vault_key_id is None:  # uploaded before keys had ids
        return
    key = read_key(key_path(context.settings, dataset.id))
    if key_id_of(key) != dataset.vault_key_id:
        raise LedgerCorruption("The key of a dataset is not the one that it was stored under.", dataset_id=dataset.id)


def charged_by_stage(session: Session, order: Order) -> Counter[str]:
    """Return the nano-units that all attempts of a training have charged, by stage, from the ledger's entries."""
    charged: Counter[str] = Counter()
    after = 0
    while rows := ledger.entries(session, order.account.id, after, _PAGE_ROWS):
        for entry in rows:
            if entry.kind is EntryKind.CHARGE and entry.hold_id == order.hold_id:
                charged[entry.details["stage"]] += entry.amount_nano
        after = rows[-1].sequence
    return charged


@dataclass(frozen=True)
class Context:
    """One attempt in its process.

    Args:
        settings: of this process.
        factory: of sessions.
        attempt: that runs here.
        stop: set when it should stop at its next step.
        device: to train on.
    """

    settings: Settings
    factory: SessionFactory
    attempt: Attempt
    stop: threading.Event
    device: torch.device


@dataclass(frozen=True, repr=False)
class PublicParts:
    """What a training needs and nobody pays for: the extractor and the anchors that its plan names, or None."""

    extractor: Extractor | None = field(repr=False)
    anchors: Images | None = field(repr=False)


def public_parts(settings: Settings, order: Order) -> PublicParts:
    """Read what is public. Without it nothing is armed, opened or paid.

    Raises:
        Conflict: the plan's extractor is missing or unusable.
        NotFound: the public dataset of the anchors has no content.
    """
    extractor = _extractor(settings, order)
    anchors = None if order.anchors is None else open_dataset(settings, order.anchors.id)[0]
    return PublicParts(extractor, anchors)


def train_as_ordered(
    context: Context,
    order: Order,
    trainer: Trainer,
    public: PublicParts,
    *,
    budget: Budget,
    progress: Progress,
    checkpoints: Callable[[bytes], CheckpointFolder],
    device: torch.device,
) -> Trained:
    """Open the private data of a hold that is armed, and train.

    Args:
        context: of the attempt.
        order: what to train.
        trainer: the recipe that it names.
        public: from `public_parts`.
        budget: of the hold, or one that refuses, where another process pays.
        progress: of the job.
        checkpoints: gives the job's folder under the dataset's key.
        device: of this process.

    Raises:
        NotFound: the dataset has no content.
        Cancelled: the attempt was told to stop.
    """
    key = read_key(key_path(context.settings, order.dataset.id))
    private_images, private_labels = open_dataset(context.settings, order.dataset.id)
    private_subjects = None
    if order.facts.unit == "subject":
        private_subjects = open_subjects(context.settings, order.dataset.id)
    data = TrainingData(
        private_images,
        private_labels,
        order.facts.classes,
        private_subjects,
        public_extractor=public.extractor,
        public_anchors=public.anchors,
    )
    run = Run(
        plan=order.plan,
        facts=order.facts,
        data=data,
        budget=budget,
        # Without the key, what the database holds does not tell the noise: it can be computed no more than the images.
        secret=derive_key(order.secret + key, "training", order.job.id),
        attempt=context.attempt.number,
        progress=progress,
        checkpoints=checkpoints(key),
        device=device,
    )
    return trainer(run)


def _extractor(settings: Settings, order: Order) -> Extractor | None:
    """Read the extractor that the plan names; None where it names none.

    Raises:
        Conflict: it is missing or unusable.
    """
    name = order.plan.config.get("extractor")
    if not name:
        return None
    try:
        return read_extractor(folder_of(settings.data_dir), name)
    except ExtractorUnusable as error:
        raise Conflict(f"The training cannot begin: {error}.", extractor=name) from None
