"""Supervised runners, in real processes: hangs, crashes, cancellation, draining, limits."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from obscura.wire.words import EarlyEnd, HoldState, JobState
from service import jobs
from service.db.job_tables import FailureCode
from service.errors import StaleAttempt
from tests.warm import processes
from tests.workers.conftest import alive, state_of
from workers.supervise import attempts, supervisor
from workers.supervise.attempts import Listener, SignsOfLife
from workers.supervise.supervisor import Patience, runner_environment

SUPERVISE = (  # job, attempt and the runner's command
    "import sys\n"
    "from service.db.session import make_engine, make_session_factory\n"
    "from service.settings import Settings\n"
    "from workers.supervise.attempts import Attempt\n"
    "from workers.supervise.supervisor import supervise\n"
    "settings, attempt = Settings(), Attempt(sys.argv[1], int(sys.argv[2]))\n"
    "factory = make_session_factory(make_engine(settings.database_url))\n"
    "supervise(settings, factory, attempt, draining=lambda: False, command=sys.argv[3:])\n"
)


class Clock:
    """A clock that stands, but for the seconds that a test lets pass: at most as many at a look as count unheard."""

    def __init__(self) -> None:
        self.ahead, self._seconds = 0.0, 0.0

    def __call__(self) -> float:
        passed = min(self.ahead, attempts._UNHEARD_SECONDS)
        self.ahead -= passed
        self._seconds += passed
        return self._seconds


OFTEN_LOOKING = Patience(grace_seconds=20, look_seconds=0.02, cancel_look_seconds=0.1)


@pytest.fixture
def listeners_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which supervisors of this process measure silence."""
    clock = Clock()
    monkeypatch.setattr(supervisor, "Listener", lambda: Listener(clock=clock))
    return clock


@pytest.fixture
def supervised(workshop: Any, warm: str) -> Callable[..., AbstractContextManager[threading.Thread]]:
    """Supervise a new attempt in a thread; it is over when the block ends."""

    @contextmanager
    def supervising(
        job_id: str, command: tuple[str, ...], patience: Patience = OFTEN_LOOKING, **more: Any
    ) -> Iterator[Any]:
        attempt = workshop.claim(job_id)
        thread = threading.Thread(target=workshop.supervise, args=(attempt, command, patience), kwargs=more)
        thread.start()
        try:
            yield thread
            thread.join(timeout=400)  # two processes of a training that wait for each other, on a machine that is busy
        finally:
            send(signal.SIGKILL, *processes(warm, job_id, "--attempt"))
            thread.join(timeout=120)
        assert not thread.is_alive()

    return supervising


def send(number: signal.Signals, *pids: int) -> None:
    """Send a signal to those of the processes that have not ended meanwhile."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def stop(workshop: Any, *pids: int) -> None:
    """Stop processes while none of them writes: a stopped writer of SQLite keeps everybody waiting."""
    while True:
        send(signal.SIGSTOP, *pids)
        path = workshop.factory.kw["bind"].url.database
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=0.5)) as database:
            database.execute("BEGIN IMMEDIATE")
            return
        send(signal.SIGCONT, *pids)
        time.sleep(0.05)


def stopped(workshop: Any, warm: str, job_id: str) -> int:
    workshop.wait(lambda: any(state_of(pid) == "T" for pid in processes(warm, job_id, "--signs")))
    (runner,) = processes(warm, job_id, "--signs")
    return runner


def silence_of(workshop: Any, job_id: str) -> int | None:
    return workshop.job(job_id).progress.get("silent_minutes")


def test_a_runner_that_is_stopped_is_shown_ended_and_resumed(
    workshop, warm, tiny_runner, supervised, monkeypatch, listeners_clock
):
    monkeypatch.setenv("TINY_STOP", "7")
    job_id = workshop.train()
    with supervised(job_id, tiny_runner) as thread:
        runner = stopped(workshop, warm, job_id)
        listeners_clock.ahead = 400.0
        workshop.wait(lambda: silence_of(workshop, job_id) is not None)
        assert silence_of(workshop, job_id) == 5  # half of what is allowed, however long it really was
        assert alive(runner)
        listeners_clock.ahead = 400.0
        thread.join(timeout=120)
        workshop.wait(lambda: not alive(runner))
    job, hold = workshop.job(job_id), workshop.hold(job_id)
    assert (job.state, hold.state) == (JobState.RUNNING, HoldState.ARMED)
    charged_nano = hold.charged_nano
    workshop.supervise(job_id, tiny_runner)  # at once: the lease was given up
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    assert workshop.job(job_id).attempts_lost == 1
    assert silence_of(workshop, job_id) is None
    assert workshop.hold(job_id).charged_nano > charged_nano > 0


def test_a_runner_that_goes_on_is_no_longer_shown_as_silent(
    workshop, warm, tiny_runner, supervised, monkeypatch, listeners_clock
):
    monkeypatch.setenv("TINY_STOP", "2,3")
    job_id = workshop.train()
    with supervised(job_id, tiny_runner):
        runner = stopped(workshop, warm, job_id)
        listeners_clock.ahead = 400.0
        workshop.wait(lambda: silence_of(workshop, job_id) is not None)
        send(signal.SIGCONT, runner)
        workshop.wait(lambda: silence_of(workshop, job_id) is None)
        assert stopped(workshop, warm, job_id) == runner  # after the step that it went on with
        workshop.cancel(job_id)
        send(signal.SIGCONT, runner)
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    assert workshop.job(job_id).attempts_lost == 0


def test_a_stopped_runner_is_cancelled_within_a_short_time(workshop, warm, tiny_runner, supervised, monkeypatch):
    monkeypatch.setenv("TINY_STOP", "7")
    job_id = workshop.train()
    with supervised(job_id, tiny_runner, replace(OFTEN_LOOKING, wind_up_silent_seconds=0.5)) as thread:
        stopped(workshop, warm, job_id)
        workshop.cancel(job_id)
        thread.join(timeout=120)
        assert not thread.is_alive(), "it has ten minutes, which are for those that live"
    job = workshop.job(job_id)
    assert (job.state, job.ended_early) == (JobState.QUEUED, EarlyEnd.CANCELLED)
    charged_nano = workshop.hold(job_id).charged_nano
    workshop.supervise(job_id, tiny_runner)  # publishes what was paid for
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    assert workshop.release_of(job_id).incomplete["reason"] == "cancelled"
    assert workshop.hold(job_id).captured_nano == charged_nano


@pytest.mark.slow
def test_a_follower_that_is_stopped_ends_the_whole_group(workshop, warm, supervised, listeners_clock):
    """The supervisor kills the runner's group, in which its followers are."""
    command = (warm, "-m", "workers.train.runner")
    options = {"architecture": "cnn", "expected_batch": 60, "learning_rate": 0.5, "clip": 0.5}
    job_id = workshop.train(recipe="dp_classifier", epsilon=8.0, epochs=2.0, **options)
    with supervised(job_id, command, processes=2) as thread:
        workshop.wait(lambda: workshop.step(job_id) > 3)
        (follower,) = processes(warm, job_id, "--rank")
        stop(workshop, follower)
        listeners_clock.ahead = float("inf")  # the other process may still give some signs
        thread.join(timeout=120)
        assert not thread.is_alive()
        workshop.wait(lambda: not processes(warm, job_id, "--attempt"), seconds=60)
    listeners_clock.ahead = 0.0
    assert workshop.job(job_id).state is JobState.RUNNING, "no verdict about the training"
    workshop.supervise(job_id, command, processes=2)
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    assert workshop.job(job_id).attempts_lost == 1


@pytest.mark.parametrize("stopped", ["supervisor", "everybody"])
def test_a_stopped_supervisor_is_replaced_and_fenced_when_it_goes_on(workshop, warm, tiny_runner, supervised, stopped):
    job_id = workshop.train()
    first = workshop.claim(job_id)
    environment = {**runner_environment(workshop.settings, os.environ), "TINY_PAUSE": "0.5"}
    command = [warm, "-c", SUPERVISE, job_id, str(first.number), *tiny_runner]
    old = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        workshop.wait(lambda: workshop.step(job_id) >= 3)
        (pids, (runner,)) = processes(warm, job_id, "-c"), processes(warm, job_id, "--signs")
        pids += [runner] if stopped == "everybody" else []
        stop(workshop, *pids)
        workshop.end_lease(job_id)
        with supervised(job_id, tiny_runner):
            pass
        workshop.assert_settled(job_id, JobState.SUCCEEDED)
        captured_nano, entries = workshop.hold(job_id).captured_nano, len(workshop.entries())
        send(signal.SIGCONT, *pids)
        old.wait(timeout=120)
        workshop.wait(lambda: not alive(runner), seconds=60)
    finally:
        old.kill()
        old.wait()
        send(signal.SIGKILL, *processes(warm, job_id, "--attempt"))
    assert workshop.job(job_id).attempt == first.number + 1
    assert (workshop.hold(job_id).captured_nano, len(workshop.entries())) == (captured_nano, entries)


def test_silence_is_counted_while_somebody_listens():
    clock = Clock()
    listener = Listener(clock=clock)
    try:
        given = SignsOfLife(listener.theirs, clock=clock)
        for _ in range(3):
            clock._seconds += 2
            listener.listen()
        assert listener.silent_seconds == 6
        clock._seconds += 10_000  # this process was stopped, too
        assert listener.listen() == 6 + attempts._UNHEARD_SECONDS
        given.give()
        assert listener.listen() == 0
    finally:
        listener.close()


def test_giving_a_sign_neither_waits_nor_fails():
    clock = Clock()
    clock.ahead = float("inf")  # every call is due
    listener = Listener(clock=clock)
    given = SignsOfLife(listener.theirs, clock=clock)
    for _ in range(100_000):  # more than a pipe holds
        given.give()
    os.close(listener._mine)  # the supervisor is gone
    given.give()
    os.close(listener.theirs)
    SignsOfLife(None).give()


def test_a_sign_is_given_before_every_layer_and_after_every_step_of_an_optimiser(warm):
    script = (
        "import torch\n"
        "from workers.train.process import sign_while_computing\n"
        "given = []\n"
        "sign_while_computing(lambda: given.append(1))\n"
        "network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))\n"
        "adam = torch.optim.Adam(network.parameters())\n"
        "network(torch.ones(1, 2)).sum().backward()\n"
        "passed = len(given)\n"
        "adam.step()\n"
        "print(passed, len(given))\n"
    )
    said = subprocess.run([warm, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["4", "5"]  # the whole network is a layer, too


def test_what_is_told_of_a_silence_is_one_coarse_number():
    assert {jobs.reported_silence(seconds, 600) for seconds in (0.0, 299.9)} == {None}
    assert {jobs.reported_silence(seconds, 600) for seconds in (300.0, 480.0, 600.0, 9000.0)} == {5}
    assert jobs.reported_silence(3.0, 4) == 1


def test_a_superseded_attempt_tells_no_silence(workshop):
    job_id = workshop.train()
    first = workshop.claim(job_id)
    tell = {"job_id": job_id, "minutes": 5}
    workshop.do(jobs.report_silence, attempt=first.number, **tell)
    version = workshop.job(job_id).progress_version
    workshop.do(jobs.report_silence, attempt=first.number, **tell)
    assert (silence_of(workshop, job_id), workshop.job(job_id).progress_version) == (5, version)
    workshop.give_back(job_id, first.number)
    with pytest.raises(StaleAttempt):
        workshop.do(jobs.report_silence, attempt=first.number, **tell)
    workshop.claim(job_id)  # whoever takes over begins afresh
    assert silence_of(workshop, job_id) is None


# --- with real runner processes ---------------------------------------------------------------------------------------


CANARY = "canary-0815-patient-jones"
SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")


def test_a_training_that_is_cancelled_and_discarded_publishes_nothing(workshop, tiny_runner, supervised, monkeypatch):
    monkeypatch.setenv("TINY_PAUSE", "0.5")
    job_id = workshop.train()
    with supervised(job_id, tiny_runner):
        workshop.wait(lambda: workshop.step(job_id) >= 3)
        workshop.cancel(job_id, discard=True)
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
    assert workshop.release_of(job_id).incomplete["reason"] == "time_limit"
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


def test_the_lease_is_renewed_while_the_runner_works(workshop, supervised):
    job_id, drain = workshop.train(), threading.Event()
    with supervised(job_id, SLEEPS, draining=drain.is_set, heartbeat_seconds=0.2):
        first = workshop.job(job_id).lease_until
        workshop.wait(lambda: workshop.job(job_id).lease_until > first, seconds=60)
        drain.set()
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
