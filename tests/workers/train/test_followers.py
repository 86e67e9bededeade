"""Real jobs whose runner starts a second process to train with: what is charged, and who is left when somebody dies."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from obscura.wire.words import HoldState, JobState
from privacy.plans.registry import RECIPES
from service import ledger
from service.errors import Conflict
from service.settings import Settings
from tests.workers.conftest import IMPATIENT, alive
from workers.recipes.ranks import RankLost
from workers.supervise.attempts import Attempt, ExitStatus
from workers.supervise.supervisor import RUNNER_COMMAND, runner_environment
from workers.train import followers as ranks
from workers.train.followers import RankZeroOnly, read_armed_training

CLASSIFIER = {"recipe": "dp_classifier", "architecture": "cnn", "expected_batch": 30, "learning_rate": 0.5, "clip": 0.5}


def followers(workshop: Any) -> list[int]:
    lines = [json.loads(line) for line in workshop.logs().splitlines() if '"follower_started"' in line]
    return [line["pid"] for line in lines]


@pytest.fixture
def supervise_two(workshop: Any, warm: str) -> Callable[[Attempt], None]:
    """Supervise an attempt of a runner and a follower, both forked from a Python that has everything imported."""
    return partial(workshop.supervise, command=(warm, *RUNNER_COMMAND[1:]), processes=2)


@pytest.mark.slow
def test_a_follower_that_is_killed_costs_an_attempt_and_the_next_goes_on(workshop, supervise_two):
    job_id = workshop.train(**CLASSIFIER, epochs=1.2, epsilon=8.0)
    attempt = workshop.claim(job_id)
    thread = threading.Thread(target=supervise_two, args=(attempt,))
    thread.start()
    workshop.wait(lambda: workshop.step(job_id) > 3)
    (first,) = followers(workshop)
    os.kill(first, signal.SIGKILL)
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert workshop.job(job_id).state is JobState.RUNNING, "no verdict about the training"
    assert workshop.hold(job_id).state is HoldState.ARMED
    charged = len(workshop.charges(job_id))

    supervise_two(workshop.claim(job_id))  # at once: the lease was given up
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    assert workshop.job(job_id).attempts_lost == 1
    steps = sum(entry.details["event"]["count"] for entry in workshop.charges(job_id))
    assert 60 <= steps <= 61, "one step is paid for twice, should it have been lost, and no more"
    assert 0 < charged < len(workshop.charges(job_id))
    assert not any(map(alive, followers(workshop)))
    assert len(followers(workshop)) == 2
    assert "rank_lost" in workshop.logs()


@pytest.mark.slow
def test_followers_are_gone_with_their_runner_and_with_a_cancelled_job(workshop, supervise_two):
    job_id = workshop.train(**CLASSIFIER, epochs=12.0, epsilon=8.0)
    attempt = workshop.claim(job_id)
    log = workshop.settings.data_dir / "logs" / "alone.log"
    log.parent.mkdir(parents=True)
    with log.open("wb") as said:  # no supervisor that would end the group
        runner = subprocess.Popen(
            [*RUNNER_COMMAND, "--job", job_id, "--attempt", str(attempt.number)],
            env={**runner_environment(workshop.settings, os.environ), "OBSCURA_PROCESSES": "2"},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    workshop.wait(lambda: bool(followers(workshop)))
    (first,) = followers(workshop)
    workshop.wait(lambda: workshop.hold(job_id).charged_nano > 0)
    os.kill(first, signal.SIGSTOP)  # as if a step took long: it cannot see what becomes of its exchange
    runner.kill()
    runner.wait()
    os.kill(first, signal.SIGCONT)
    workshop.wait(lambda: not alive(first), seconds=20)

    workshop.end_lease(job_id)
    thread = threading.Thread(target=supervise_two, args=(workshop.claim(job_id),))
    thread.start()
    paid = len(workshop.charges(job_id))
    workshop.wait(lambda: len(workshop.charges(job_id)) > paid)
    workshop.cancel(job_id)
    thread.join(timeout=IMPATIENT.grace_seconds)
    assert not thread.is_alive(), "it left by itself"
    workshop.assert_settled(job_id, JobState.SUCCEEDED)  # all ranks ended early together, and rank 0 published
    assert workshop.release_of(job_id).incomplete["reason"] == "cancelled"
    assert len(followers(workshop)) == 2
    assert not any(map(alive, followers(workshop)))


def test_a_lost_rank_is_no_verdict_about_the_training(workshop):
    job_id = workshop.train()
    assert workshop.work(job_id, {"datalens": Mock(side_effect=RankLost)}) == ExitStatus.LOST
    assert (workshop.job(job_id).state, workshop.hold(job_id).state) == (JobState.RUNNING, HoldState.ARMED)


@pytest.mark.parametrize(("status", "ends_in_time", "leaves"), [(1, False, True), (1, True, False), (0, True, False)])
def test_a_runner_whose_exchange_hangs_is_taken_out(workshop, monkeypatch, status, ends_in_time, leaves):
    left, over = list[int](), threading.Event()
    monkeypatch.setattr(os, "_exit", left.append)
    context = workshop.context(Attempt("job_a", 1))
    with subprocess.Popen([sys.executable, "-c", f"raise SystemExit({status})"]) as follower:
        watch = threading.Thread(
            target=ranks._watch, args=(context, [follower], over, 0.01, 60.0 if ends_in_time else 0.1)
        )
        watch.start()
        follower.wait()
        if ends_in_time:
            time.sleep(0.2)
            assert watch.is_alive()
            over.set()
        watch.join(timeout=60)
    assert not watch.is_alive()
    assert left == ([ExitStatus.LOST] if leaves else [])


def test_a_follower_reads_nothing_before_the_runner_has_armed(workshop):
    attempt = workshop.claim(workshop.train())
    with pytest.raises(Conflict, match="not armed"):
        read_armed_training(workshop.context(attempt))
    hold_id = workshop.hold(attempt.job_id).id
    workshop.do(ledger.arm, hold_id=hold_id, attempt=attempt.number, now=datetime.now(UTC))
    assert read_armed_training(workshop.context(attempt)).job.id == attempt.job_id


def test_a_follower_neither_pays_nor_keeps():
    business: Any = RankZeroOnly()
    for ask in (lambda: business.charge(None, "votes"), lambda: business.replace(None), lambda: business.open):
        with pytest.raises(AssertionError, match="only rank 0"):
            ask()


@pytest.mark.parametrize(
    ("processes", "device", "gpus", "wanted"),
    [(0, "cpu", 0, 1), (2, "cpu", 0, 2), (0, "cuda", 1, 1), (0, "cuda", 8, 8), (3, "cuda", 8, 3), (9, "cuda", 8, 8)],
)
def test_a_training_takes_all_gpus_or_what_was_set(processes, device, gpus, wanted, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    settings = Settings(processes=processes)
    found = {name: ranks.processes_wanted(settings, recipe, torch.device(device)) for name, recipe in RECIPES.items()}
    assert found == {**dict.fromkeys(RECIPES, wanted), "class_histogram": 1}


def test_processes_share_the_cores_unless_the_environment_says_how_many(monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        ranks.share_cores(2)
        assert torch.get_num_threads() == threads
        monkeypatch.delenv("OMP_NUM_THREADS")
        ranks.share_cores(4)
        assert torch.get_num_threads() == 1
        ranks.share_cores(2)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
