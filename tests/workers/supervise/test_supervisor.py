"""The supervisor with real runner processes: crashes, cancellation, draining, limits."""

import os
import sys
import threading
import time

from obscura.wire.words import EarlyEnd, JobState
from service.db.job_tables import FailureCode
from tests.workers.conftest import alive
from workers.supervise.supervisor import Patience, runner_environment

CANARY = "canary-0815-patient-jones"
SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")


def test_a_training_that_is_cancelled_and_discarded_publishes_nothing(workshop, tiny_runner, monkeypatch):
    monkeypatch.setenv("TINY_PAUSE", "0.5")
    job_id = workshop.train()
    thread = threading.Thread(target=workshop.supervise, args=(job_id, tiny_runner))
    thread.start()
    workshop.wait(lambda: workshop.step(job_id) >= 3)
    workshop.cancel(job_id, discard=True)
    thread.join(timeout=300)
    workshop.assert_settled(job_id, JobState.CANCELLED)
    assert not (workshop.settings.data_dir / "work" / job_id).exists()
    assert 0 < workshop.hold(job_id).captured_nano < workshop.hold(job_id).amount_nano
    assert workshop.job(job_id).release_id is None


def test_a_training_whose_time_is_over_publishes_what_was_paid_for(workshop, tiny_runner, monkeypatch):
    monkeypatch.setenv("TINY_KILL", "18")
    job_id = workshop.train()
    workshop.supervise(job_id, tiny_runner)
    charged_nano = workshop.hold(job_id).charged_nano
    # Its time is over before the second attempt has begun: the runner is told so, and is gone.
    workshop.supervise(job_id, SLEEPS, job_seconds_max=1)
    assert (workshop.job(job_id).state, workshop.job(job_id).ended_early) == (JobState.QUEUED, EarlyEnd.TIME_LIMIT)
    workshop.supervise(job_id, tiny_runner)
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    release = workshop.release_of(job_id)
    assert release.incomplete["reason"] == "time_limit"
    assert workshop.hold(job_id).captured_nano == charged_nano  # the last attempt charged nothing


def test_a_runner_that_ignores_the_time_limit_is_killed_with_its_children(workshop, tmp_path):
    child_file = tmp_path / "child"
    script = (
        "import pathlib, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(child_file)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    patience = Patience(grace_seconds=0.3, look_seconds=0.05, cancel_look_seconds=0.1)
    job_id = workshop.train()
    workshop.supervise(job_id, (sys.executable, "-c", script), patience, job_seconds_max=1)
    workshop.assert_failed(job_id, FailureCode.TIME_LIMIT)
    workshop.wait(lambda: not alive(int(child_file.read_text())), seconds=60)


def test_a_superseded_attempt_loses_its_runner_at_once(workshop):
    job_id = workshop.train()
    attempt = workshop.claim(job_id)
    workshop.give_back(job_id, attempt.number)
    second = workshop.claim(job_id)
    sleeps = (sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)")
    patience = Patience(grace_seconds=60, look_seconds=0.05)
    began = time.monotonic()
    workshop.supervise(attempt, sleeps, patience, heartbeat_seconds=0.2)
    assert time.monotonic() - began < 50  # not the grace period
    job = workshop.job(job_id)
    assert (job.state, job.attempt) == (JobState.RUNNING, second.number)


def test_the_lease_is_renewed_while_the_runner_works(workshop):
    job_id, drain = workshop.train(), threading.Event()
    attempt = workshop.claim(job_id)
    first = workshop.job(job_id).lease_until
    changes = {"draining": drain.is_set, "heartbeat_seconds": 0.2}
    thread = threading.Thread(target=workshop.supervise, args=(attempt, SLEEPS), kwargs=changes)
    thread.start()
    workshop.wait(lambda: workshop.job(job_id).lease_until > first, seconds=60)
    drain.set()
    thread.join(timeout=300)
    assert workshop.job(job_id).state is JobState.QUEUED


def test_a_failing_runner_leaks_nothing_not_even_into_the_operators_log(workshop, tiny_runner, monkeypatch):
    monkeypatch.setenv("TINY_CANARY", CANARY)
    job_id = workshop.train()
    attempt = workshop.claim(job_id)
    workshop.supervise(attempt, tiny_runner)
    workshop.assert_failed(job_id, FailureCode.TRAINING_FAILED)
    path = workshop.settings.logs_path / f"{attempt.job_id}.{attempt.number}.log"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "tiny_runner.py" in path.read_text()
    assert CANARY not in path.read_text()
    with workshop.factory.kw["bind"].connect() as connection:
        assert CANARY not in "\n".join(connection.connection.iterdump())


def test_logs_older_than_they_are_kept_go_when_a_job_begins(workshop, tiny_runner):
    logs = workshop.settings.logs_path
    logs.mkdir(exist_ok=True)
    names = ("job_old.1.log", "job_new.1.log", "notes.txt")
    for name in names:
        (logs / name).touch()
    for name in ("job_old.1.log", "notes.txt"):
        os.utime(logs / name, (time.time() - 8 * 86_400,) * 2)
    workshop.settings = workshop.settings.model_copy(update={"logs_days": 7})
    attempt = workshop.claim(workshop.train())
    workshop.supervise(attempt, tiny_runner)
    left = {path.name for path in logs.iterdir()}
    assert left == {"job_new.1.log", "notes.txt", f"{attempt.job_id}.{attempt.number}.log"}


def test_the_runner_reads_the_same_settings(workshop, monkeypatch):
    for name, value in runner_environment(workshop.settings, {}).items():
        monkeypatch.setenv(name, value)
    again = type(workshop.settings)()
    assert again == workshop.settings.model_copy(update={"data_dir": workshop.settings.data_dir.resolve()})
