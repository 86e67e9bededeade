"""A dispatcher or Celery task is killed around its claim, its runner or its verdict, and the job is taken again."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from obscura.wire.words import EntryKind, HoldState, JobState
from service.db.access_tables import Outbox
from tests.crash.conftest import on_both_databases
from tests.workers.conftest import TINY_RUNNER

FAILS = ["false"]  # a runner that dies at once
LEASE = timedelta(seconds=601)


def finish(scene: Any, job_id: str, *, attempts: int, lost: int, **claim: Any) -> None:
    """Let the next attempt end the job, and check everything."""
    scene.attempt(job_id, **claim).survived()
    scene.shop.assert_settled(job_id, JobState.SUCCEEDED)
    job = scene.shop.job(job_id)
    assert (job.attempt, job.attempts_lost) == (attempts, lost)
    scene.assert_sound()


@on_both_databases
def test_a_claim_that_was_not_committed_never_was(scene):
    job_id = scene.train()
    scene.order("work", die_at="claim.before", command=FAILS).killed()
    job = scene.shop.job(job_id)
    assert (job.state, job.attempt, job.lease_owner) == (JobState.QUEUED, 0, None)
    finish(scene, job_id, attempts=1, lost=0)


@on_both_databases
def test_a_claimed_job_without_a_worker_is_rung_for_and_taken_when_its_lease_has_run_out(scene):
    job_id = scene.train()
    scene.order("work", die_at="claim.after", command=FAILS).killed()
    assert (scene.shop.job(job_id).state, scene.shop.hold(job_id).state) == (JobState.RUNNING, HoldState.HELD)
    assert scene.claim(job_id) is None
    assert scene.reconcile(after=timedelta()) == [job_id]  # the message that acceptance has left
    assert scene.reconcile(after=LEASE) == [job_id]
    assert scene.entries(job_id) == [EntryKind.HOLD]  # a lost attempt that never armed costs nothing
    finish(scene, job_id, attempts=2, lost=1, now=scene.shop.job(job_id).lease_until)


def test_a_runner_whose_supervisor_was_killed_at_its_birth_stops_by_itself(scene):
    job_id = scene.train()
    scene.order("work", die_at="spawn.after", command=TINY_RUNNER).killed()
    log = scene.shop.settings.logs_path / f"{job_id}.1.log"
    scene.shop.wait(lambda: "attempt_over" in log.read_text())
    assert "INTERRUPTED" in log.read_text()
    assert scene.shop.job(job_id).state is JobState.RUNNING  # until its lease has run out
    finish(scene, job_id, attempts=2, lost=1, now=scene.shop.job(job_id).lease_until)


@pytest.mark.parametrize(("place", "free", "rung"), [("settle.before", False, 1), ("settle.after", True, 2)])
def test_a_supervisor_killed_around_its_verdict_costs_the_attempt_and_nothing_else(scene, place, free, rung):
    job_id = scene.train()
    scene.order("work", die_at=place, command=FAILS).killed()
    assert scene.shop.job(job_id).state is JobState.RUNNING
    assert len(scene.shop.do(lambda session: session.scalars(select(Outbox.id)).all())) == rung
    lease_until = scene.shop.job(job_id).lease_until
    finish(scene, job_id, attempts=2, lost=1, **({} if free else {"now": lease_until}))


def test_a_message_that_was_acknowledged_and_lost_is_sent_again(scene):
    job_id = scene.train()
    assert scene.reconcile(after=timedelta()) == [job_id]
    scene.order("message", die_at="ack.after", job=job_id).killed()
    job = scene.shop.job(job_id)
    assert (job.state, job.attempt) == (JobState.QUEUED, 0)
    assert scene.reconcile(after=timedelta()) == []  # it may be on its way
    assert scene.reconcile(after=LEASE) == [job_id]
    finish(scene, job_id, attempts=1, lost=0)
