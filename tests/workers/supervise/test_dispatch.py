"""The embedded dispatcher with real runner processes."""

import threading
import time
from datetime import UTC, datetime

from obscura.wire.words import JobState
from service import jobs, queue
from tests.workers.conftest import IMPATIENT
from workers.supervise import dispatch
from workers.supervise.attempts import claim_next
from workers.supervise.dispatch import Dispatcher


def test_samples_never_wait_for_a_training_and_stopping_loses_nothing(workshop, tiny_runner, monkeypatch):
    def dispatcher() -> Dispatcher:
        return Dispatcher(workshop.settings, workshop.factory, command=tiny_runner, patience=IMPATIENT)

    first = workshop.train(epsilon=0.5, evaluate=True, evaluation_samples=100)
    working = dispatcher()
    working.start()
    release_id = workshop.wait_for_end(first).release_id
    workshop.wait(lambda: workshop.job(first).state is JobState.SUCCEEDED)

    monkeypatch.setenv("TINY_PAUSE", "0.3")
    second, third = workshop.train(epsilon=0.5), workshop.train(epsilon=0.5)
    sample = workshop.sample(release_id)
    queue.deliver(workshop.factory, working.send, now=datetime.now(UTC))
    for free in (sample, workshop.evaluation(release_id).job_id):  # an evaluation follows by itself
        assert workshop.wait_for_end(free).state is JobState.SUCCEEDED
    workshop.wait(lambda: workshop.step(second) >= 1)
    assert workshop.job(third).attempt == 0  # one training at a time
    working.stop()
    assert (workshop.job(second).state, workshop.job(second).attempts_lost) == (JobState.QUEUED, 0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("obscura")]

    monkeypatch.setenv("TINY_PAUSE", "0")
    workshop.cancel(third)
    working = dispatcher()
    working.start()
    assert workshop.wait_for_end(second).state is JobState.SUCCEEDED
    working.stop()
    spent_nano = sum(workshop.hold(job_id).captured_nano for job_id in (first, second))
    assert (workshop.balance().spent_nano, workshop.balance().reserved_nano) == (spent_nano, 0)


def test_a_dispatcher_that_was_never_started_or_has_nothing_to_do_stops_at_once(workshop, monkeypatch):
    monkeypatch.setattr(dispatch, "POLL_SECONDS", 60.0)
    Dispatcher(workshop.settings, workshop.factory).stop()
    idle = Dispatcher(workshop.settings, workshop.factory)
    idle.start()
    began = time.monotonic()
    idle.stop()
    assert time.monotonic() - began < 30


def test_the_oldest_job_of_a_kind_is_claimed_first_and_only_once(workshop):
    first, second = workshop.train(epsilon=0.5), workshop.train(epsilon=0.5)
    asked = {"worker": "test", "now": datetime.now(UTC)}
    claims = [claim_next(workshop.settings, workshop.factory, kind="train", **asked) for _ in range(3)]
    assert [claim.job_id if claim is not None else None for claim in claims] == [first, second, None]
    assert claim_next(workshop.settings, workshop.factory, kind="sample", **asked) is None
    assert workshop.do(jobs.claimable, now=asked["now"]) == []


def test_no_job_begins_on_a_disk_without_room(workshop):
    job_id = workshop.train()
    asked = {"kind": "train", "worker": "here", "now": datetime.now(UTC)}
    short = workshop.settings.model_copy(update={"disk_free_bytes_min": 2**60})
    assert claim_next(short, workshop.factory, **asked) is None
    assert workshop.job(job_id).attempt == 0
    assert claim_next(workshop.settings, workshop.factory, **asked).job_id == job_id
