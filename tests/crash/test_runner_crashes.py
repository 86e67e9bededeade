"""A runner is killed at each of its commits and renames, and the next attempt continues."""

from datetime import UTC, datetime

import numpy as np
import pytest

from obscura.wire.words import EarlyEnd, EntryKind, HoldState, JobState
from service import jobs
from service.audit.proofs import kept_receipts
from service.db.base import release_id_of
from service.db.job_tables import FailureCode, Sample
from service.inspection import inspect_at_start
from service.storage.folder import FolderStorage
from service.storage.interface import key_of
from tests.crash.conftest import on_both_databases

CHARGES = 13  # of a whole training
LATER = datetime(2049, 1, 1, tzinfo=UTC)  # every lease has run out


# Where a runner dies: the state of its hold, the charges that ledger and journal show, and the files that there are.
CRASHES: dict[str, tuple[HoldState, int, int, set[str]]] = {
    "arm.before": (HoldState.HELD, 0, 0, set()),
    "arm.after": (HoldState.ARMED, 0, 0, set()),
    "charge.before@7": (HoldState.ARMED, 6, 6, {"checkpoint"}),
    "charge.after@7": (HoldState.ARMED, 7, 6, {"checkpoint"}),
    "journal.after@7": (HoldState.ARMED, 7, 7, {"checkpoint"}),
    "checkpoint.before": (HoldState.ARMED, 5, 5, set()),
    "checkpoint.after": (HoldState.ARMED, 5, 5, {"checkpoint"}),
    "trained.before": (HoldState.ARMED, CHARGES, CHARGES, {"checkpoint"}),
    "trained.after": (HoldState.ARMED, CHARGES, CHARGES, {"checkpoint", "trained"}),
    "artifact.before": (HoldState.ARMED, CHARGES, CHARGES, {"checkpoint", "trained"}),
    "artifact.after": (HoldState.ARMED, CHARGES, CHARGES, {"checkpoint", "trained", "artifact"}),
    "publish.before": (HoldState.ARMED, CHARGES, CHARGES, {"checkpoint", "trained", "artifact"}),
}


ON_POSTGRESQL = ("arm.before", "charge.after@7", "publish.before")


@pytest.mark.parametrize(
    ("scene", "place"),
    [
        *(("sqlite_url", place) for place in CRASHES),
        *(pytest.param("postgres_url", place, marks=pytest.mark.services) for place in ON_POSTGRESQL),
    ],
    indirect=["scene"],
)
def test_the_next_attempt_goes_on_where_a_killed_runner_was(scene, place):
    state, charges, lines, files = CRASHES[place]
    job_id = scene.train()
    scene.attempt(job_id, die_at=place).killed()

    hold, entries = scene.shop.hold(job_id), scene.entries(job_id)
    assert (scene.shop.job(job_id).state, hold.state) == (JobState.RUNNING, state)
    assert (entries.count(EntryKind.CHARGE), scene.lines(job_id), scene.files(job_id)) == (charges, lines, files)
    assert scene.journalled_nano(job_id) <= hold.charged_nano
    balance = scene.shop.balance()
    assert (balance.spent_nano, balance.reserved_nano) == (0, hold.amount_nano)  # it may have been spent
    assert scene.claim(job_id) is None  # the dead runner's lease still runs

    scene.attempt(job_id, now=LATER).survived()
    scene.shop.assert_settled(job_id, JobState.SUCCEEDED)
    entries = scene.entries(job_id)
    # Every attempt that is about to read the data arms; one that finds what was trained does not.
    arms = (state is HoldState.ARMED) + ("trained" not in files)
    assert [entries.count(kind) for kind in (EntryKind.HOLD, EntryKind.ARM, EntryKind.CAPTURE)] == [1, arms, 1]
    # What was charged before the crash counts: the second attempt had the rest of the hold and no more.
    assert entries.count(EntryKind.CHARGE) == CHARGES
    assert hold.charged_nano <= scene.shop.hold(job_id).charged_nano <= hold.amount_nano
    assert scene.lines(job_id) == entries.count(EntryKind.CHARGE) - (charges - lines)
    scene.assert_sound()


def test_a_runner_killed_after_publishing_has_published(scene):
    job_id = scene.train()
    scene.attempt(job_id, die_at="publish.after").killed()
    scene.shop.assert_settled(job_id, JobState.SUCCEEDED)
    assert scene.files(job_id) == {"checkpoint", "trained", "artifact", "release"}
    assert scene.claim(job_id, now=LATER) is None

    data_dir = scene.shop.settings.data_dir
    assert kept_receipts(FolderStorage(data_dir)) == {}  # the file beside the database came too late
    inspect_at_start(scene.shop.settings, scene.shop.factory, now=datetime.now(UTC))
    assert len(kept_receipts(FolderStorage(data_dir))) == 1
    scene.reconcile()
    assert scene.files(job_id) == {"artifact", "release"}
    scene.assert_sound()


@pytest.mark.parametrize(("place", "hold"), [("arm.before", HoldState.RETURNED), ("arm.after", HoldState.CAPTURED)])
def test_a_job_whose_last_attempt_was_killed_before_it_paid_costs_nothing(scene, place, hold):
    job_id = scene.train()
    scene.attempt(job_id, die_at=place).killed()
    scene.reconcile(attempts_max=1)
    job, held = scene.shop.job(job_id), scene.shop.hold(job_id)
    assert (job.state, job.failure_code) == (JobState.FAILED, FailureCode.WORKER_LOST)
    assert (held.state, held.captured_nano, scene.shop.balance().reserved_nano) == (hold, 0, 0)
    assert scene.files(job_id) == set()
    scene.assert_sound()


@on_both_databases
@pytest.mark.parametrize(("place", "charges"), [("charge.after@7", 7), ("artifact.after", CHARGES)])
def test_what_the_last_attempt_had_paid_for_is_published_by_one_more_that_charges_nothing(scene, place, charges):
    job_id = scene.train()
    scene.attempt(job_id, die_at=place).killed()
    scene.reconcile(attempts_max=1)
    job = scene.shop.job(job_id)
    assert (job.state, job.ended_early) == (JobState.QUEUED, EarlyEnd.WORKER_LOST)
    scene.attempt(job_id).survived()
    scene.shop.assert_settled(job_id, JobState.SUCCEEDED)
    assert scene.entries(job_id).count(EntryKind.CHARGE) == charges
    release = scene.shop.release_of(job_id)
    if charges == CHARGES:
        assert release.incomplete is None
    else:
        assert (release.incomplete["reason"], release.incomplete["made"]) == ("worker_lost", charges)
    scene.assert_sound()


@on_both_databases
def test_when_that_one_is_killed_as_well_the_job_ends_towards_spent_and_leaves_no_artifact(scene):
    job_id = scene.train()
    scene.attempt(job_id, die_at="charge.after@7").killed()
    scene.reconcile(attempts_max=1)
    scene.attempt(job_id, die_at="artifact.after").killed()
    scene.reconcile(attempts_max=1)
    job, held = scene.shop.job(job_id), scene.shop.hold(job_id)
    assert (job.state, job.failure_code) == (JobState.FAILED, FailureCode.WORKER_LOST)
    assert (held.state, scene.entries(job_id).count(EntryKind.CHARGE)) == (HoldState.CAPTURED, 7)
    assert held.captured_nano == held.charged_nano <= held.amount_nano
    assert scene.shop.balance().reserved_nano == 0
    assert scene.files(job_id) == set()  # the work is gone, and the artifact that nobody has paid for
    scene.assert_sound()


def test_a_runner_killed_after_its_training_was_cancelled_leaves_the_release_to_the_next_attempt(scene):
    job_id = scene.train()
    scene.attempt(job_id, die_at="charge.after@7").killed()
    scene.shop.cancel(job_id)
    scene.attempt(job_id, now=LATER).survived()
    scene.shop.assert_settled(job_id, JobState.SUCCEEDED)
    assert scene.shop.release_of(job_id).incomplete["reason"] == "cancelled"
    scene.assert_sound()


@on_both_databases
@pytest.mark.parametrize(("place", "state"), [("evaluated.before", "running"), ("evaluated.after", "succeeded")])
def test_a_killed_evaluation_is_made_again_and_the_release_stays(scene, place, state):
    training = scene.train(evaluate=True, evaluation_samples=100)
    scene.attempt(training).survived()
    release_id, spent_nano = release_id_of(training), scene.shop.balance().spent_nano
    job_id = scene.shop.evaluation(release_id).job_id
    scene.attempt(job_id, die_at=place).killed()
    assert scene.shop.job(job_id).state == state
    if state == "running":
        assert scene.shop.evaluation(release_id).results is None
        scene.attempt(job_id, now=LATER).survived()
    assert scene.shop.job(job_id).state is JobState.SUCCEEDED
    assert set(scene.shop.evaluation(release_id).results["accuracy"]) == {"logistic_regression", "mlp", "cnn"}
    assert scene.entries(job_id) == []
    assert scene.shop.balance().spent_nano == spent_nano
    scene.assert_sound()


@pytest.mark.parametrize(
    ("place", "there", "state"),
    [
        ("sample.before", False, JobState.RUNNING),
        ("sample.after", True, JobState.RUNNING),
        ("drawn.before", True, JobState.RUNNING),
        ("drawn.after", True, JobState.SUCCEEDED),
    ],
)
def test_a_killed_sampling_is_drawn_once_and_costs_nothing(scene, place, there, state):
    training = scene.train()
    scene.attempt(training).survived()
    spent_nano = scene.shop.balance().spent_nano
    job_id = scene.shop.sample(release_id_of(training))
    scene.attempt(job_id, die_at=place).killed()
    directory = scene.shop.settings.data_dir / key_of(scene.shop.do(jobs.made_by, Sample, job_id).id)
    assert (directory.exists(), scene.shop.job(job_id).state) == (there, state)

    if state is JobState.RUNNING:
        scene.attempt(job_id, now=LATER).survived()
    assert scene.shop.job(job_id).state is JobState.SUCCEEDED
    assert scene.entries(job_id) == []
    assert scene.shop.balance().spent_nano == spent_nano
    path = scene.shop.settings.data_dir / scene.shop.do(jobs.made_by, Sample, job_id).path
    with np.load(path, allow_pickle=False) as arrays:
        assert len(arrays["images"]) == 20
    scene.assert_sound()
