"""A process that is killed between the holds of a training on several accounts: all of them moved, or none."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from obscura.wire.words import EntryKind, HoldState, JobState
from service import ledger
from service.inspection import inspect_ledger
from tests.crash.test_service_crashes import jobs_of
from tests.workers.conftest import OPTIONS
from tests.workers.small_trainings import digits

LATER = datetime(2049, 1, 1, tzinfo=UTC)  # every lease has run out
# Where a runner dies: the state of every hold, and the charges that each log shows.
RUNNERS = {
    "joint.arm": (HoldState.HELD, 0),
    "joint.charge": (HoldState.ARMED, 0),
    "joint.charge@7": (HoldState.ARMED, 6),
    "charge.after@7": (HoldState.ARMED, 7),
    "joint.capture": (HoldState.ARMED, 13),
}


class Joint:
    """A scene with a second cohort."""

    def __init__(self, scene: Any) -> None:
        self.scene, self.shop = scene, scene.shop
        self.account_id, self.dataset_id = self.shop.add_cohort("later", digits(1797, first=1500), epsilon=12.0)

    def train(self) -> str:
        return self.scene.train(further=[self.dataset_id])

    def ask(self, die_at: str = "", path: str = "/v1/jobs", **body: Any) -> Any:
        sent = {"method": "POST", "path": path, "bell": str(self.scene.folder / "bell")}
        sent |= {"json": body, "headers": {"Idempotency-Key": "the-same-key"}}
        return self.scene.order("request", die_at=die_at, **sent)

    def states(self, job_id: str) -> set[HoldState]:
        return {hold.state for hold in self.shop.holds(job_id).values()}

    def charges(self, job_id: str) -> list[int]:
        logs = [self.shop.do(ledger.entries, each, 0, 1000) for each in self.shop.holds(job_id)]
        return [sum(entry.kind is EntryKind.CHARGE and entry.job_id == job_id for entry in log) for log in logs]

    def assert_sound(self) -> None:
        assert inspect_ledger(self.shop.settings, self.shop.factory, thorough=True).findings == ()
        self.scene.assert_sound()


@pytest.fixture
def joint(any_scene: Any) -> Joint:
    return Joint(any_scene)


def test_a_request_that_died_between_the_holds_has_held_nothing(joint):
    body = {"dataset_id": joint.shop.dataset_id, "further_dataset_ids": [joint.dataset_id], "recipe": "datalens"}
    body |= {"epsilon": 1.0, "options": OPTIONS}
    joint.ask("joint.hold", **body).killed()
    assert jobs_of(joint.scene) == []
    assert [joint.shop.do(ledger.balance, each).held_nano for each in (joint.account_id, joint.shop.account_id)] == [
        0,
        0,
    ]
    told = json.loads(joint.ask(**body).survived().said)
    assert jobs_of(joint.scene) == [told["id"]]
    assert joint.states(told["id"]) == {HoldState.HELD}
    assert [cohort["account_id"] for cohort in told["cohorts"]] == [joint.shop.account_id, joint.account_id]
    joint.scene.attempt(told["id"]).survived()
    joint.scene.reconcile()
    joint.assert_sound()


@pytest.mark.parametrize("place", ["joint.hold", "joint.hold@3", "hold.after@2"])
def test_a_request_for_a_search_that_died_between_the_holds_has_held_none_of_its_trials(joint, place):
    """The holds of three trials on two accounts: before the second one, before the last one, and after the fourth."""
    body = {"name": "temperatures", "dataset_id": joint.shop.dataset_id, "further_dataset_ids": [joint.dataset_id]}
    body |= {"recipe": "datalens", "epsilon": 0.5, "trials": [{"options": OPTIONS}] * 3}
    joint.ask(place, path="/v1/sweeps", **body).killed()
    assert jobs_of(joint.scene) == []
    payers = joint.shop.account_id, joint.account_id
    assert [joint.shop.do(ledger.balance, each).held_nano for each in payers] == [0, 0]
    told = json.loads(joint.ask(path="/v1/sweeps", **body).survived().said)
    again = json.loads(joint.ask(path="/v1/sweeps", **body).survived().said)
    assert told["id"] == again["id"]
    trials = [trial["job_id"] for trial in told["trials"]]
    assert (sorted(jobs_of(joint.scene)), len(trials)) == (sorted(trials), 3)
    assert {state for job_id in trials for state in joint.states(job_id)} == {HoldState.HELD}
    held = {cohort["account_id"]: cohort["totals"]["held_nano"] for cohort in told["cohorts"]}
    assert held == {each: joint.shop.do(ledger.balance, each).held_nano for each in payers}
    joint.scene.attempt(trials[0]).survived()
    joint.ask(path=f"/v1/sweeps/{told['id']}/cancel").survived()
    assert [joint.states(job_id) for job_id in trials] == [{HoldState.CAPTURED}, *[{HoldState.RETURNED}] * 2]
    joint.assert_sound()


@pytest.mark.parametrize("place", RUNNERS)
def test_the_next_attempt_goes_on_after_a_runner_died_between_the_holds(joint, place):
    state, charges = RUNNERS[place]
    job_id = joint.train()
    joint.scene.attempt(job_id, die_at=place).killed()
    assert joint.states(job_id) == {state}
    assert joint.charges(job_id) == [charges] * 2
    joint.scene.attempt(job_id, now=LATER).survived()
    assert joint.shop.job(job_id).state is JobState.SUCCEEDED
    assert joint.states(job_id) == {HoldState.CAPTURED}
    held = joint.shop.holds(job_id)
    for account_id, hold in held.items():
        balance = joint.shop.do(ledger.balance, account_id)
        assert (balance.spent_nano, balance.held_nano) == (hold.captured_nano, 0)
    joint.scene.reconcile()
    joint.assert_sound()


def test_a_cancellation_that_died_between_the_holds_has_returned_nothing(joint):
    job_id = joint.train()
    joint.ask("joint.settle", f"/v1/jobs/{job_id}/cancel").killed()
    assert (joint.shop.job(job_id).state, joint.states(job_id)) == (JobState.QUEUED, {HoldState.HELD})
    joint.ask(path=f"/v1/jobs/{job_id}/cancel").survived()
    assert (joint.shop.job(job_id).state, joint.states(job_id)) == (JobState.CANCELLED, {HoldState.RETURNED})
    joint.assert_sound()
