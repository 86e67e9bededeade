"""How jobs reach their runners: by a Celery worker behind a real Redis, and by the embedded dispatcher."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from obscura.wire.words import HoldState, JobState, VerificationKind
from scripts.with_services import REDIS_USUAL, REDIS_VARIABLE, private_redis, redis_answers
from service import queue
from service.audit.findings import FindingCode, verifications
from service.db.session import transaction
from service.ledger.stops import arming_stops
from service.queue import TASK_RUN_JOB
from tests.workers.conftest import IMPATIENT, worker_start
from workers.supervise import app as tasks
from workers.supervise.app import Workplace, make_app, work_on
from workers.supervise.attempts import claim_job, claim_next
from workers.supervise.dispatch import Dispatcher
from workers.supervise.supervisor import runner_environment


@pytest.fixture
def redis_url() -> Iterator[str]:
    """The URL of an empty Redis of this test's own; else a database of the one at OBSCURA_TEST_REDIS, else skip."""
    with private_redis() as own:
        url = own or os.environ.get(REDIS_VARIABLE, REDIS_USUAL)
        if not redis_answers(url):
            pytest.skip("no redis-server is installed and none answers; set OBSCURA_TEST_REDIS to the URL of one")
        yield url


def work_on_message(workshop: Any, job_ids: list[str], tmp_path: Path, *command: str, **changes: Any) -> list[Any]:
    """Let a Celery worker take messages for jobs; returns what it rang for."""
    sent: list[Any] = []
    settings = workshop.settings.model_copy(update=changes)
    by_hand: dict[str, Any] = {"draining": lambda: False, "send": lambda *message: sent.append(message)}
    with (tmp_path / "slot").open("wb") as slot:
        workplace = Workplace(settings, slot, command=command, **by_hand)
        for job_id in job_ids:
            work_on(workplace, workshop.factory, job_id)
    return sent


@pytest.mark.slow
@pytest.mark.services
def test_a_job_runs_through_redis_and_a_celery_worker_which_drains_on_sigterm(workshop, redis_url, tmp_path, warm):
    settings = workshop.settings.model_copy(update={"mode": "celery", "redis_url": redis_url})
    app = make_app(settings)

    def deliver() -> None:
        queue.deliver(workshop.factory, lambda name, args: app.send_task(name, args=args), now=datetime.now(UTC))

    first = workshop.train()
    deliver()
    start = f"import sys; sys.executable = {warm!r}; from celery.__main__ import main; main()"
    command = [sys.executable, "-c", start, "--app", "workers.supervise.app", "worker"]
    command += ["--concurrency", "2", "--loglevel", "info", "--without-gossip", "--without-mingle"]
    log = (tmp_path / "celery.log").open("w")
    worker = subprocess.Popen(command, env=runner_environment(settings, os.environ), stdout=log, stderr=log)
    try:
        assert workshop.wait_for_end(first).state is JobState.SUCCEEDED
        workshop.assert_settled(first, JobState.SUCCEEDED)
        assert workshop.job(first).attempt == 1
        with transaction(workshop.factory, read_only=True) as session:  # the worker has verified the ledger first
            assert VerificationKind.FULL in {row.kind for row in verifications(session)}

        long = workshop.train(images=8000, images_per_iteration=2, epsilon=0.5)
        waiting = workshop.train(epsilon=0.5)
        deliver()
        workshop.wait(lambda: workshop.job(long).progress.get("stage") == "votes")
        assert workshop.job(waiting).attempt == 0  # there are two processes, but one training at a time
        sample = workshop.sample(workshop.job(first).release_id)
        deliver()
        assert workshop.wait_for_end(sample).state is JobState.SUCCEEDED  # a free sample does not wait for it
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=300)
        log.close()
    drained = workshop.job(long)
    assert (drained.state, drained.attempts_lost) == (JobState.QUEUED, 0)  # to be resumed by the next worker
    hold = workshop.hold(long)
    assert hold.state is HoldState.ARMED
    assert workshop.balance().reserved_nano == hold.amount_nano + workshop.hold(waiting).amount_nano


def test_a_worker_that_starts_on_a_broken_ledger_stops_arming(workshop):
    job_id = workshop.train()
    with worker_start(workshop.settings) as start:
        start()
        assert not workshop.do(arming_stops)
        workshop.do(lambda session: session.execute(text("UPDATE accounts SET name = 'others'")))
        start()
    stops = [(stop.scope, stop.code) for stop in workshop.do(arming_stops)]
    assert stops == [(workshop.account_id, FindingCode.ACCOUNT_MISMATCH)]
    assert claim_job(workshop.settings, workshop.factory, job_id=job_id, worker="w", now=datetime.now(UTC)) is None


def test_a_message_for_a_job_that_is_not_there_or_has_ended_changes_nothing(workshop, tmp_path):
    job_id = workshop.train()
    workshop.cancel(job_id)
    assert work_on_message(workshop, [job_id, "job_aaaaaaaaaaaaaaaaaaaa"], tmp_path, "false") == []
    assert workshop.job(job_id).attempt == 0


def test_a_training_that_waited_for_the_slot_is_rung_for_when_it_is_free(workshop, tmp_path):
    first, second = workshop.train(epsilon=0.5), workshop.train(epsilon=0.5)
    queue.deliver(workshop.factory, lambda *_: None, now=datetime.now(UTC))  # while the slot was taken
    sent = work_on_message(workshop, [first], tmp_path, "false", attempts_max=1)
    assert workshop.job(first).state is JobState.FAILED
    assert sent == [(TASK_RUN_JOB, [second])]


def test_the_evaluation_of_a_release_is_rung_for_at_once(workshop, tmp_path, tiny_runner):
    job_id = workshop.train(evaluate=True)
    queue.deliver(workshop.factory, lambda *_: None, now=datetime.now(UTC))
    sent = work_on_message(workshop, [job_id], tmp_path, *tiny_runner)
    assert sent == [(TASK_RUN_JOB, [workshop.evaluation(workshop.job(job_id).release_id).job_id])]


def test_the_celery_settings_never_run_a_training_twice(workshop):
    app = make_app(workshop.settings)
    expected = {"task_acks_late": False, "task_ignore_result": True, "result_backend": None, "task_serializer": "json"}
    expected |= {"worker_prefetch_multiplier": 1, "worker_disable_prefetch": True, "worker_max_tasks_per_child": 1}
    expected |= {"accept_content": ["json"]}
    assert {name: app.conf[name] for name in expected} == expected
    assert {TASK_RUN_JOB, tasks.TASK_RECONCILE} <= set(app.tasks)


def test_a_worker_does_not_ring_again_and_again_for_a_training_that_waits(workshop, tmp_path):
    """It would take its own message at once, and the next, many times in a second."""
    job_id = workshop.train()
    queue.deliver(workshop.factory, lambda *_: None, now=datetime.now(UTC))
    workshop.settings.keys_path.rename(tmp_path / "unmounted")
    assert work_on_message(workshop, [job_id], tmp_path, "false") == []
    assert (workshop.job(job_id).state, workshop.job(job_id).attempt) == (JobState.QUEUED, 0)


# --- the embedded dispatcher ------------------------------------------------------------------------------------------


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


def test_a_dispatcher_that_was_never_started_or_has_nothing_to_do_stops_at_once(workshop):
    Dispatcher(workshop.settings, workshop.factory).stop()
    idle = Dispatcher(workshop.settings, workshop.factory, poll_seconds=60.0)
    idle.start()
    began = time.monotonic()
    idle.stop()
    assert time.monotonic() - began < 30


def test_no_job_begins_on_a_disk_without_room(workshop):
    job_id = workshop.train()
    asked = {"kind": "train", "worker": "here", "now": datetime.now(UTC)}
    short = workshop.settings.model_copy(update={"disk_free_bytes_min": 2**60})
    assert claim_next(short, workshop.factory, **asked) is None
    assert workshop.job(job_id).attempt == 0
    assert claim_next(workshop.settings, workshop.factory, **asked).job_id == job_id
