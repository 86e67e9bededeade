"""How jobs end: published, failed, cancelled, sampled. Each is one transaction, and replaying it changes nothing."""

from datetime import timedelta

import pytest

from obscura.wire.words import EarlyEnd, EntryKind, HoldState, JobState
from service import jobs
from service.db.base import new_id
from service.db.job_tables import Sample
from service.errors import Conflict, InvalidInput, StaleAttempt
from service.jobs import FailureCode, kinds
from service.times import to_the_hour
from tests.service.jobs.shop import SHA, Claim, Shop


def test_publishing_captures_and_shows_the_release_in_one_transaction(shop):
    job_id, release_id = shop.submit(), new_id("rel")
    claim = shop.charged()
    with shop.factory() as session:  # the process dies before the commit
        jobs.publish(session, job_id=job_id, attempt=1, **shop.facts_of(release_id))
        session.rollback()
    assert (shop.job(job_id).state, shop.hold_state(job_id)) == (JobState.RUNNING, HoldState.ARMED)
    release = shop.publish(claim, release_id=release_id)
    job = shop.job(job_id)
    assert (job.state, job.release_id, job.lease_until) == (JobState.SUCCEEDED, release_id, None)
    assert job.finished_at == shop.now
    assert shop.money() == (10, 0)
    assert (release.job_id, release.account_id, release.dataset_id) == (job_id, shop.account_id, shop.dataset_id)
    last = shop.entries()[-1]
    assert (last.kind, last.details["artifact_sha256"]) == (EntryKind.CAPTURE, SHA)


def test_replayed_messages_change_nothing(shop):
    job_id, release_id = shop.submit(), new_id("rel")
    claim = shop.charged()
    shop.publish(claim, release_id=release_id)
    version, kinds = shop.job(job_id).progress_version, shop.kinds()
    assert shop.publish(claim, release_id=release_id).id == release_id
    for other in (
        lambda: shop.publish(claim, release_id=new_id("rel")),
        lambda: shop.publish(claim, release_id=release_id, sha="cd" * 32),
        lambda: shop.fail(claim),
        lambda: shop.cancelled(claim),
        lambda: shop.heartbeat(claim),
        lambda: shop.progress(claim, step=1),
    ):
        with pytest.raises(StaleAttempt):
            other()
    assert (shop.job(job_id).progress_version, shop.kinds()) == (version, kinds)
    assert shop.money() == (10, 0)


def test_what_was_not_paid_for_is_not_published(shop):
    claim = shop.claimed(shop.submit())
    with pytest.raises(Conflict):  # never armed
        shop.publish(claim, release_id=new_id("rel"))
    shop.arm(claim)
    with pytest.raises(Conflict, match="its hold has no charge"):
        shop.publish(claim, release_id=new_id("rel"))
    assert shop.job(claim.job_id).state is JobState.RUNNING


@pytest.mark.parametrize(
    "change", [{"release_id": "rel_x"}, {"release_id": "../../etc"}, {"sha": "x"}, {"sha": "AB" * 32}]
)
def test_a_malformed_release_is_refused(shop, change):
    claim = shop.claimed(shop.submit())
    with pytest.raises(InvalidInput):
        shop.publish(claim, **{"release_id": new_id("rel"), **change})


def test_a_failure_before_the_data_was_read_returns_the_hold(shop):
    claim = shop.claimed(shop.submit())
    for _ in range(2):
        job = shop.fail(claim, FailureCode.OUT_OF_MEMORY)
        assert (job.state, job.failure_code) == (JobState.FAILED, FailureCode.OUT_OF_MEMORY)
    assert (shop.money(), shop.hold_state(claim.job_id)) == ((0, 0), HoldState.RETURNED)
    assert shop.claim() is None


def test_a_failure_after_that_gets_one_attempt_to_publish_and_then_captures_what_was_charged(shop):
    first = shop.charged(job_id=shop.submit())
    assert shop.fail(first, FailureCode.OUT_OF_MEMORY).state is JobState.QUEUED
    assert shop.money()[0] == 0
    second = shop.claimed()
    job = shop.job(first.job_id)
    assert (job.ended_early, job.salvage_attempt, second.attempt) == (EarlyEnd.OUT_OF_MEMORY, 2, 2)
    assert shop.stop_request(second) is None  # it charges nothing by itself
    job = shop.fail(second)
    assert (job.state, job.failure_code) == (JobState.FAILED, FailureCode.OUT_OF_MEMORY)  # the first reason counts
    assert (shop.money(), shop.hold_state(first.job_id)) == ((10, 0), HoldState.CAPTURED)
    assert shop.claim() is None


def test_of_nothing_useful_the_end_is_the_one_that_was_coming(shop):
    lost = shop.charged(job_id=shop.submit())
    shop.fail(lost, FailureCode.WORKER_LOST)
    assert shop.unsaved(shop.claimed()).failure_code is FailureCode.WORKER_LOST
    cancelled = shop.charged(job_id=shop.submit())
    shop.cancel(cancelled.job_id)
    assert shop.unsaved(cancelled).state is JobState.CANCELLED
    exhausted = shop.charged(job_id=shop.submit())
    assert shop.unsaved(exhausted).failure_code is FailureCode.HOLD_EXHAUSTED
    assert shop.money() == (30, 0)


@pytest.mark.parametrize("code", [FailureCode.DATASET_UNAVAILABLE, FailureCode.LEDGER_UNAVAILABLE])
def test_what_would_fail_again_is_not_tried(shop, code):
    assert shop.fail(shop.charged(job_id=shop.submit()), code).state is JobState.FAILED
    assert shop.money() == (10, 0)


def test_an_attempt_to_publish_that_was_handed_on_is_made_again(shop):
    claim = shop.charged(job_id=shop.submit())
    shop.fail(claim)
    for attempt in (2, 3):
        second = shop.claimed()
        assert (second.attempt, shop.job(claim.job_id).salvage_attempt) == (attempt, attempt)
        shop.give_back(second)
    release_id = new_id("rel")
    incomplete = {"reason": "training_failed", "fraction": 0.5, "made": 1, "planned": 2, "stages": {}}
    assert shop.publish(shop.claimed(), release_id=release_id, incomplete=incomplete).incomplete == incomplete
    job = shop.job(claim.job_id)
    assert (job.state, job.ended_early) == (JobState.SUCCEEDED, EarlyEnd.TRAINING_FAILED)
    assert shop.money() == (10, 0)


def test_only_the_closed_set_of_failures_exists(shop):
    claim = shop.claimed(shop.submit())
    with pytest.raises(ValueError, match="KeyError"):
        shop.fail(claim, "KeyError: patient 7")  # type: ignore[arg-type]


# --- cancelling -----------------------------------------------------------------------------------------------------


def test_cancelling_a_queued_job_ends_it_and_returns_its_hold(shop):
    job_id = shop.submit()
    for _ in range(2):
        assert shop.cancel(job_id).state is JobState.CANCELLED
    assert shop.money() == (0, 0)
    assert shop.claim() is None


def test_a_cancelled_training_that_has_charged_nothing_stops(shop):
    claim = shop.claimed(shop.submit())
    shop.arm(claim)
    with pytest.raises(Conflict, match="no request to stop this job without publishing"):
        shop.cancelled(claim)
    for _ in range(2):
        assert shop.cancel(claim.job_id).state is JobState.RUNNING
    assert shop.stop_request(claim) is jobs.StopRequest.STOP
    for _ in range(2):
        assert shop.cancelled(claim).state is JobState.CANCELLED
    assert shop.money() == (0, 0)


def test_a_cancelled_training_that_has_charged_winds_up_and_a_discarded_one_stops(shop):
    claim = shop.charged(job_id=shop.submit())
    assert shop.stop_request(claim) is None
    for _ in range(2):
        assert shop.cancel(claim.job_id).ended_early is EarlyEnd.CANCELLED
    assert shop.stop_request(claim) is jobs.StopRequest.WIND_UP
    with pytest.raises(Conflict, match="without publishing"):
        shop.cancelled(claim)
    for _ in range(2):
        assert shop.cancel(claim.job_id, discard=True).ended_early is EarlyEnd.DISCARDED
    assert shop.stop_request(claim) is jobs.StopRequest.STOP
    with pytest.raises(StaleAttempt, match="discarded"):
        shop.publish(claim, release_id=new_id("rel"))
    assert shop.cancelled(claim).state is JobState.CANCELLED
    assert shop.money() == (10, 0)


def test_a_cancellation_that_came_too_late_to_leave_anything_out_is_forgotten(shop):
    claim = shop.charged(job_id=shop.submit())
    shop.cancel(claim.job_id)
    shop.publish(claim, release_id=new_id("rel"))
    job = shop.job(claim.job_id)
    assert (job.state, job.ended_early, job.cancel_requested) == (JobState.SUCCEEDED, None, True)


def test_a_job_that_has_ended_cannot_be_cancelled(shop):
    job_id = shop.submit()
    shop.fail(shop.claimed())
    with pytest.raises(Conflict, match="failed already"):
        shop.cancel(job_id)


def test_a_job_that_was_given_back_after_a_charge_is_published_when_cancelled_and_captured_when_discarded(shop):
    claim = shop.charged(job_id=shop.submit())
    shop.give_back(claim)
    assert shop.cancel(claim.job_id).state is JobState.QUEUED
    second = shop.claimed()
    assert shop.job(claim.job_id).salvage_attempt == second.attempt == 2
    with pytest.raises(StaleAttempt):
        shop.charge(claim, 1)
    shop.give_back(second)
    assert shop.cancel(claim.job_id, discard=True).state is JobState.CANCELLED
    assert shop.money() == (10, 0)


# --- samples --------------------------------------------------------------------------------------------------------


def finish(shop: Shop, claim: Claim, *, sha: str = SHA) -> None:
    shop.tell(kinds.sample.KIND.finish, claim, path="samples/x.npz", sha256=sha, bytes=5, now=shop.now)


def test_a_sample_costs_nothing(shop):
    job_id = shop.sample(shop.released())
    claim, job = shop.claimed(), shop.job(job_id)
    assert (claim.job_id, job.hold_id, job.kind) == (job_id, None, "sample")
    with pytest.raises(Conflict, match="sample job"):
        shop.publish(claim, release_id=new_id("rel"))
    finish(shop, claim)
    finish(shop, claim)
    with pytest.raises(StaleAttempt):
        finish(shop, claim, sha="cd" * 32)
    sample = shop.read(jobs.made_by, Sample, job_id)
    assert (sample.path, sample.sha256, sample.bytes) == ("samples/x.npz", SHA, 5)
    assert shop.job(job_id).state is JobState.SUCCEEDED
    assert shop.kinds()[-1] is EntryKind.CAPTURE
    assert shop.money() == (10, 0)


def test_a_sample_that_fails_touches_no_budget(shop):
    shop.sample(shop.released(), format="imagefolder")
    before = shop.kinds()
    shop.fail(shop.claimed(), FailureCode.SAMPLING_FAILED)
    assert shop.kinds() == before
    assert shop.money() == (10, 0)


def test_a_job_ends_no_earlier_than_its_hold_whose_entry_another_machine_may_have_dated(shop):
    """By a clock that is some seconds ahead, when an hour begins in between: verification compares both."""
    claim = shop.claimed(shop.submit())
    shop.now = to_the_hour(shop.now) + timedelta(hours=1, seconds=2)
    shop.freeze()
    shop.now -= timedelta(seconds=5)
    shop.fail(claim)
    job, hold = shop.job(claim.job_id), shop.hold_of(claim.job_id)
    assert job.finished_at == hold.updated_at == to_the_hour(shop.now + timedelta(hours=1))
