"""Broken ledgers, each with one fault, that the state machine must find."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind, HoldState, JobState
from service import jobs, ledger
from service.db.job_tables import Job, Release
from service.db.ledger_tables import Hold
from service.errors import HoldExhausted, InvalidInput
from service.identity import decisions
from service.jobs import endings, lifecycle, submission
from service.jobs.kind import Kind
from service.ledger import holds, limits, rows

Patch = pytest.MonkeyPatch


def charge_beyond_the_hold(patch: Patch) -> None:
    """A charge beyond the hold is accepted."""
    charge = ledger.charge

    def broken(session: Session, **args: Any) -> int:
        with suppress(HoldExhausted):
            return charge(session, **args)
        return int(args["amount_nano"])

    patch.setattr(ledger, "charge", broken)


def releases_beyond_the_price(patch: Patch) -> None:
    """The price of a whole stage pays for any number of releases."""
    charge = ledger.charge

    def broken(session: Session, *, paid_as_whole: int | None = None, **args: Any) -> int:
        return charge(session, paid_as_whole=None if paid_as_whole is None else 10**9, **args)

    patch.setattr(ledger, "charge", broken)


def charge_without_an_entry(patch: Patch) -> None:
    """The hold counts a charge that the log lacks."""

    def broken(session: Session, *, hold_id: str, attempt: int, amount_nano: int, now: datetime, **_: Any) -> int:
        hold = holds._lock_for(session, hold_id, attempt)
        hold.charged_nano += amount_nano
        return hold.charged_nano

    patch.setattr(ledger, "charge", broken)


def refund_of_an_armed_hold(patch: Patch) -> None:
    """A hold that was armed is returned in full."""

    def broken(session: Session, *, hold_id: str, reason: str, now: datetime) -> ledger.Hold:
        hold = rows.lock_hold(session, hold_id)
        if hold.state in (HoldState.HELD, HoldState.ARMED):
            _return_all(session, hold, now)
        return hold

    patch.setattr(rows, "check_hold", lambda *_: None)
    patch.setattr(ledger, "return_hold", broken)
    patch.setattr(holds, "return_hold", broken)


def refund_on_expiry(patch: Patch) -> None:
    """A job whose worker was lost gets its charges back."""

    def broken(session: Session, job: Job, state: JobState, *, reason: str, now: datetime) -> None:
        if job.hold_id is not None:
            _return_all(session, rows.lock_hold(session, job.hold_id), now)
        endings.end_job(session, job, state, now=now)

    patch.setattr(rows, "check_hold", lambda *_: None)
    patch.setattr(lifecycle, "end_job", broken)


def capture_that_keeps_the_rest(patch: Patch) -> None:
    """The uncharged part of a hold stays held forever."""
    _change_appended(patch, lambda more: {"held": -more["spent"]} if more.get("spent", 0) > 0 else {})


def capture_of_the_whole_hold_as_free(patch: Patch) -> None:
    """A capture spends nothing."""
    _change_appended(patch, lambda _more: {"spent": 0})


def claim_that_ignores_leases(patch: Patch) -> None:
    """Any worker can claim a running job."""
    patch.setattr(lifecycle, "_claimable", lambda _now: Job.state.in_((JobState.QUEUED, JobState.RUNNING)))


def claim_that_fences_nobody(patch: Patch) -> None:
    """The hold is not fenced for the new attempt, so the old one can still write."""
    patch.setattr(ledger, "fence", lambda *_args, **_more: None)


def heartbeat_without_fencing(patch: Patch) -> None:
    """Any worker's heartbeat renews the lease."""

    def broken(session: Session, *, job_id: str, attempt: int, now: datetime, lease_seconds: float) -> None:
        running = update(Job).where(Job.id == job_id, Job.state == JobState.RUNNING)
        session.execute(running.values(lease_until=now + timedelta(seconds=lease_seconds)))

    patch.setattr(jobs, "heartbeat", broken)


def drain_that_refunds(patch: Patch) -> None:
    """A job that is queued again gets its charges back."""
    give_back = jobs.give_back

    def broken(session: Session, *, job_id: str, attempt: int, now: datetime) -> None:
        give_back(session, job_id=job_id, attempt=attempt, now=now)
        hold_id = jobs.get_job(session, job_id).hold_id
        armed = update(Hold).where(Hold.id == hold_id, Hold.state == HoldState.ARMED)
        session.execute(armed.values(charged_nano=0))

    patch.setattr(jobs, "give_back", broken)


def idempotency_that_ignores_the_body(patch: Patch) -> None:
    """Another request with a known key gets the job of the first."""
    patch.setattr(submission, "body_hash", lambda _body: "0" * 64)


def idempotency_that_forgets(patch: Patch) -> None:
    """A request is accepted twice with the same key."""
    submit = jobs.submit

    def broken(session: Session, kind: Kind, *, idempotency_key: str | None, **args: Any) -> Job:
        return submit(session, kind, idempotency_key=None, **args)

    patch.setattr(jobs, "submit", broken)


def publication_without_capture(patch: Patch) -> None:
    """A release is published and nothing is spent."""

    def broken(session: Session, *, job_id: str, attempt: int, release_id: str, now: datetime, **facts: Any) -> Release:
        job = session.scalars(select(Job).where(Job.id == job_id, Job.attempt == attempt)).one()
        facts.pop("key")
        owners = {"account_id": job.account_id, "dataset_id": job.dataset_id}
        release = Release(id=release_id, job_id=job_id, created_at=now, **owners, **facts)
        session.add(release)
        endings.end_job(session, job, JobState.SUCCEEDED, now=now, release_id=release_id)
        return release

    patch.setattr(jobs, "publish", broken)


def cancelling_what_has_ended(patch: Patch) -> None:
    """A late message ends a job a second time."""
    lock = endings.lock_attempt

    def broken(session: Session, job_id: str, attempt: int, kind: Any, *, replay: JobState) -> Job:
        job = session.get_one(Job, job_id, populate_existing=True)
        if job.attempt == attempt and job.state is JobState.FAILED:
            job.state = JobState.CANCELLED
            job.failure_code = None
            return job
        return lock(session, job_id, attempt, kind, replay=replay)

    patch.setattr(endings, "lock_attempt", broken)


def arming_on_a_frozen_account(patch: Patch) -> None:
    """A job that was held before the freeze is armed after it."""
    arm = ledger.arm

    def broken(session: Session, *, hold_id: str, attempt: int, now: datetime) -> Hold:
        hold = holds._lock_for(session, hold_id, attempt)
        if not hold.account.frozen or hold.state is HoldState.ARMED:
            return arm(session, hold_id=hold_id, attempt=attempt, now=now)
        details = {"attempt": attempt, "charged_nano": 0, "hold_nano": hold.amount_nano}
        moves = {"state": HoldState.ARMED, "armed_attempt": attempt}
        rows.append(session, hold.account, EntryKind.ARM, hold, moves=moves, details=details, now=now)
        return hold

    patch.setattr(ledger, "arm", broken)


def raise_by_one_person(patch: Patch) -> None:
    """One person asks for a raise and approves it."""
    patch.setattr(decisions, "_require_approvable", lambda *_: None)


def any_limit_is_a_lower_one(patch: Patch) -> None:
    """The function that lowers limits also raises them."""
    lower = ledger.limits.lower_limit

    def broken(session: Session, *, account_id: str, epsilon: float, reason: str, now: datetime) -> ledger.Account:
        with suppress(InvalidInput):
            return lower(session, account_id=account_id, epsilon=epsilon, reason=reason, now=now)
        account = rows.lock_account(session, account_id)
        limit = limits._filter_at(account, epsilon, "raised")
        limits._set_limit(session, account, limit, now=now, details={"reason": reason})
        return account

    patch.setattr(limits, "lower_limit", broken)


def progress_that_tells_everything(patch: Patch) -> None:
    """A training loss is reported as progress."""
    patch.setattr(lifecycle, "PROGRESS_KEYS", frozenset({*lifecycle.PROGRESS_KEYS, "loss"}))


# Each with the rules of the machine and the commands that find it.
JOB, ANY = ("work", "tell"), ("work", "ask")
BROKEN: dict[Callable[[Patch], None], tuple[tuple[str, ...], tuple[str, ...]]] = {
    charge_beyond_the_hold: (ANY, ("charge",)),
    releases_beyond_the_price: (ANY, ("charge",)),
    charge_without_an_entry: (ANY, ("charge",)),
    refund_of_an_armed_hold: (ANY, ("hold", "fence", "arm", "return_hold")),
    refund_on_expiry: ((*JOB, "drain"), ("arm", "charge", "give_back", "request_cancel")),
    capture_that_keeps_the_rest: (ANY, ("arm", "charge", "publish")),
    capture_of_the_whole_hold_as_free: (ANY, ("arm", "charge", "publish")),
    claim_that_ignores_leases: (JOB, ("claim",)),
    claim_that_fences_nobody: (JOB, ("claim",)),
    heartbeat_without_fencing: (JOB, ("heartbeat", "drop_lease")),
    drain_that_refunds: (JOB, ("arm", "charge", "give_back")),
    idempotency_that_ignores_the_body: (("submit", "redeliver"), ("submit_training",)),
    idempotency_that_forgets: (("submit", "redeliver"), ("submit_training",)),
    publication_without_capture: (JOB, ("publish",)),
    cancelling_what_has_ended: ((*JOB, "redeliver"), ("finish_failed", "finish_cancelled")),
    arming_on_a_frozen_account: (ANY, ("arm", "set_frozen")),
    raise_by_one_person: (("govern",), ("limit", "request_raise", "approve_raise")),
    any_limit_is_a_lower_one: (("govern",), ("limit", "lower_limit")),
    progress_that_tells_everything: (JOB, ("report_progress",)),
}


def _change_appended(patch: Patch, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    append = holds.append
    patch.setattr(holds, "append", lambda *args, **more: append(*args, **more | change(more)))


def _return_all(session: Session, hold: Hold, now: datetime) -> None:
    """Return a whole hold despite its charges; the ledger's own check of holds must be off."""
    amounts = {"amount_nano": hold.amount_nano, "held": -hold.amount_nano}
    moves = {"state": HoldState.RETURNED, "charged_nano": 0, "armed_attempt": 0}
    details = {"reason": "refunded"}
    rows.append(session, hold.account, EntryKind.RETURN, hold, moves=moves, details=details, now=now, **amounts)
