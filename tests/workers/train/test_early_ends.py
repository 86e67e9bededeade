"""A training that ends early publishes what was paid for; other jobs that are cancelled end within seconds."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from sqlalchemy import select

from benchmarks.chaos_audit import audit
from models.portable.edm import EdmConfig, EdmDenoiser
from models.private_classifier import ClassifierConfig, PrivateClassifier, load_classifier
from models.released import load_released
from obscura.wire.words import EarlyEnd, HoldState, JobState
from privacy.plans.registry import RECIPES, plan_from_json, useful_from_nano
from service import jobs
from service.datasets.vault import Vault
from service.db.job_tables import Job
from service.db.session import transaction
from service.storage.interface import digest_directory
from service.views import jobs as views
from tests.workers import tiny_runner
from tests.workers.small_trainings import DIGITS, SMALL, TRAINERS, classifiers_see, work
from workers.evaluation import utility
from workers.recipes import private_steps
from workers.recipes.interface import Cancelled, Run, Trainer
from workers.supervise.attempts import ExitStatus
from workers.supervise.reconcile import sweep
from workers.train.drawing import DRAWING
from workers.train.inputs import HeldBudget
from workers.train.measuring import EVALUATION, measure_classifier, public_images
from workers.train.progress import ReportedProgress
from workers.train.runner import run

MOMENTS = 10
CLASS_MOMENTS: dict[str, Any] = {"recipe": "moments", "components": 6}
VOTES: dict[str, Any] = {"images": 120, "images_per_iteration": 4}
CLASSIFIER: dict[str, Any] = {"recipe": "dp_classifier", "epsilon": 8.0, "architecture": "cnn"}
CLASSIFIER |= {"expected_batch": 30, "epochs": 0.9}
DPGAN = {"recipe": "dpgan", "epsilon": 8.0, "epochs": 0.6, "features": 4, "latent": 4, "expected_batch": 30}
DIFFUSION = {"recipe": "dp_diffusion", "epsilon": 8.0, "epochs": 0.3, "features": 4, "blocks": 1}
DIFFUSION |= {"sampling_steps": 4, "expected_batch": 30, "multiplicity": 1}


@contextmanager
def moments(acts: dict[int, Callable[[], None]]) -> Iterator[list[int]]:
    """Do something at moments of a training: around every charge, and at every report; yield those that have passed."""
    passed, charge, report = list[int](), HeldBudget.charge, ReportedProgress.__call__

    def step() -> None:
        passed.append(len(passed))
        acts.get(passed[-1], lambda: None)()

    def charged(budget: Any, *given: Any) -> None:
        step()
        charge(budget, *given)
        step()

    def reported(progress: Any, **given: Any) -> bool:
        step()
        return report(progress, **given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HeldBudget, "charge", charged)
        patched.setattr(ReportedProgress, "__call__", reported)
        yield passed


def work_until(
    workshop: Any, job: Any, acts: dict[int, Callable[[], None]], stop: threading.Event | None = None
) -> ExitStatus:
    with moments(acts):
        return workshop.work(job, TRAINERS, stop)


def die_at(workshop: Any, job: Any, moment: int) -> None:
    with pytest.raises(SystemExit):
        work_until(workshop, job, {moment: Mock(side_effect=SystemExit)})


def canceller(workshop: Any, job_id: str, stop: threading.Event) -> Callable[[], None]:
    """What a user who cancels does, and then the supervisor."""

    def cancel() -> None:
        workshop.cancel(job_id)
        stop.set()

    return cancel


def attempt_ends(workshop: Any, job_id: str, code: jobs.FailureCode) -> None:
    workshop.do(jobs.finish_failed, job_id=job_id, attempt=1, failure_code=code, now=datetime.now(UTC))


def cancel_and_look(workshop: Any, options: dict[str, Any], moment: int) -> JobState:
    """Cancel a training at one of its moments, as a user and the supervisor do, and see that nothing is lost."""
    job_id, stop, said = workshop.train(**options), threading.Event(), list[bool | None]()

    def cancel() -> None:
        with transaction(workshop.factory) as session:
            job = jobs.request_cancel(session, job_id=job_id, now=datetime.now(UTC))
            said.append(views.records(session, [job])[0].publishes_if_cancelled)
        stop.set()

    assert work_until(workshop, job_id, {moment: cancel}, stop) == ExitStatus.ENDED
    job, hold = workshop.job(job_id), workshop.hold(job_id)
    assert said in ([True], [False]), "a moment after the end of the training"
    assert hold.state is HoldState.CAPTURED
    assert hold.captured_nano == hold.charged_nano <= hold.amount_nano
    assert workshop.balance().reserved_nano == 0
    if job.state is JobState.CANCELLED:
        assert said == [False], "something useful had been paid for and was lost"
        assert hold.captured_nano < useful_from_nano(plan_from_json(job.plan))
        assert job.release_id is None
        return JobState.CANCELLED
    assert job.state is JobState.SUCCEEDED
    assert_published(workshop, job_id, reason="cancelled")
    return JobState.SUCCEEDED


def assert_published(workshop: Any, job_id: str, *, reason: str) -> None:
    """The release can be downloaded, says what was made, and its card is that of what was charged."""
    job, hold, release = workshop.job(job_id), workshop.hold(job_id), workshop.release_of(job_id)
    directory = workshop.settings.data_dir / release.artifact_dir
    assert digest_directory(directory) == release.artifact_sha256
    (load_classifier if release.kind == "classifier" else load_released)(directory)
    assert release.card["accounting"]["cost_nano"] == hold.captured_nano > 0
    assert release.card["incomplete"] == release.incomplete
    charged = sum(entry.details["event"]["count"] for entry in workshop.charges(job_id))
    planned = sum(stage.event.count for stage in plan_from_json(job.plan).stages)
    assert (release.incomplete is None) is (job.ended_early is None) is (charged == planned)
    if release.incomplete is not None:
        assert (release.incomplete["reason"], release.incomplete["made"]) == (reason, charged)
        assert release.incomplete["fraction"] == pytest.approx(charged / planned, abs=1e-3)
        assert job.ended_early.value == reason


def test_cancelling_at_ten_moments_never_loses_what_was_paid_for(workshop):
    """The moments of one training are counted; others of its kind are cancelled at ten of them."""
    options = {**VOTES, "images": 60, "epsilon": 0.5}
    with moments({}) as counted:
        job_id = workshop.train(**options)
        workshop.work(job_id)
    assert workshop.job(job_id).state is JobState.SUCCEEDED
    assert len(counted) > 2 * MOMENTS
    ends = [cancel_and_look(workshop, options, moment) for moment in random.Random(9).sample(counted, MOMENTS)]
    assert set(ends) == {JobState.SUCCEEDED}  # the first vote is worth publishing
    # Class means without a covariance are not.
    assert cancel_and_look(workshop, {**CLASS_MOMENTS, "epsilon": 0.5}, 0) is JobState.CANCELLED
    everything = set(workshop.do(lambda session: session.scalars(select(Job.id)).all()))
    sweep(workshop.settings, workshop.factory, now=datetime.now(UTC))
    found = audit(workshop.settings, everything, {})
    assert found.sound, found


@pytest.mark.parametrize(
    "options", [VOTES, CLASSIFIER, DPGAN, DIFFUSION], ids=lambda given: given.get("recipe", "votes")
)
def test_what_a_dead_worker_had_paid_for_is_published_without_another_charge(workshop, options):
    job_id = workshop.train(**options)
    workshop.settings = workshop.settings.model_copy(update={"attempts_max": 1})
    die_at(workshop, job_id, 16)  # after some charges and checkpoints
    charged_nano, charges = workshop.hold(job_id).charged_nano, [entry.sequence for entry in workshop.charges(job_id)]
    plan = plan_from_json(workshop.job(job_id).plan)
    assert useful_from_nano(plan) <= charged_nano
    whole = all(stage.paid_as_whole for stage in plan.stages)
    assert (charged_nano == workshop.hold(job_id).amount_nano) == whole
    attempt_ends(workshop, job_id, jobs.FailureCode.WORKER_LOST)
    assert workshop.work(job_id) == ExitStatus.ENDED
    assert_published(workshop, job_id, reason="worker_lost")
    assert workshop.hold(job_id).charged_nano == charged_nano
    assert [entry.sequence for entry in workshop.charges(job_id)] == charges
    workshop.assert_settled(job_id, JobState.SUCCEEDED)


def test_a_training_that_died_before_its_first_checkpoint_ends_as_it_would_have(workshop):
    job_id = workshop.train()
    die_at(workshop, job_id, 2)  # the first charge is there, and its release is not
    assert len(workshop.charges(job_id)) == 1
    attempt_ends(workshop, job_id, jobs.FailureCode.TIME_LIMIT)
    workshop.work(job_id)
    assert workshop.job(job_id).failure_code is jobs.FailureCode.TIME_LIMIT
    assert "nothing that could be published" in jobs.FailureCode.TIME_LIMIT.message
    assert len(workshop.charges(job_id)) == 1
    workshop.assert_settled(job_id, JobState.FAILED)


def test_a_training_that_breaks_publishes_what_it_had_paid_for(workshop):
    job_id = workshop.train(**VOTES)
    work_until(workshop, job_id, {16: Mock(side_effect=MemoryError)})
    assert (workshop.job(job_id).state, workshop.job(job_id).ended_early) == (JobState.QUEUED, EarlyEnd.OUT_OF_MEMORY)
    workshop.work(job_id)
    assert_published(workshop, job_id, reason="out_of_memory")


def test_a_time_limit_ends_a_training_as_a_cancellation_does(workshop):
    job_id, stop = workshop.train(**VOTES), threading.Event()

    def over() -> None:
        assert workshop.do(jobs.end_early, job_id=job_id, attempt=1, why=EarlyEnd.TIME_LIMIT)
        stop.set()

    work_until(workshop, job_id, {16: over}, stop)
    assert_published(workshop, job_id, reason="time_limit")
    assert workshop.job(job_id).attempt == 1


def test_a_cancelled_training_that_is_then_told_to_drain_leaves_its_release_to_the_next_attempt(workshop):
    job_id, stop = workshop.train(**VOTES), threading.Event()
    # The first report after the cancellation closes the budget, and the one after that is told to stop.
    acts = {14: canceller(workshop, job_id, stop), 17: stop.set, 18: stop.set, 19: stop.set}
    assert work_until(workshop, job_id, acts, stop) == ExitStatus.INTERRUPTED
    workshop.give_back(job_id)
    workshop.work(job_id)
    assert_published(workshop, job_id, reason="cancelled")


def test_an_attempt_that_was_cancelled_before_it_looked_publishes_all_the_same(workshop):
    """Its budget is closed from the start, and then the supervisor tells it so."""
    job_id, stop = workshop.train(**VOTES), threading.Event()
    die_at(workshop, job_id, 16)
    workshop.give_back(job_id)
    second = workshop.claim(job_id)
    canceller(workshop, job_id, stop)()
    assert workshop.work(second, TRAINERS, stop) == ExitStatus.ENDED
    assert_published(workshop, job_id, reason="cancelled")


def test_a_training_of_many_steps_stops_within_one_of_them(workshop, monkeypatch):
    """What is paid for together may be minutes of work."""
    monkeypatch.setattr(private_steps, "paid_together", lambda count: count // 2)
    job_id, stop = workshop.train(**CLASSIFIER), threading.Event()
    steps = list[int]()
    make = private_steps.PrivateSteps.step
    monkeypatch.setattr(private_steps.PrivateSteps, "step", lambda self: (steps.append(1), make(self))[1])
    work_until(workshop, job_id, {5: canceller(workshop, job_id, stop)}, stop)
    assert len(steps) == 4  # two moments are those of the one charge
    assert len(workshop.charges(job_id)) == 1
    assert_published(workshop, job_id, reason="cancelled")


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_a_budget_that_refuses_everything_makes_nothing_of_nothing(workshop, recipe, monkeypatch):
    """Every recipe says so by itself when there is nothing useful yet."""
    small = {name: value for name, value in SMALL[recipe].items() if name != "public_dataset_id"}
    job_id = workshop.train(recipe=recipe, epsilon=8.0, **small)
    budgets = list[Any]()
    build = HeldBudget.__init__

    def closed(budget: Any, *given: Any, **more: Any) -> None:
        build(budget, *given, **more)
        budget.closed = True
        budgets.append(budget)

    monkeypatch.setattr(HeldBudget, "__init__", closed)
    workshop.work(job_id)
    job = workshop.job(job_id)
    assert budgets
    assert (job.state, job.failure_code) == (JobState.FAILED, jobs.FailureCode.HOLD_EXHAUSTED)
    assert workshop.hold(job_id).captured_nano == 0


# --- cancelled while drawing or testing -------------------------------------------------------------------------------


def slow_to_draw(sampling_steps: int) -> Trainer:
    """Pay as the tiny recipe does, for a generator that draws a batch in four blocks, each in so many steps."""

    def train(run: Run) -> EdmDenoiser:
        tiny_runner.train(run)
        return EdmDenoiser(EdmConfig(10, 1, 8, 8, 16, 1, sampling_steps, churn=0.0, guidance=0.0))

    return train


def cancelled_at(workshop: Any, job_id: str, stage: str, trainers: Any, *, discard: bool) -> ExitStatus:
    """Run a job until it says that it is at a stage, cancel it, and see that it ends within seconds."""
    attempt, stop = workshop.claim(job_id), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, workshop.settings, attempt, stop=stop, trainers=trainers)
        workshop.wait(lambda: workshop.job(job_id).progress.get("stage") == stage, seconds=120)
        workshop.cancel(job_id, discard=discard)
        stop.set()
        status: ExitStatus = running.result(timeout=30)  # what is cancelled here would go on for minutes
    return status


def test_a_discarded_training_ends_within_seconds_while_it_draws_what_it_would_show(workshop):
    job_id = workshop.train()
    assert cancelled_at(workshop, job_id, DRAWING, {"datalens": slow_to_draw(10_000)}, discard=True) is ExitStatus.ENDED
    workshop.assert_settled(job_id, JobState.CANCELLED)


@pytest.mark.parametrize("stage", [DRAWING, EVALUATION])
def test_a_cancelled_evaluation_ends_within_seconds_and_its_release_stays(workshop, stage, monkeypatch):
    monkeypatch.setattr(utility, "EPOCHS_MAX", 10**6)  # classifiers train for a very long time
    classifiers_see(monkeypatch, 10**7)
    training = workshop.train(evaluate=True, evaluation_samples=200_000 if stage == DRAWING else 300)
    work(workshop, training, {"datalens": slow_to_draw(4) if stage == DRAWING else tiny_runner.train})
    release_id = workshop.job(training).release_id
    job_id = workshop.evaluation(release_id).job_id
    assert cancelled_at(workshop, job_id, stage, {}, discard=False) is ExitStatus.ENDED
    assert workshop.job(job_id).state is JobState.CANCELLED
    assert workshop.evaluation(release_id).results is None
    workshop.assert_settled(training, JobState.SUCCEEDED)


def test_a_classifiers_test_can_be_ended_between_its_layers(workshop, tmp_path):
    PrivateClassifier(ClassifierConfig("cnn", DIGITS, 1, 8, 8)).save(tmp_path)
    test = public_images(*Vault.of(workshop.settings).open_dataset(workshop.public_id))
    looks = 0

    def progress(*, stage: str, step: int, steps: int) -> bool:
        nonlocal looks
        looks += 1
        if looks == 5:
            raise Cancelled
        return False

    with pytest.raises(Cancelled):
        measure_classifier(tmp_path, test, device=torch.device("cpu"), progress=progress)
    assert looks == 5
    measured = measure_classifier(tmp_path, test, device=torch.device("cpu"), progress=progress)
    assert sum(sum(row) for row in measured.confusion) == len(test.labels) == 297
    assert sum(row[label] for label, row in enumerate(measured.confusion)) / 297 == measured.accuracy["classifier"]
