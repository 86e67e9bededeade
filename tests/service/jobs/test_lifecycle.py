"""Claims, leases and fencing; and what is left of a job after its worker was lost."""

from datetime import timedelta
from math import inf, nan

import pytest

from obscura.wire.words import HoldState, JobState
from service import jobs
from service.db.base import new_id
from service.db.ledger_tables import EVERYWHERE, ArmingStop
from service.db.session import transaction
from service.errors import InvalidInput, NotFound, StaleAttempt
from service.jobs import FailureCode
from service.views import jobs as views
from tests.service.jobs.shop import LEASE, Claim
from tests.together import at_once


def test_the_oldest_job_is_claimed_first_and_once(shop):
    first, second = shop.submit(), shop.submit()
    assert [claim.job_id for claim in [shop.claimed(), shop.claimed()]] == [first, second]
    assert shop.claim() is None
    job = shop.job(first)
    assert (job.state, job.attempt, job.lease_owner) == (JobState.RUNNING, 1, "w")
    assert job.lease_until == shop.now + timedelta(seconds=LEASE)
    assert job.started_at == shop.now


def test_a_named_job_is_claimed_or_none(shop):
    first, second = shop.submit(), shop.submit()
    assert shop.claimed(second).job_id == second
    assert shop.claim(second) is None
    assert shop.claim("job_none") is None
    assert shop.job(first).state is JobState.QUEUED


@pytest.mark.parametrize(
    ("scope", "finding", "blocked"),
    [
        ("account", "hash_mismatch", {"train": "arming_stopped"}),
        (EVERYWHERE, "checkpoint_broken", {"train": "arming_stopped"}),
        ("another", "hash_mismatch", {}),
        ("another", "older_than_receipt", {"train": "installation_locked", "sample": "installation_locked"}),
    ],
)
def test_a_queued_job_says_why_it_cannot_start(shop, scope, finding, blocked):
    release_id = shop.released()
    queued = {"train": shop.submit(), "sample": shop.sample(release_id)}
    scopes = {"account": shop.account_id, "another": "acc_another"}
    with transaction(shop.factory) as session:
        session.add(ArmingStop(scope=scopes.get(scope, scope), code=finding, found_at=shop.now))
    rows = [shop.job(job_id) for job_id in queued.values()]
    shown = {record.kind: record.blocked for record in shop.read(views.records, rows)}
    assert {kind: facts.code for kind, facts in shown.items() if facts} == blocked
    assert all(finding in facts.message for facts in shown.values() if facts)
    assert {kind for kind, job_id in queued.items() if shop.claim(job_id) is None} == blocked.keys()


def test_many_claimers_get_different_jobs(shop):
    submitted = {shop.submit() for _ in range(4)}
    taken = [claim.job_id for claim in at_once(*[shop.claim] * 6) if claim is not None]
    while (claim := shop.claim()) is not None:  # a claimer may have met only rows that others had locked
        taken.append(claim.job_id)
    assert sorted(taken) == sorted(submitted)


def test_a_heartbeat_keeps_the_lease(shop):
    claim = shop.claimed(shop.submit())
    for _ in range(4):
        shop.later(LEASE - 1)
        shop.heartbeat(claim)
        assert shop.claim() is None
    shop.later(LEASE)
    assert shop.claimed().attempt == 2


def test_a_superseded_attempt_may_do_nothing(shop):
    old = shop.charged(job_id=shop.submit())
    shop.later(LEASE)
    new = shop.claimed()
    assert (new.job_id, new.attempt) == (old.job_id, 2)
    for forbidden in (
        lambda: shop.heartbeat(old),
        lambda: shop.progress(old, step=1),
        lambda: shop.arm(old),
        lambda: shop.charge(old, 1),
        lambda: shop.publish(old, release_id=new_id("rel")),
        lambda: shop.fail(old),
        lambda: shop.cancelled(old),
        lambda: shop.give_back(old),
        lambda: shop.read(jobs.secret_of, job_id=old.job_id, attempt=1),
    ):
        with pytest.raises(StaleAttempt):
            forbidden()
    assert (shop.job(old.job_id).state, shop.hold_state(old.job_id)) == (JobState.RUNNING, HoldState.ARMED)
    shop.arm(new)
    assert shop.charge(new, 5) == 15


def test_unknown_jobs_are_not_found(shop):
    nobody = Claim("job_none", 1)
    for step in (
        lambda: shop.heartbeat(nobody),
        lambda: shop.progress(nobody, step=1),
        lambda: shop.fail(nobody),
        lambda: shop.cancel("job_none"),
        lambda: shop.publish(nobody, release_id=new_id("rel")),
    ):
        with pytest.raises(NotFound):
            step()


# --- progress -------------------------------------------------------------------------------------------------------


def test_progress_is_replaced_and_numbered(shop):
    claim = shop.claimed(shop.submit())
    before = shop.job(claim.job_id).progress_version
    shop.progress(claim, stage="votes", step=1, steps=9, charged_nano=5, eta_seconds=None)
    shop.progress(claim, stage="votes", step=2, steps=9, charged_epsilon=0.5, eta_seconds=3.5)
    job = shop.job(claim.job_id)
    assert job.progress == {"stage": "votes", "step": 2, "steps": 9, "charged_epsilon": 0.5, "eta_seconds": 3.5}
    assert job.progress_version == before + 2


UNPLANNED = {"loss": [0.1], "teacher_agreement": [1], "stage": [3, "x" * 65]}
UNPLANNED |= {"step": ["1", None, True, [1, 2]], "eta_seconds": [nan, inf]}


@pytest.mark.parametrize("progress", [{name: value} for name, values in UNPLANNED.items() for value in values])
def test_progress_says_only_what_was_planned(shop, progress):
    claim = shop.claimed(shop.submit())
    with pytest.raises(InvalidInput, match="Progress"):
        shop.progress(claim, **progress)
    assert shop.job(claim.job_id).progress == {}


# --- lost workers: tests/crash kills them at each moment -------------------------------------------------------------


def test_only_lost_attempts_count(shop):
    job_id = shop.submit()
    for attempt in range(1, 6):  # a worker that shuts down, as often as it likes
        claim = shop.charged(1)
        assert claim.attempt == attempt
        shop.give_back(claim)
    for lost in range(3):
        assert shop.claimed().attempt == 6 + lost
        assert shop.job(job_id).attempts_lost == lost
        shop.later(LEASE)
    for lost in range(3):  # to publish what was paid for
        for _ in range(2):
            shop.give_back(shop.claimed())
        assert shop.claimed().attempt == shop.job(job_id).salvage_attempt == 11 + 3 * lost
        shop.later(LEASE)
    assert shop.claim() is None
    assert (shop.job(job_id).failure_code, shop.money()) == (FailureCode.WORKER_LOST, (5, 0))


def test_the_operator_sets_how_often_a_job_may_lose_its_worker(shop):
    job_id = shop.claimed(shop.submit()).job_id
    shop.later(LEASE)
    assert shop.claim(attempts_max=1) is None
    job = shop.job(job_id)
    assert (job.state, job.failure_code) == (JobState.FAILED, FailureCode.WORKER_LOST)
    assert (shop.hold_state(job_id), shop.money()) == (HoldState.RETURNED, (0, 0))


@pytest.mark.parametrize("discard", [False, True])
def test_a_cancelled_job_whose_worker_was_lost_is_tried_again_to_publish_what_was_paid_for(shop, discard):
    """Not where that is to be discarded."""
    job_id = shop.charged(job_id=shop.submit()).job_id
    shop.cancel(job_id, discard=discard)
    shop.later(LEASE)
    for attempt in range(2, 7) if not discard else ():
        assert shop.claimed().attempt == shop.job(job_id).salvage_attempt == attempt
        shop.later(LEASE)
    assert shop.claim() is None
    assert (shop.job(job_id).state, shop.money()) == (JobState.CANCELLED, (10, 0))


def test_a_lost_job_does_not_keep_the_next_one_waiting(shop):
    lost, waiting = shop.submit(), shop.submit()
    shop.claimed(lost)
    shop.cancel(lost)
    shop.later(LEASE)
    assert shop.claimed().job_id == waiting
    assert shop.job(lost).state is JobState.CANCELLED
