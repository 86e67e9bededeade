"""What a machine lacks for a while, or a wrong clock, never costs what a training has paid for: the job waits."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from obscura.wire.words import HoldState, JobState
from service import ledger
from service.audit.findings import Finding, FindingCode, clear_stops, stop_arming
from service.errors import ClockRefused
from tests.service.steps import charge
from tests.workers.conftest import worker_start
from tests.workers.small_trainings import published_by
from tests.workers.tiny_runner import TRAINERS as TINY
from workers.recipes.interface import Run
from workers.supervise.attempts import ExitStatus, claim_job, claim_next
from workers.train import runner
from workers.train.kinds import train as training


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(runner, "_PLACE_SECONDS", 0.0)


def assert_waits(workshop: Any, job_id: str) -> None:
    job = workshop.job(job_id)
    assert (job.state, job.attempts_lost) == (JobState.QUEUED, 0)
    assert workshop.balance().reserved_nano > 0


def test_a_release_that_cannot_be_written_is_written_when_it_can(workshop):
    """The disk of the releases is full, away or broken from the end of the training on."""
    job_id, releases = workshop.train(), workshop.settings.data_dir / "releases"

    def trained(training: Run) -> Any:
        outcome = TINY["datalens"](training)
        releases.write_bytes(b"")  # no folder can be made there
        return outcome

    assert workshop.work(job_id, {"datalens": trained}) is ExitStatus.ENDED
    for _ in range(2 * workshop.settings.attempts_max):
        assert_waits(workshop, job_id)
        assert workshop.work(job_id, TINY) is ExitStatus.INTERRUPTED
    releases.unlink()
    published_by(workshop, job_id, TINY)
    assert workshop.release_of(job_id).incomplete is None


def test_a_job_waits_for_the_disk_of_the_keys(workshop, stream):
    """Another attempt would find no key, and the keys of what was not deleted come back with their disk."""
    job_id, keys = workshop.begin(), workshop.settings.keys_path
    away = keys.with_name("unmounted")
    keys.rename(away)
    this: dict[str, Any] = {"job_id": job_id, "worker": "test", "now": datetime.now(UTC)}
    assert claim_job(workshop.settings, workshop.factory, **this) is None
    assert "keys_missing" in stream.getvalue()
    assert_waits(workshop, job_id)
    away.rename(keys)
    published_by(workshop, job_id, TINY)


@pytest.mark.parametrize("unusable", ["gone", "damaged"])
def test_a_release_that_cannot_be_signed_is_signed_when_it_can(workshop, unusable):
    """The key of the ledger is lost or spoilt while a training runs."""
    job_id, path = workshop.train(), workshop.settings.ledger_key_path
    whole = path.read_bytes()

    def trained(training: Run) -> Any:
        outcome = TINY["datalens"](training)
        path.unlink() if unusable == "gone" else path.write_bytes(b"nothing")
        return outcome

    assert workshop.work(job_id, {"datalens": trained}) is ExitStatus.INTERRUPTED
    assert_waits(workshop, job_id)
    assert path.exists() == (unusable == "damaged"), "nobody makes another one"
    path.write_bytes(whole)
    path.chmod(0o600)
    published_by(workshop, job_id, TINY)


def test_a_training_that_has_paid_waits_for_an_extractor_that_its_machine_lacks(workshop):
    job_id = workshop.train(recipe="dp_classifier", epsilon=1.0, architecture="pretrained_linear", extractor="tiny")
    claimed, hold_id, now = workshop.claim(job_id), workshop.job(job_id).hold_id, datetime.now(UTC)
    workshop.do(ledger.arm, hold_id=hold_id, attempt=1, now=now)
    workshop.do(charge, hold_id=hold_id, attempt=1, amount_nano=1, stage="steps", now=now)
    workshop.give_back(claimed.job_id)
    this: dict[str, Any] = {"kind": "train", "worker": "test", "now": datetime.now(UTC)}
    following = workshop.train()
    first = claim_next(workshop.settings, workshop.factory, **this)
    assert first.job_id == following, "nobody waits for a job that waits"
    assert_waits(workshop, job_id)
    workshop.settings.extractors_path.mkdir()
    for suffix in (".json", ".safetensors"):
        (workshop.settings.extractors_path / f"tiny{suffix}").write_bytes(b"damaged")
    assert workshop.work(job_id) is ExitStatus.INTERRUPTED
    assert_waits(workshop, job_id)


def test_an_attempt_to_publish_that_meets_a_stop_waits_until_it_is_lifted(workshop, tiny_runner):
    """The stop comes between its claim and its first look."""
    job_id = workshop.begin()
    workshop.cancel(job_id)
    attempt = workshop.claim(job_id)
    finding = Finding(FindingCode.CHAIN_BROKEN, "found just now", workshop.account_id)
    workshop.do(stop_arming, (finding,), now=datetime.now(UTC))
    workshop.supervise(attempt, tiny_runner)
    assert_waits(workshop, job_id)
    workshop.do(clear_stops)
    published_by(workshop, job_id, TINY)


def test_killing_an_attempt_to_publish_again_and_again_does_not_lose_the_release(workshop):
    job_id = workshop.begin()
    workshop.cancel(job_id)
    for _ in range(workshop.settings.attempts_max):
        workshop.supervise(job_id, ("false",))
        assert workshop.job(job_id).finished_at is None
    published_by(workshop, job_id, TINY)


def test_what_waits_can_be_discarded(workshop):
    """A job that is only to be ended needs nothing of its machine."""
    job_id = workshop.begin()
    workshop.claim(job_id)  # by a worker that dies
    workshop.settings.keys_path.rename(workshop.settings.data_dir / "unmounted")
    workshop.cancel(job_id, discard=True)
    later = datetime.now(UTC) + timedelta(hours=1)
    assert claim_job(workshop.settings, workshop.factory, job_id=job_id, worker="test", now=later) is None
    workshop.assert_settled(job_id, JobState.CANCELLED)


# --- a wrong clock ----------------------------------------------------------------------------------------------------

WRONG = (datetime(1971, 3, 1, tzinfo=UTC), datetime(2200, 3, 1, tzinfo=UTC))


class Clock1971(datetime):
    """A clock whose battery is empty."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(1971, 3, 1, tzinfo=tz)


def test_a_runner_with_a_wrong_clock_arms_nothing_and_the_job_goes_on_later(workshop, monkeypatch):
    job_id = workshop.train()
    kinds = [entry.kind for entry in workshop.entries()]
    with monkeypatch.context() as wrong:
        wrong.setattr(training, "datetime", Clock1971)
        assert workshop.work(job_id) is ExitStatus.INTERRUPTED
    assert (workshop.job(job_id).state, workshop.hold(job_id).state) == (JobState.QUEUED, HoldState.HELD)
    assert [entry.kind for entry in workshop.entries()] == kinds
    assert workshop.job(job_id).attempts_lost == 0
    published_by(workshop, job_id)


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
    with worker_start(workshop.settings) as start:
        start()
        ahead = datetime(2049, 1, 1, tzinfo=UTC)
        workshop.do(ledger.limits.set_frozen, account_id=workshop.account_id, frozen=True, reason="a test", now=ahead)
        with pytest.raises(SystemExit, match=r"clock of this machine is wrong: it shows .* more than a day behind"):
            start()
