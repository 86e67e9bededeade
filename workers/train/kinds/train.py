"""One attempt at a training, from the stored plan to the published release."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from privacy.plans.registry import RECIPES
from service import jobs, ledger
from service.audit import proofs
from service.db.base import release_id_of
from service.db.job_tables import Release
from service.db.session import transaction
from service.errors import Conflict, LedgerCorruption
from service.failpoints import failpoint
from service.storage import journals
from service.storage.interface import digest_directory, key_of, work_key
from workers.recipes.interface import save_trained
from workers.recipes.registry import work_of
from workers.train import followers, inputs, publishing
from workers.train.orders import Context, Training, read_training
from workers.train.progress import ReportedProgress

_TRAINED = "trained"  # the recipe's result, stored until it is published


def run(context: Context) -> None:
    """Train and publish, or resume from a lost attempt."""
    storage, attempt = context.storage, context.attempt
    release_id = release_id_of(attempt.job_id)
    if not storage.holds(key_of(release_id)):
        with transaction(context.factory, read_only=True) as session:
            training = read_training(session, attempt)
        dataset_key = inputs.read_dataset_key(context, training.dataset)
        budget = inputs.HeldBudget(context, training)
        pieces = (*work_of(training.plan, training.facts), *publishing.publishing_work(training))
        progress = ReportedProgress(context, pieces, budget)
        work = work_key(attempt.job_id)
        if not storage.holds(f"{work}/{_TRAINED}"):
            _train_and_keep(context, training, dataset_key, budget, progress)
        key = key_of(release_id)
        with storage.stage(key) as staging:
            publishing.write_artifact(staging, storage.open(f"{work}/{_TRAINED}"), context, training, progress)
            failpoint("artifact.before")
            with suppress(Conflict):  # an attempt considered lost has stored an equally valid result
                storage.publish(staging, key)
            failpoint("artifact.after")
    publish(context, release_id)


def publish(context: Context, release_id: str) -> None:
    """Publish a finished artifact: capture the hold, insert the release and end the job, in one transaction.

    Raise MissingPrerequisite if this machine has no signing key.
    """
    storage, job_id = context.storage, context.attempt.job_id
    directory = storage.open(key_of(release_id))
    described = json.loads((directory / publishing.RELEASE_FILE).read_text(encoding="utf-8"))
    if described["job_id"] != job_id:
        raise LedgerCorruption("The artifact stored under this job's release id belongs to another job.", job_id=job_id)
    released = journals.journalled(storage, job_id)
    key = context.signing_key()

    def publish_paid(session: Session, **facts: Any) -> Release:
        """Publish. Raise LedgerCorruption if a release was not charged, as after restoring an old backup (rule I5)."""
        hold_id = jobs.get_job(session, job_id).hold_id
        if hold_id is None:
            raise LedgerCorruption("A training job lacks its hold.", job_id=job_id)
        hold = ledger.get_hold(session, hold_id)
        counted = ledger.released(hold)
        more = any(released.counts[stage] > counted[stage] for stage in counted)
        if more or released.cost_nano > hold.charged_nano:
            raise LedgerCorruption(
                "The journal of this job shows releases for which the ledger has no charge.",
                job_id=job_id,
                released_nano=released.cost_nano,
                charged_nano=hold.charged_nano,
            )
        return jobs.publish(session, **facts)

    release = context.end(
        publish_paid,
        at="publish",
        release_id=release_id,
        artifact_sha256=digest_directory(directory),
        artifact_dir=key_of(release_id),
        key=key,
        **{name: described.get(name) for name in ("name", "kind", "card", "summary", "incomplete")},
    )
    proofs.keep_receipt(storage, release.receipt)


def _train_and_keep(
    context: Context, training: Training, dataset_key: bytes, budget: inputs.HeldBudget, progress: ReportedProgress
) -> None:
    recipe, trainer = training.plan.recipe, context.trainers[training.plan.recipe]
    # Without the public parts, nothing is armed, opened or paid.
    public = inputs.public_parts(context, training.plan, training.anchors)
    with transaction(context.factory) as session:
        ledger.arm(session, hold_id=training.hold_id, attempt=context.attempt.number, now=datetime.now(UTC))
        failpoint("arm.before")
    failpoint("arm.after")
    processes = 1 if budget.closed else followers.processes_wanted(context.settings, RECIPES[recipe], context.device)
    with followers.followed(context, processes) as device:
        run = inputs.open_run(replace(context, device=device), training, dataset_key, public, budget, progress)
        outcome = trainer(run)
    key = f"{work_key(training.job.id)}/{_TRAINED}"
    with context.storage.stage(key) as staging:
        save_trained(outcome, staging)
        failpoint("trained.before")
        with suppress(Conflict):  # another attempt stored its result, whose releases are charged to the same hold
            context.storage.publish(staging, key)
        failpoint("trained.after")
