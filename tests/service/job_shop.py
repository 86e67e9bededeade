"""A small shop of jobs for the tests of their states: each step is a transaction, and the clock is turned by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from service import jobs, ledger
from service.audit.signing import SigningKey
from service.db.job_tables import Job, Release
from service.db.session import SessionFactory, transaction
from service.db.words import EntryKind, HoldState
from service.jobs import FailureCode

SHA = "ab" * 32
KEY = SigningKey(Ed25519PrivateKey.generate())
LEASE = 60


class Shop:
    """An account, a dataset, and the workers of its jobs."""

    def __init__(
        self,
        factory: SessionFactory,
        now: datetime,
        open_account: Callable[..., str],
        declare_dataset: Callable[..., str],
    ) -> None:
        self.factory, self.now = factory, now
        self.account_id = open_account(factory)
        self.dataset_id = declare_dataset(factory, account_id=self.account_id)
        self.capacity_nano = self.balance().capacity_nano

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def submit(self) -> str:
        self.later(1)
        with transaction(self.factory) as session:
            return jobs.submit_training(
                session,
                principal="key_me",
                idempotency_key=None,
                dataset_id=self.dataset_id,
                recipe="datalens",
                epsilon=1.0,
                options={},
                evaluation_dataset_id=None,
                now=self.now,
            ).id

    def claim(self, job_id: str | None = None, **more: Any) -> jobs.Claim | None:
        with transaction(self.factory) as session:
            return jobs.claim(session, worker="w", now=self.now, lease_seconds=LEASE, job_id=job_id, **more)

    def claimed(self, job_id: str | None = None) -> jobs.Claim:
        claim = self.claim(job_id)
        assert claim is not None
        return claim

    def heartbeat(self, claim: jobs.Claim) -> bool:
        with transaction(self.factory) as session:
            return jobs.heartbeat(
                session, job_id=claim.job_id, attempt=claim.attempt, now=self.now, lease_seconds=LEASE
            )

    def progress(self, claim: jobs.Claim, **progress: Any) -> None:
        with transaction(self.factory) as session:
            jobs.report_progress(session, job_id=claim.job_id, attempt=claim.attempt, progress=progress)

    def arm(self, claim: jobs.Claim) -> None:
        with transaction(self.factory) as session:
            ledger.arm(session, hold_id=claim.hold_id or "", attempt=claim.attempt, now=self.now)

    def charge(self, claim: jobs.Claim, amount_nano: int) -> int:
        with transaction(self.factory) as session:
            return ledger.charge(
                session,
                hold_id=claim.hold_id or "",
                attempt=claim.attempt,
                amount_nano=amount_nano,
                stage="votes",
                now=self.now,
            )

    def publish(self, claim: jobs.Claim, *, release_id: str, sha: str = SHA, **more: Any) -> Release:
        with transaction(self.factory) as session:
            return jobs.publish(
                session,
                job_id=claim.job_id,
                attempt=claim.attempt,
                release_id=release_id,
                name="first",
                artifact_sha256=sha,
                artifact_dir=f"releases/{release_id}",
                card={"epsilon": 1.0},
                summary={},
                key=KEY,
                now=self.now,
                **more,
            )

    def fail(self, claim: jobs.Claim, code: FailureCode = FailureCode.TRAINING_FAILED) -> Job:
        with transaction(self.factory) as session:
            return jobs.finish_failed(
                session, job_id=claim.job_id, attempt=claim.attempt, failure_code=code, now=self.now
            )

    def cancelled(self, claim: jobs.Claim) -> Job:
        with transaction(self.factory) as session:
            return jobs.finish_cancelled(session, job_id=claim.job_id, attempt=claim.attempt, now=self.now)

    def cancel(self, job_id: str, *, discard: bool = False) -> Job:
        with transaction(self.factory) as session:
            return jobs.request_cancel(session, job_id=job_id, now=self.now, discard=discard)

    def unsaved(self, claim: jobs.Claim) -> Job:
        with transaction(self.factory) as session:
            return jobs.finish_unsaved(session, job_id=claim.job_id, attempt=claim.attempt, now=self.now)

    def wish(self, claim: jobs.Claim) -> jobs.Wish | None:
        with transaction(self.factory, read_only=True) as session:
            return jobs.wish_for(session, job_id=claim.job_id, attempt=claim.attempt)

    def give_back(self, claim: jobs.Claim) -> None:
        with transaction(self.factory) as session:
            jobs.give_back(session, job_id=claim.job_id, attempt=claim.attempt, now=self.now)

    def job(self, job_id: str) -> Job:
        with transaction(self.factory, read_only=True) as session:
            return jobs.get_job(session, job_id)

    def hold_state(self, job_id: str) -> HoldState:
        with transaction(self.factory, read_only=True) as session:
            return ledger.get_hold(session, jobs.get_job(session, job_id).hold_id or "").state

    def balance(self) -> ledger.Balance:
        with transaction(self.factory, read_only=True) as session:
            return ledger.balance(session, self.account_id)

    def money(self) -> tuple[int, int]:
        balance = self.balance()
        return balance.spent_nano, balance.held_nano

    def log_kinds(self) -> list[EntryKind]:
        with transaction(self.factory, read_only=True) as session:
            return [entry.kind for entry in ledger.entries(session, self.account_id, 0, 1000)]
