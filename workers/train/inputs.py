"""The inputs of a recipe: the opened images, the budget of an armed hold, and the sealed checkpoint.

A charge is a transaction, committed before the release that it pays for. In between, a line is written to the job's
journal (`service.storage.journals`). Checkpoints are sealed with the dataset's key, so they become unreadable when the
images are deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BufferedReader, BufferedWriter
from typing import Any, BinaryIO

from sqlalchemy.orm import Session

from models.extractor import ExtractorUnusable, read_extractor
from obscura.wire.words import EntryKind
from privacy.accounting.events import Event
from privacy.errors import BudgetExceeded, EventRefused
from privacy.mechanisms.noise import derive_key
from privacy.plans.plan import Plan
from service import ledger, sealing
from service.datasets.vault import Vault, key_id_of, open_content, read_key
from service.db.dataset_tables import Dataset
from service.db.session import transaction
from service.errors import HoldExhausted, LedgerCorruption, NotFound
from service.failpoints import failpoint
from service.storage import interface, journals
from workers.recipes.interface import Budget, CheckpointDamaged, Progress, Run, TrainingData
from workers.train.orders import Context, MissingPrerequisite, Training

_PAGE_ROWS = 1000
CHECKPOINT_FILE = "checkpoint.sealed"


def read_dataset_key(context: Context, dataset: Dataset) -> bytes:
    """Return the key of a dataset's content. Raise NotFound if the content is gone.

    Raise LedgerCorruption if the key differs from the upload's key, because other arrays might be sealed with it.
    """
    key = read_key(Vault.of(context.settings).key_path(dataset.content))
    if dataset.key_id != key_id_of(key):
        raise LedgerCorruption("The key of a dataset differs from the key of its upload.", dataset_id=dataset.id)
    return key


def public_parts(context: Context, plan: Plan, anchors: Dataset | None) -> dict[str, Any]:
    """Read the public inputs of a plan, and return them as fields of `TrainingData`.

    They are the extractor and the content of `anchors`. Call this before the hold is armed. Raise MissingPrerequisite
    if the extractor is missing or unusable. Raise NotFound or LedgerCorruption if the content of `anchors` is missing
    or unusable.
    """
    name = plan.config.needed_extractor
    try:
        extractor = read_extractor(context.settings.extractors_path, name) if name else None
    except ExtractorUnusable as error:
        raise MissingPrerequisite(f"The training cannot begin: {error}.", extractor=name) from None
    parts: dict[str, Any] = {"public_extractor": extractor}
    if anchors is not None:
        images, labels, _ = open_content(context.storage, anchors.content, read_dataset_key(context, anchors))
        parts |= {"public_anchors": images, "public_anchor_labels": labels}
        parts["public_anchor_classes"] = tuple(anchors.classes)
    return parts


def open_run(
    context: Context,
    training: Training,
    dataset_key: bytes,
    public: Mapping[str, Any],
    budget: Budget,
    progress: Progress,
) -> Run:
    """Open the private data of a training whose hold is armed; return the recipe's inputs.

    `public` is the result of `public_parts`. If another process pays, pass a `budget` that refuses every charge.
    """
    job_id, key = training.job.id, dataset_key
    with_subjects = training.facts.unit == "subject"
    images, labels, subjects = open_content(context.storage, training.dataset.content, key, with_subjects=with_subjects)
    data = TrainingData(images, labels, training.facts.classes, subjects, **public)
    return Run(
        plan=training.plan,
        facts=training.facts,
        data=data,
        budget=budget,
        # Without the key, neither the noise nor the images can be computed from the database.
        secret=derive_key(training.secret + key, "training", job_id),
        attempt=context.attempt.number,
        progress=progress,
        checkpoints=SealedFolder(context.storage, interface.work_key(job_id), key, f"checkpoint {job_id}"),
        device=context.device,
    )


@dataclass(frozen=True)
class SealedFolder:
    """The checkpoint of one job (`workers.recipes.interface.CheckpointFolder`), sealed with the dataset's key.

    `folder` is a storage key, shared by the job's attempts. `context` names the job, so that another job's checkpoint
    cannot be opened here.
    """

    storage: interface.Storage
    folder: str
    key: bytes = field(repr=False)
    context: str

    def replace(self, write: Callable[[BinaryIO], None]) -> None:
        """Replace the checkpoint atomically; if the disk fails, the old checkpoint remains."""
        key = f"{self.folder}/{CHECKPOINT_FILE}"
        with self.storage.stage(key) as staging:
            path = staging / CHECKPOINT_FILE
            with path.open("xb") as file:
                sealed = sealing.SealedWriter(file, self.key, self.context)
                with BufferedWriter(sealed, sealing.CHUNK_BYTES) as stream:
                    write(stream)
                sealed.finish()
            failpoint("checkpoint.before")
            self.storage.publish(path, key)
        failpoint("checkpoint.after")

    def open(self) -> BinaryIO | None:
        """Open the checkpoint after verifying all of it. Return None before the first one.

        Raise CheckpointDamaged if the content differs from the written data, or was sealed with another key.
        """
        try:
            file = interface.open_regular(self.storage.open(self.folder, CHECKPOINT_FILE))
        except NotFound:
            return None
        try:
            sealed = BufferedReader(sealing.SealedReader(file, self.key, self.context), sealing.CHUNK_BYTES)
            while sealed.read(sealing.CHUNK_BYTES):
                pass
        except sealing.SealBroken:
            file.close()
            raise CheckpointDamaged from None
        sealed.seek(0)
        return sealed


class HeldBudget:
    """The hold of one job, as a recipe's `workers.recipes.interface.Budget`.

    A `closed` budget refuses every charge; it is closed from the start if this attempt only publishes paid releases.
    Every charge is written to the job's journal before its release exists.
    """

    def __init__(self, context: Context, training: Training) -> None:
        self._context, self._training = context, training
        self._journal = journals.Journal(context.storage, training.job.id, context.attempt.number, training.account.id)
        self.charged_nano = training.charged_nano
        self.closed = training.job.ended_early is not None

    def charge(self, event: Event, stage: str) -> None:
        """Pay for `event.count` releases; durable when this returns.

        Raises:
            BudgetExceeded: the hold does not cover the event, or the budget is closed; nothing was charged.
            EventRefused: the plan has no such stage, or planned a different event for it.
            OSError: the journal cannot be written; nothing may be released.
        """
        training, planned = self._training, self._training.plan.stage(stage)
        if planned is None or not planned.announces(event):
            raise EventRefused(stage, event)
        amount_nano = planned.price_of(event.count)
        if self.closed:
            raise BudgetExceeded(amount_nano, 0)
        try:
            with transaction(self._context.factory) as session:
                charged_nano = ledger.charge(
                    session,
                    hold_id=training.hold_id,
                    attempt=self._context.attempt.number,
                    amount_nano=amount_nano,
                    stage=stage,
                    event=event.to_json(),
                    paid_as_whole=planned.paid_as_whole,
                    now=datetime.now(UTC),
                )
                failpoint("charge.before")
        except HoldExhausted as error:
            left_nano = error.numbers.get("left_nano")
            raise BudgetExceeded(amount_nano, left_nano if isinstance(left_nano, int) else 0) from None
        failpoint("charge.after")
        paid_nano, self.charged_nano = charged_nano - self.charged_nano, charged_nano
        self._journal.write(stage=stage, count=event.count, cost_nano=paid_nano)
        failpoint("journal.after")

    def in_numbers(self) -> dict[str, float]:
        """Return the charged and the planned budget, in nano-units and as epsilon, for progress reports."""
        charged_nano, planned_nano = self.charged_nano, self._training.plan.cost_nano
        return {
            "charged_nano": charged_nano,
            "planned_nano": planned_nano,
            "charged_epsilon": self._training.privacy_filter.epsilon_of(charged_nano),
            "planned_epsilon": self._training.privacy_filter.epsilon_of(planned_nano),
        }


def charged_by_stage(session: Session, training: Training) -> Counter[str]:
    """Return the nano-units that all attempts of a training have charged, by stage, from its account's entries."""
    charged: Counter[str] = Counter()
    after = 0
    while rows := ledger.entries(session, training.account.id, after, _PAGE_ROWS):
        for entry in rows:
            if entry.kind is EntryKind.CHARGE and entry.hold_id == training.hold_id:
                charged[entry.details["stage"]] += entry.amount_nano
        after = rows[-1].sequence
    return charged
