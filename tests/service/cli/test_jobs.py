"""What `obscura jobs cancel` asks before it throws away what was paid for."""

from typing import Any

import pytest

from obscura.cli.console import CliError, Exit
from obscura.cli.jobs import confirm, price_of_nothing
from obscura.client import Job


def job(**changes: Any) -> Job:
    facts: dict[str, Any] = dict.fromkeys(Job.model_fields)
    progress = {"charged_nano": 5, "planned_nano": 10, "charged_epsilon": 0.41234, "planned_epsilon": 1.0}
    facts |= {"id": "job_x", "kind": "train", "state": "running", "options": {}, "price_nano": 10, "price_epsilon": 1.0}
    facts |= {"cancel_requested": False, "created_at": "2030-01-01T00:00:00Z", "progress": progress}
    return Job.model_validate(facts | {"publishes_if_cancelled": True} | changes)


def test_discarding_asks_with_the_price():
    question = price_of_nothing(job(), discard=True)
    assert question is not None
    assert "epsilon 0.413 of 1.0" in question
    assert "nothing of it would be published. Discard it?" in question


def test_a_cancellation_that_publishes_asks_nothing():
    assert price_of_nothing(job(), discard=False) is None


def test_one_that_could_publish_nothing_says_so_before():
    question = price_of_nothing(job(publishes_if_cancelled=False), discard=False)
    assert question is not None
    assert "epsilon 0.413 of 1.0, for good, and has nothing yet that could be published" in question


@pytest.mark.parametrize("discard", [False, True])
def test_what_costs_nothing_or_has_ended_is_not_asked_about(discard):
    free = {"charged_nano": 0, "planned_nano": 10, "charged_epsilon": 0.0, "planned_epsilon": 1.0}
    assert price_of_nothing(job(progress=free, publishes_if_cancelled=False), discard=discard) is None
    assert price_of_nothing(job(state="succeeded", publishes_if_cancelled=None), discard=discard) is None


def test_nobody_at_the_terminal_means_no(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(CliError, match="--yes") as refused:
        confirm("Really?")
    assert refused.value.code is Exit.USAGE
