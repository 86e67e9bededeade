"""The runner, in this process and on both databases: what it spends, publishes, resumes and keeps to itself."""

import json
import threading
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import torch
from sqlalchemy import update
from typer.testing import CliRunner

from obscura.cli.app import app
from obscura.wire.words import EntryKind, HoldState, JobState
from privacy.accounting.events import event_from_json
from privacy.errors import BudgetExceeded, EventRefused
from privacy.plans.plan import Plan
from privacy.plans.registry import plan_from_json
from service import jobs, ledger
from service.datasets.vault import Vault, destroy_file, write_key
from service.db.base import new_id, release_id_of
from service.db.dataset_tables import Dataset
from service.db.job_tables import FailureCode, Job, Sample
from service.db.session import transaction
from service.errors import StaleAttempt
from service.sealing import new_key
from service.storage import storage_of
from service.storage.interface import digest_directory, digest_file, key_of, work_key
from service.storage.journals import Journal, journalled
from tests.workers.conftest import on_either_database
from tests.workers.tiny_runner import TRAINERS as TINY
from workers.recipes.interface import Cancelled, Piece
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import Attempt, ExitStatus
from workers.train.inputs import HeldBudget
from workers.train.orders import read_training
from workers.train.progress import ReportedProgress

CANARY = "canary-4711-patient-smith"


@on_either_database
def test_a_training_is_charged_captured_and_published_and_sampling_is_free(workshop):
    job_id = workshop.train()
    assert workshop.work(job_id, TINY) == ExitStatus.ENDED

    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    job, hold = workshop.job(job_id), workshop.hold(job_id)
    assert hold.charged_nano == hold.amount_nano
    release, kinds = workshop.release_of(job_id), [entry.kind for entry in workshop.entries()]
    directory = workshop.settings.data_dir / release.artifact_dir
    assert digest_directory(directory) == release.artifact_sha256
    assert {path.name for path in directory.iterdir()} >= {"generator.safetensors", "grid.png", "report.json"}
    assert kinds.index(EntryKind.ARM) < kinds.index(EntryKind.CHARGE) < kinds.index(EntryKind.CAPTURE)
    assert release.card["accounting"]["cost_nano"] == hold.charged_nano
    planned = [stage.event for stage in plan_from_json(job.plan).stages]
    assert [event_from_json(event) for event in release.card["accounting"]["events"]] == planned
    assert (workshop.settings.data_dir / work_key(job_id) / "trained").is_dir()  # its supervisor puts it away

    sample_job = workshop.sample(release.id)
    assert workshop.work(sample_job, TINY) == ExitStatus.ENDED
    sample = workshop.do(jobs.made_by, Sample, sample_job)
    path = workshop.settings.data_dir / sample.path
    assert digest_file(path) == sample.sha256
    key = workshop.settings.ledger_key_path.with_suffix(".pub.pem")
    found = CliRunner().invoke(app, ["detect", "--json", "--key", str(key), str(path)])
    assert (found.exit_code, json.loads(found.stdout)[0]["releases"]) == (0, [release.id])
    assert workshop.balance().spent_nano == hold.captured_nano


@on_either_database
@pytest.mark.parametrize("edit", ["other data", "other options", "another secret", "wider bounds", "another key"])
def test_a_job_that_is_not_what_was_held_for_opens_nothing(workshop, edit):
    """What was found: A's budget pays for a training on B's data, if somebody changes a column of the job."""
    dataset_id = workshop.dataset_id
    path = Vault.of(workshop.settings).key_path(dataset_id)
    job_id = workshop.train()
    with transaction(workshop.factory) as session:
        job = session.get_one(Job, job_id)
        if edit == "other data":
            mine = session.get_one(Dataset, dataset_id)
            copied = {c.name: getattr(mine, c.name) for c in Dataset.__table__.columns}
            other = Dataset(**copied | {"id": new_id("ds"), "name": "another account's"})
            session.add(other)
            session.flush()
            job.dataset_id = other.id
        elif edit == "other options":
            job.options = {}
        elif edit == "another secret":
            session.execute(update(Job).where(Job.id == job_id).values(secret="0" * 64))
        elif edit == "wider bounds":
            session.get_one(Dataset, dataset_id).records_declared += 1
    if edit == "another key":
        destroy_file(path)
        write_key(path, new_key())
    assert workshop.work(job_id, TINY) == ExitStatus.ENDED
    workshop.assert_failed(job_id, FailureCode.LEDGER_UNAVAILABLE)
    assert workshop.hold(job_id).state is HoldState.RETURNED
    assert EntryKind.ARM not in [entry.kind for entry in workshop.entries()]


def test_nothing_private_is_read_before_the_hold_is_armed(workshop):
    job_id = workshop.train()
    seen: list[HoldState] = []

    def trainer(*args: Any, **kwargs: Any) -> Any:
        seen.append(workshop.hold(job_id).state)
        raise ValueError

    workshop.work(job_id, {"datalens": trainer})
    assert seen == [HoldState.ARMED]


def test_missing_content_fails_without_a_word_about_it(workshop):
    job_id = workshop.train()
    (workshop.settings.data_dir / key_of(workshop.dataset_id) / "labels.npy.sealed").unlink()
    workshop.work(job_id, TINY)
    assert workshop.job(job_id).failure_code is FailureCode.DATASET_UNAVAILABLE
    assert workshop.balance().reserved_nano == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError(CANARY), FailureCode.TRAINING_FAILED),
        (MemoryError(), FailureCode.OUT_OF_MEMORY),
        (torch.OutOfMemoryError(CANARY), FailureCode.OUT_OF_MEMORY),
        (OSError(28, CANARY), FailureCode.TRAINING_FAILED),
        (BudgetExceeded(2, 1), FailureCode.HOLD_EXHAUSTED),
    ],
)
def test_errors_become_closed_codes_and_their_text_stays_inside(workshop, error, code, capfd):
    def trainer(*args: Any, **kwargs: Any) -> Any:
        private_images = CANARY
        raise error from RuntimeError(private_images)

    job_id = workshop.train()
    assert workshop.work(job_id, {"datalens": trainer}) == ExitStatus.ENDED
    workshop.assert_failed(job_id, code)
    assert workshop.hold(job_id).state is HoldState.CAPTURED
    job = workshop.job(job_id)
    told = capfd.readouterr()
    assert "trainer" in told.err  # the operator finds the place
    assert CANARY not in told.err + told.out
    assert CANARY not in json.dumps([job.progress, job.options, job.plan], default=str)


def test_a_stale_attempt_touches_nothing(workshop):
    job_id = workshop.train()
    workshop.claim(job_id)
    assert workshop.work(Attempt(job_id, 2), TINY) == ExitStatus.STALE
    assert workshop.work(Attempt(job_id, 0), TINY) == ExitStatus.STALE
    with pytest.raises(StaleAttempt):
        ReportedProgress(workshop.context(Attempt(job_id, 0)))(stage="votes", step=0, steps=1)
    assert workshop.hold(job_id).state is HoldState.HELD


def test_a_later_attempt_fences_charges_and_publication(workshop):
    job_id = workshop.train()
    first = workshop.claim(job_id)
    trainer = TINY["datalens"]

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        workshop.give_back(job_id, first.number)
        workshop.claim(job_id)
        return trainer(*args, **kwargs)

    assert workshop.work(first, {"datalens": overtaken}) == ExitStatus.STALE
    assert workshop.hold(job_id).charged_nano == 0


def test_stopping_cancels_only_when_somebody_asked(workshop):
    job_id = workshop.train()
    stop = threading.Event()
    stop.set()
    attempt = workshop.claim(job_id)
    assert workshop.work(attempt, TINY, stop) == ExitStatus.INTERRUPTED
    assert workshop.job(job_id).state is JobState.RUNNING
    workshop.cancel(job_id)
    assert workshop.work(attempt, TINY, stop) == ExitStatus.ENDED
    workshop.assert_settled(job_id, JobState.CANCELLED)  # nothing was charged, so nothing is published


def armed(workshop: Any, job_id: str) -> tuple[HeldBudget, Plan]:
    """The budget of a training's next attempt, which has armed the hold and charged nothing, and the plan."""
    context = workshop.context(workshop.claim(job_id))
    training = workshop.do(read_training, attempt=context.attempt)
    workshop.do(ledger.arm, hold_id=training.hold_id, attempt=context.attempt.number, now=datetime.now(UTC))
    return HeldBudget(context, training), training.plan


def test_a_closed_budget_refuses_what_the_hold_would_pay(workshop):
    job_id = workshop.train()
    budget, plan = armed(workshop, job_id)
    stage = plan.stages[0]
    budget.closed = True
    with pytest.raises(BudgetExceeded):
        budget.charge(stage.event, stage.name)
    assert workshop.hold(job_id).charged_nano == journalled(storage_of(workshop.settings), job_id).cost_nano == 0


def test_a_budget_pays_only_for_what_the_plan_announced(workshop):
    job_id = workshop.train()
    budget, plan = armed(workshop, job_id)
    votes = plan.stages[-1]
    for event, stage in (
        (votes.event, "another stage"),
        (replace(votes.event, stddev=votes.event.stddev / 2), votes.name),
    ):
        with pytest.raises(EventRefused):
            budget.charge(event, stage)
    budget.charge(votes.event, votes.name)
    assert budget.charged_nano == workshop.hold(job_id).charged_nano == votes.cost_nano
    with pytest.raises(BudgetExceeded) as refused:
        budget.charge(replace(votes.event, count=1000 * votes.event.count), votes.name)
    assert refused.value.remaining_nano == workshop.hold(job_id).amount_nano - votes.cost_nano
    assert workshop.hold(job_id).charged_nano == votes.cost_nano
    assert journalled(storage_of(workshop.settings), job_id).cost_nano == votes.cost_nano


WHOLE = {"recipe": "dp_classifier", "architecture": "cnn", "expected_batch": 100, "epochs": 2.0, "epsilon": 4.0}


def test_steps_that_are_priced_as_a_whole_are_charged_once_and_counted_over_all_attempts(workshop):
    job_id = workshop.train(**WHOLE)
    budget, plan = armed(workshop, job_id)
    (steps,) = plan.stages
    assert (steps.event.count, steps.repeats) == (30, 1)
    for count, made in ((1, 1), (20, 21)):
        budget.charge(replace(steps.event, count=count), steps.name)
        assert budget.charged_nano == workshop.hold(job_id).charged_nano == steps.cost_nano == plan.cost_nano
        assert told(workshop, job_id) == (steps.cost_nano, {steps.name: made})
    workshop.give_back(job_id)
    budget, _ = armed(workshop, job_id)
    for count, fits in ((11, False), (10, True), (1, False)):  # one step more than planned, and no more
        with nullcontext() if fits else pytest.raises(BudgetExceeded):
            budget.charge(replace(steps.event, count=count), steps.name)
    assert told(workshop, job_id) == (steps.cost_nano, {steps.name: 31})


def told(workshop: Any, job_id: str) -> tuple[int, dict[str, int]]:
    found = journalled(storage_of(workshop.settings), job_id)
    return found.cost_nano, dict(found.counts)


@pytest.mark.parametrize(
    ("options", "stage", "count", "cost_nano"), [({}, "votes", 1, 1), (WHOLE, "gradient_steps", 5, 0)]
)
def test_a_release_that_the_ledger_has_forgotten_is_not_published(workshop, options, stage, count, cost_nano):
    """As after the restoring of an old backup: the journal shows more than the account has paid, or more steps than
    are counted, whose price is there from the first one.
    """
    job_id = workshop.train(**options)
    attempt = workshop.claim(job_id)
    journal = Journal(storage_of(workshop.settings), job_id, attempt.number, "acc_a")
    journal.write(stage=stage, count=count, cost_nano=cost_nano)
    assert workshop.work(attempt, {**TRAINERS, **TINY}) == ExitStatus.ENDED
    workshop.assert_failed(job_id, FailureCode.LEDGER_UNAVAILABLE)
    assert workshop.hold(job_id).captured_nano == workshop.hold(job_id).amount_nano


def test_which_steps_are_reported_depends_on_the_plan_alone_and_reports_hold_public_numbers(workshop):
    job_id = workshop.train()
    attempt = workshop.claim(job_id)
    seconds = [0.0]
    stop = threading.Event()
    work = [Piece("votes", 400, 2.0), Piece("draw", 10, 1.0)]
    progress = ReportedProgress(workshop.context(attempt, stop), work, clock=lambda: seconds[0])
    reported: list[Any] = []
    for step in range(201):
        assert progress(stage="votes", step=step, steps=400) is False
        seconds[0] += 0.0001 if step < 100 else 0.8  # however fast they are
        shown = workshop.job(job_id)
        reported += [shown.progress["step"]] if shown.progress["step"] not in reported else []
    assert reported == list(range(0, 201, 4))  # every hundredth of the stage
    assert shown.progress_version == 51 + 1  # and the claim
    assert shown.progress == {"stage": "votes", "step": 200, "steps": 400, "eta_seconds": 150}
    stop.set()
    with pytest.raises(Cancelled):
        progress(stage="votes", step=102, steps=200)


def test_an_artifact_of_an_attempt_thought_lost_is_adopted(workshop):
    job_id = workshop.train()
    first = workshop.claim(job_id)
    target = workshop.settings.data_dir / key_of(release_id_of(job_id))

    def slow(*args: Any, **kwargs: Any) -> Any:
        generator = TINY["datalens"](*args, **kwargs)
        target.mkdir(parents=True)  # meanwhile, another attempt's artifact appears
        described = {"job_id": job_id, "kind": "generator", "name": "other", "card": {"epsilon": 1.0}, "summary": {}}
        (target / "release.json").write_text(json.dumps(described))
        return generator

    assert workshop.work(first, {"datalens": slow}) == ExitStatus.ENDED
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    release = workshop.release_of(job_id)
    assert (release.name, release.artifact_sha256) == ("other", digest_directory(target))
