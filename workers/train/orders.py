"""One attempt at a job, and an accepted training: its rows, plan and facts. No private data is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

import torch
from sqlalchemy.orm import Session

from obscura.wire.words import DatasetState, Visibility
from privacy.accounting.filter import Filter
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import plan_from_json
from service import jobs, ledger
from service.audit import signing
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import SessionFactory, transaction
from service.errors import Conflict, LedgerCorruption, NotFound
from service.failpoints import failpoint
from service.settings import Settings
from service.storage import interface, storage_of
from workers.recipes.interface import Trainer
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import Attempt

Ended = TypeVar("Ended")


class MissingPrerequisite(Conflict):
    """This machine lacks a prerequisite for opening a training's data, or for publishing."""

    code: ClassVar[str] = "not_here"


@dataclass(frozen=True)
class Context:
    """One attempt at a job of any kind, in its process.

    `stop` is set when the attempt must stop at its next step. `alive` gives signs of life of the main loop
    (`workers.supervise.attempts`).
    """

    settings: Settings
    factory: SessionFactory
    attempt: Attempt
    stop: threading.Event
    device: torch.device
    alive: Callable[[], None] = field(default=lambda: None, kw_only=True)
    trainers: Mapping[str, Trainer] = field(default_factory=lambda: TRAINERS, kw_only=True)

    def end(self, finish: Callable[..., Ended], *, at: str = "", **found: Any) -> Ended:
        """End the job by `finish` in one transaction; `at` names failpoints around the commit."""
        with transaction(self.factory) as session:
            attempt = {"job_id": self.attempt.job_id, "attempt": self.attempt.number}
            ended = finish(session, **attempt, **found, now=datetime.now(UTC))
            if at:
                failpoint(f"{at}.before")
        if at:
            failpoint(f"{at}.after")
        return ended

    @property
    def storage(self) -> interface.Storage:
        return storage_of(self.settings)

    def signing_key(self) -> signing.SigningKey:
        """Read the installation's key for receipts and images. Raise MissingPrerequisite if it is not usable here."""
        try:
            return signing.open_signing_key(self.settings.ledger_key_path)
        except signing.SigningKeyUnusable as error:
            raise MissingPrerequisite(f"This worker cannot sign. {error.message}") from None


@dataclass(frozen=True, repr=False)
class Training:
    """An accepted training with its hold. All fields are public except `secret`, which seeds the noise.

    `privacy_filter` is the filter that priced the hold; the account's filter may have changed since. Earlier attempts
    charged `charged_nano`.
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
    """Read the rows of a training; no private data is touched.

    Raise LedgerCorruption if the job does not match its hold, and NotFound if the dataset's content is gone.
    """
    job = jobs.get_job(session, attempt.job_id)
    if job.account_id is None or job.dataset_id is None or job.hold_id is None:
        raise LedgerCorruption("A training job lacks its hold, account or dataset.", job_id=job.id)
    account = ledger.get_account(session, job.account_id)
    dataset = session.get_one(Dataset, job.dataset_id)
    if dataset.state is not DatasetState.READY:
        raise NotFound("The dataset has no content.", dataset_id=dataset.id)
    secret = jobs.secret_of(session, job_id=job.id, attempt=attempt.number)
    ledger.require_unchanged(session, job, secret.hex())
    plan = plan_from_json(job.plan)
    return Training(
        job=job,
        account=account,
        dataset=dataset,
        anchors=anchors_of(session, plan),
        plan=plan,
        facts=jobs.facts_of(dataset, account),
        hold_id=job.hold_id,
        privacy_filter=ledger.filter_of_hold(session, job.hold_id),
        charged_nano=ledger.get_hold(session, job.hold_id).charged_nano,
        secret=secret,
    )


def anchors_of(session: Session, plan: Plan) -> Dataset | None:
    anchors_id = plan.config.needed_anchors
    return public_dataset(session, anchors_id) if anchors_id else None


def public_dataset(session: Session, dataset_id: str) -> Dataset:
    """Return a dataset that a job reads as public, or raise LedgerCorruption."""
    dataset = session.get_one(Dataset, dataset_id)
    if dataset.visibility is not Visibility.PUBLIC:
        raise LedgerCorruption("A job reads a dataset as public that is not public.", dataset_id=dataset_id)
    return dataset
