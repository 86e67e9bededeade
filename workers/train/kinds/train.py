"""One attempt at a training, from the stored plan to the published release."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from service import artifacts, jobs, ledger
from service.audit.receipts import keep_receipt
from service.audit.signing import open_signing_key
from service.db.base import release_id_of
from service.db.job_tables import Release
from service.db.session import transaction
from service.errors import Conflict, LedgerCorruption
from service.failpoints import failpoint
from service.journals import journalled
from workers.recipes.interface import Trainer
from workers.recipes.registry import WORK
from workers.supervise.attempts import work_directory
from workers.train.followers import followed, processes_wanted
from workers.train.orders import Context, Training, open_run, public_parts, read_training
from workers.train.progress import ReportedProgress
from workers.train.publishing import RELEASE_FILE, publishing_work, write_artifact
from workers.train.spending import HeldBudget

_TRAINED = "trained"  # what the recipe handed over, kept until it is published


def run(context: Context) -> None:
    """Train and publish; goes on where an earlier attempt was lost.

    Raises:
        NothingUseful: the budget ended before there was anything worth publishing; so does BudgetExceeded.
        Cancelled: the attempt was told to stop at once.
        StaleAttempt: another attempt has taken over.
        NotFound: the dataset has no content.
    """
    data_dir, job_id = context.settings.data_dir, context.attempt.job_id
    finished = artifacts.directory_of(data_dir, release_id_of(job_id))
    work = work_directory(data_dir, job_id)
    if not finished.is_dir():
        training = read_training(context)
        budget = HeldBudget(training)
        pieces = (*WORK[training.plan.recipe](training.plan, training.facts), *publishing_work(training))
        progress = ReportedProgress(training, pieces, budget)
        trained = work / _TRAINED
        if not trained.is_dir():
            _train(training, context.trainers[training.plan.recipe], budget, progress, trained)
        with artifacts.staged_directory(data_dir, finished.name) as staging:
            write_artifact(staging, trained, training, progress)
            failpoint("artifact.before")
            _put_in_place(staging, finished)
            failpoint("artifact.after")
    publish(context, finished)


def publish(context: Context, directory: Path) -> None:
    """Make a finished artifact a release: capture, release row and success in one transaction."""
    settings, job_id = context.settings, context.attempt.job_id
    described = json.loads((directory / RELEASE_FILE).read_text(encoding="utf-8"))
    if described["job_id"] != job_id:
        raise LedgerCorruption("An artifact lies under the identifier of another job's release.", job_id=job_id)
    released = journalled(settings.data_dir, job_id)

    def publish_paid(session: Session, **facts: Any) -> Release:
        _require_charged(session, job_id, *released)
        return jobs.publish(session, **facts)

    release = context.end(
        publish_paid,
        at="publish",
        release_id=directory.name,
        artifact_sha256=artifacts.digest_directory(directory),
        artifact_dir=directory.relative_to(settings.data_dir).as_posix(),
        key=open_signing_key(settings.ledger_key_path),
        **{name: described.get(name) for name in ("name", "kind", "card", "summary", "incomplete")},
    )
    keep_receipt(settings.data_dir, release.receipt)


def _require_charged(session: Session, job_id: str, released_nano: int, made: Counter[str]) -> None:
    """Refuse to publish what the ledger has not been paid for, such as after the restoring of an old backup (I5).

    Raises:
        LedgerCorruption: the runners' journal shows more than the hold's charges.
    """
    hold_id = jobs.get_job(session, job_id).hold_id
    charged_nano = 0 if hold_id is None else ledger.get_hold(session, hold_id).charged_nano
    told = {} if hold_id is None else ledger.released(session, hold_id)
    if released_nano > charged_nano or any(made[stage] > count for stage, count in told.items()):
        raise LedgerCorruption(
            "The journal of this job shows releases for which the ledger has no charge.",
            job_id=job_id,
            released_nano=released_nano,
            charged_nano=charged_nano,
        )


def _train(training: Training, trainer: Trainer, budget: HeldBudget, progress: ReportedProgress, trained: Path) -> None:
    """Arm, open the private data, train, and keep the outcome under `trained`, whole or not at all.

    Public things come first: without them nothing is armed, opened or paid. Where several processes train, they come
    after arming and are gone when the outcome is there.
    """
    public = public_parts(training.settings, training.plan, training.anchors)
    processes = 1 if budget.closed else processes_wanted(training.settings, trainer, training.device)
    with transaction(training.factory) as session:
        ledger.arm(session, hold_id=training.hold_id, attempt=training.attempt.number, now=datetime.now(UTC))
        failpoint("arm.before")
    failpoint("arm.after")
    with followed(training, processes, trained.parent) as device:
        outcome = trainer(open_run(replace(training, device=device), public, budget, progress))
    partial = trained.with_name(f"{_TRAINED}.{training.attempt.number}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    outcome.save(partial)
    failpoint("trained.before")
    _put_in_place(partial, trained)
    failpoint("trained.after")
    shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(staging: Path, target: Path) -> None:
    """Publish a folder, unless an attempt that was thought lost has just put its own there.

    That one is as good: whatever an attempt released was charged to the same hold before it existed.
    """
    with suppress(Conflict):
        artifacts.publish_directory(staging, target)
