"""A small shop of jobs for the tests of their states: each step is a transaction, and the clock is turned by hand."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select

from obscura.wire.words import DatasetState, HoldState
from service import jobs, ledger
from service.audit.signing import SigningKey
from service.db.access_tables import Idempotency, Outbox
from service.db.base import new_id
from service.db.job_tables import Job, Release, Sample, Sweep
from service.db.ledger_tables import Hold
from service.db.session import SessionFactory, transaction
from service.jobs import FailureCode
from service.jobs.planning import plan_on, training_set
from tests.service.steps import Steps, WithAccount, charge

RECIPE = "datalens"
SHA = "ab" * 32
KEY = SigningKey(Ed25519PrivateKey.generate())
LEASE = 60
UNREADY = {"state": DatasetState.DECLARED, "content_sha256": None, "ready_at": None}  # of a dataset without content


class Claim(NamedTuple):
    job_id: str
    attempt: int


class Shop(WithAccount, Steps):
    """An account with a private and a public dataset, somebody who asks for jobs, and the workers of these jobs."""

    def __init__(
        self,
        factory: SessionFactory,
        now: datetime,
        open_account: Callable[..., str],
        declare_dataset: Callable[..., str],
    ) -> None:
        self.factory, self.now = factory, now
        self._open, self._declare = open_account, declare_dataset
        self.account_id = open_account(factory)
        self.dataset_id = self.declare(account_id=self.account_id)
        self.public_id = self.declare(account_id=None)
        self.capacity_nano = self.balance().capacity_nano

    def open_account(self, name: str, **changes: Any) -> str:
        return self._open(self.factory, name=name, **changes)

    def declare(self, **changes: Any) -> str:
        return self._declare(self.factory, **changes)

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # What users ask for.

    def plan(self, **changes: Any) -> Any:
        request = {"dataset_id": self.dataset_id, "recipe": RECIPE, "epsilon": 1.0, "options": {}, **changes}
        with transaction(self.factory, read_only=True) as session:
            trained = training_set(session, request.pop("dataset_id"))
            return plan_on(session, trained, **request)

    def ask(self, kind: str, *, key: str | None = None, principal: str = "key_me", **order: Any) -> str:
        made = self.do(jobs.submit, jobs.KINDS[kind], principal=principal, idempotency_key=key, **order)
        return str(made.id)

    def train(self, **changes: Any) -> str:
        order = {"dataset_id": self.dataset_id, "recipe": RECIPE, "epsilon": 1.0, "options": {}}
        return self.ask("train", **order | {"evaluation_dataset_id": None, **changes})

    def submit(self) -> str:
        self.later(1)
        return self.train()

    def sample(self, release_id: str, **changes: Any) -> str:
        order = {"count": 10, "classes": None, "seed": 7, "format": "npz", "release_id": release_id}
        return self.ask("sample", **order | changes)

    def submit_sweep(self, session: Any, epsilons: list[float], *, key: str | None = None, **changes: Any) -> Sweep:
        trials = [jobs.Trial(epsilon, {"beta": (1 + number) / 100}) for number, epsilon in enumerate(epsilons)]
        request = {"name": "vote shares", "dataset_id": self.dataset_id, "recipe": RECIPE, "trials": trials}
        request |= {"evaluation_dataset_id": None, "now": self.now, **changes}
        return jobs.submit_sweep(session, principal="key_me", idempotency_key=key, **request)

    def sweep(self, *epsilons: float, **changes: Any) -> str:
        with transaction(self.factory) as session:
            return self.submit_sweep(session, list(epsilons), **changes).id

    def sweep_of(self, *, epsilon: float = 0.5, options: Any = None, **changes: Any) -> str:
        """Ask for a sweep of a plain training and of one that `train` would ask for."""
        return self.sweep(trials=[jobs.Trial(epsilon, {}), jobs.Trial(epsilon, options or {})], **changes)

    def cancel(self, job_id: str, *, discard: bool = False) -> Job:
        return self.do(jobs.request_cancel, job_id=job_id, discard=discard)

    def freeze(self) -> None:
        self.do(ledger.limits.set_frozen, account_id=self.account_id, frozen=True, reason="audit")

    # What workers do.

    def claim(self, job_id: str | None = None, **more: Any) -> Claim | None:
        waiting = self.read(jobs.claimable, now=self.now) if job_id is None else [job_id]
        for each in waiting:
            attempt = self.do(jobs.claim, worker="w", lease_seconds=LEASE, job_id=each, **more)
            if attempt is not None:
                return Claim(each, attempt)
        return None

    def claimed(self, job_id: str | None = None) -> Claim:
        claim = self.claim(job_id)
        assert claim is not None
        return claim

    def held_by(self, claim: Claim) -> dict[str, Any]:
        return {"hold_id": self.job(claim.job_id).hold_id, "attempt": claim.attempt}

    def arm(self, claim: Claim) -> None:
        self.do(ledger.arm, **self.held_by(claim))

    def charge(self, claim: Claim, amount_nano: int) -> int:
        return self.do(charge, **self.held_by(claim), amount_nano=amount_nano)

    def charged(self, amount_nano: int = 10, job_id: str | None = None) -> Claim:
        """A claimed training that has armed and charged so much."""
        claim = self.claimed(job_id)
        self.arm(claim)
        self.charge(claim, amount_nano)
        return claim

    def facts_of(self, release_id: str, sha: str = SHA) -> dict[str, Any]:
        files = {"artifact_sha256": sha, "artifact_dir": f"releases/{release_id}"}
        shown: dict[str, Any] = {
            "name": "first",
            "card": {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "recipe": "datalens"},
            "summary": {},
        }
        return {"release_id": release_id, "key": KEY, "now": self.now, **files, **shown}

    def publish(self, claim: Claim, *, release_id: str, sha: str = SHA, **more: Any) -> Release:
        return self.tell(jobs.publish, claim, **self.facts_of(release_id, sha), **more)

    def released(self, **changes: Any) -> str:
        self.train(**changes)
        return self.publish(self.charged(), release_id=new_id("rel")).id

    def heartbeat(self, claim: Claim) -> None:
        self.tell(jobs.heartbeat, claim, now=self.now, lease_seconds=LEASE)

    def progress(self, claim: Claim, **progress: Any) -> None:
        self.tell(jobs.report_progress, claim, progress=progress)

    def fail(self, claim: Claim, code: FailureCode = FailureCode.TRAINING_FAILED) -> Job:
        return self.tell(jobs.finish_failed, claim, failure_code=code, now=self.now)

    def cancelled(self, claim: Claim) -> Job:
        return self.tell(jobs.finish_cancelled, claim, now=self.now)

    def unsaved(self, claim: Claim) -> Job:
        return self.tell(jobs.finish_unsaved, claim, now=self.now)

    def stop_request(self, claim: Claim) -> jobs.StopRequest | None:
        return self.tell(jobs.stop_request, claim)

    def give_back(self, claim: Claim) -> None:
        self.tell(jobs.give_back, claim, now=self.now)

    def tell(self, what: Callable[..., Any], claim: Claim, **more: Any) -> Any:
        with transaction(self.factory) as session:
            return what(session, job_id=claim.job_id, attempt=claim.attempt, **more)

    # What can be looked at.

    def trials(self, sweep_id: str) -> list[Job]:
        return list(self.read(jobs.jobs_of_sweep, sweep_id))

    def hold_of(self, job_id: str) -> Hold:
        return self.read(ledger.get_hold, self.job(job_id).hold_id)

    def hold_state(self, job_id: str) -> HoldState:
        return self.hold_of(job_id).state

    def money(self) -> tuple[int, int]:
        balance = self.balance()
        return balance.spent_nano, balance.reserved_nano

    def counts(self) -> dict[str, int]:
        with transaction(self.factory, read_only=True) as session:
            return {
                table.__tablename__: session.scalar(select(func.count()).select_from(table)) or 0
                for table in (Sweep, Job, Hold, Outbox, Idempotency, Sample)
            }

    def assert_nothing_written(self) -> None:
        assert set(self.counts().values()) == {0}
