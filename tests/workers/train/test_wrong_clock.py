"""Workers whose clock is wrong: none starts, claims or arms; what waits goes on once the clock is right."""

import datetime as real
from datetime import UTC, datetime

import pytest

from obscura.wire.words import HoldState, JobState
from service.errors import ClockRefused
from service.ledger import set_frozen
from tests.workers.conftest import worker_start
from workers.supervise.attempts import ExitStatus, claim_job, claim_next
from workers.train.kinds import train

WRONG = (datetime(1971, 3, 1, tzinfo=UTC), datetime(2200, 3, 1, tzinfo=UTC))


class Clock1971(real.datetime):
    """A clock whose battery is empty."""

    @classmethod
    def now(cls, tz: real.tzinfo | None = None) -> real.datetime:
        return real.datetime(1971, 3, 1, tzinfo=tz)


def test_a_runner_with_a_wrong_clock_arms_nothing_and_the_job_goes_on_later(workshop, monkeypatch):
    job_id = workshop.train()
    kinds = [entry.kind for entry in workshop.entries()]
    with monkeypatch.context() as wrong:
        wrong.setattr(train, "datetime", Clock1971)
        assert workshop.work(job_id) is ExitStatus.INTERRUPTED
    assert (workshop.job(job_id).state, workshop.hold(job_id).state) == (JobState.QUEUED, HoldState.HELD)
    assert [entry.kind for entry in workshop.entries()] == kinds
    assert workshop.job(job_id).attempts_lost == 0
    assert workshop.work(job_id) is ExitStatus.ENDED
    workshop.assert_settled(job_id, JobState.SUCCEEDED)


@pytest.mark.parametrize("clock", WRONG, ids=str)
def test_nobody_claims_by_a_wrong_clock(workshop, clock):
    """By a clock that is far ahead, every lease is over."""
    job_id = workshop.train()
    asked = {"worker": "w", "now": clock}
    with pytest.raises(ClockRefused):
        claim_job(workshop.settings, workshop.factory, job_id=job_id, **asked)
    assert claim_next(workshop.settings, workshop.factory, kind="train", **asked) is None
    assert (workshop.job(job_id).state, workshop.job(job_id).attempt) == (JobState.QUEUED, 0)


def test_a_worker_does_not_start_by_a_clock_that_is_behind_the_ledger(workshop):
    """Rather, the ledger has been written by one that is ahead: either way somebody has to look."""
    with worker_start(workshop.settings) as start:
        start()
        ahead = datetime(2049, 1, 1, tzinfo=UTC)
        workshop.do(set_frozen, account_id=workshop.account_id, frozen=True, reason="a test", now=ahead)
        with pytest.raises(SystemExit, match=r"clock of this machine is wrong: it shows .* more than a day behind"):
            start()
