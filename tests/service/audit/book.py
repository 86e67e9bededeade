"""A ledger for the tests of verification: accounts, every kind of entry, jobs, releases, checkpoints."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from sqlalchemy import text
from sqlalchemy.orm import Session

from privacy.accounting.events import GaussianEvent, PoissonGaussianEvent
from privacy.plans.private_steps import poisson_stage
from service import jobs, ledger
from service.audit.findings import FindingCode, Report
from service.audit.proofs import Witness, keep_checkpoint, keep_receipt, write_checkpoint
from service.audit.signing import SigningKey, make_signing_key, trusted_keys
from service.audit.verify import verify
from service.db.base import new_id
from service.db.job_tables import Release
from service.db.ledger_tables import Checkpoint
from service.db.session import SessionFactory, transaction
from service.jobs.kind import Ask
from service.jobs.submission import new_job
from service.ledger.stops import arming_stops
from service.storage.folder import FolderStorage
from tests.conftest import declared_row
from tests.service.steps import Steps, charge_planned, hold_amount, raise_limit

EVENT = GaussianEvent(sensitivity=2.0, stddev=40.0, count=4)
STEPS = PoissonGaussianEvent(sampling_probability=0.05, noise_multiplier=1.0, count=10)  # noise follows from a budget
SHA = "ab" * 32


@dataclass
class LedgerBook(Steps):
    """A database with a data folder, and steps on it, each a second after the one before."""

    factory: SessionFactory
    data_dir: Path
    now: datetime
    accounts: dict[str, str] = field(default_factory=dict)
    hold_ids: list[str] = field(default_factory=list)

    @property
    def key(self) -> SigningKey:
        return make_signing_key(self.key_path)

    @property
    def key_path(self) -> Path:
        return self.data_dir / "keys" / "ledger.pem"

    def tick(self) -> datetime:
        self.now += timedelta(seconds=1.000001)
        return self.now

    def do(self, step: Callable[..., Any], *arguments: Any, **facts: Any) -> Any:
        return super().do(step, *arguments, **{"now": self.tick(), **facts})

    def stops(self) -> list[tuple[str, str]]:
        """Return scope and code of the arming stops."""
        return [(stop.scope, stop.code) for stop in self.read(arming_stops)]

    def open(self, name: str, **changes: Any) -> str:
        facts = {"owner": "clinic", "epsilon": 8.0, "delta": 1e-5, "unit": "record"}
        facts |= {"adjacency": "add_remove"} | changes
        made = self.do(ledger.open_account, name=name, **facts)
        self.accounts[name] = made.id
        return made.id

    def hold(self, account: str, *, sampled: bool = False) -> tuple[str, str]:
        """Queue a training with its hold; return both ids."""
        account_id, job_id = self.accounts[account], new_id("job")
        with transaction(self.factory) as session:
            privacy_filter = ledger.filter_of(ledger.get_account(session, account_id))
            stage = {"name": "votes", "event": EVENT.to_json(), "cost_nano": privacy_filter.cost_nano(EVENT)}
            if sampled:
                steps = poisson_stage("steps", STEPS.sampling_probability, STEPS.count, privacy_filter, 10**8)
                stage = steps.to_json()
            facts = {"amount_nano": stage["cost_nano"], "now": self.tick()}
            facts |= {"details": {"recipe": "datalens", "epsilon": 1.0, "stages": [stage]}}
            hold_id = hold_amount(session, account_id=account_id, job_id=job_id, **facts).id
            dataset = declared_row(account_id, self.now)
            session.add(dataset)
            session.flush()
            asked = {"account_id": account_id, "dataset_id": dataset.id, "recipe": "datalens", "epsilon": 1.0}
            session.add(new_job(Ask(job_id, self.now), "train", **asked, options={}, hold_id=hold_id))
        self.hold_ids.append(hold_id)
        return job_id, hold_id

    def claim(self, job_id: str) -> int:
        attempt: int | None = self.do(jobs.claim, worker="w", lease_seconds=600, job_id=job_id)
        assert attempt is not None
        return attempt

    def arm(self, hold_id: str, attempt: int = 1) -> None:
        self.do(ledger.arm, hold_id=hold_id, attempt=attempt)

    def charge(self, hold_id: str, count: int, attempt: int = 1) -> None:
        """Charge for releases of the hold's stage."""
        self.do(charge_planned, hold_id=hold_id, attempt=attempt, count=count)

    def start(self, account: str, *, sampled: bool = False) -> tuple[str, str]:
        """Queue a training, claim it and arm its hold; return both ids."""
        job_id, hold_id = self.hold(account, sampled=sampled)
        self.arm(hold_id, self.claim(job_id))
        return job_id, hold_id

    def retry(self, job_id: str, hold_id: str) -> None:
        """Queue a training again, and let its second attempt arm."""
        self.do(jobs.give_back, job_id=job_id, attempt=1)
        self.arm(hold_id, self.claim(job_id))

    def publish(self, job_id: str, attempt: int = 1, *, keep: bool = True, sha256: str = SHA) -> dict[str, Any]:
        facts = {"release_id": new_id("rel"), "name": "first", "card": {}, "summary": {}, "key": self.key}
        facts |= {"artifact_sha256": sha256, "artifact_dir": f"releases/{facts['release_id']}"}
        receipt: dict[str, Any] = self.do(jobs.publish, job_id=job_id, attempt=attempt, **facts).receipt
        if keep:
            keep_receipt(FolderStorage(self.data_dir), receipt)
        return receipt

    def train(self, account: str, **published: Any) -> dict[str, Any]:
        """Run a whole training, from the hold to the release; return the receipt."""
        job_id, hold_id = self.start(account)
        self.charge(hold_id, 2)
        self.charge(hold_id, 1)
        return self.publish(job_id, **published)

    def raise_limit(self, account: str, epsilon: float) -> None:
        self.do(raise_limit, self.accounts[account], epsilon)

    def accept(self, account: str, amount_nano: int) -> None:
        """Record spending that a restored database lacks."""
        with transaction(self.factory) as session:
            row = ledger.lock_account(session, self.accounts[account])
            proofs = {"journals": {}, "witnesses": [], "releases": [], "checkpoint": None, "reason": "restored"}
            ledger.limits.record_missing(session, row, amount_nano=amount_nano, details=proofs, now=self.tick())

    def fill(self) -> Self:
        """Write two accounts with every kind of entry."""
        self.open("patients")
        self.open("pupils", unit="subject")
        self.raise_limit("pupils", 9.0)
        self.train("patients")
        patients = self.accounts["patients"]
        self.do(ledger.return_hold, hold_id=self.hold("patients")[1], reason="cancelled")
        self.do(ledger.limits.lower_limit, account_id=patients, epsilon=7.0, reason="less")
        for frozen in (True, False):
            self.do(ledger.limits.set_frozen, account_id=patients, frozen=frozen, reason="look")
        job_id, retried = self.start("patients")
        self.charge(retried, 1)
        self.retry(job_id, retried)
        self.charge(retried, 1, 2)
        self.hold("patients")
        self.train("pupils")
        self.accept("pupils", 1000)
        return self

    def verify(self, *, known: tuple[Witness, ...] = (), full: bool = True, **options: Any) -> Report:
        trusted = trusted_keys(self.key_path)
        with transaction(self.factory, read_only=True, snapshot=True) as session:
            return verify(session, trusted=trusted, known=known, full=full, **options)

    def found(self, **options: Any) -> list[tuple[FindingCode, int | None]]:
        return [(finding.code, finding.sequence) for finding in self.verify(**options).findings]

    def checkpoint(self) -> Checkpoint:
        heads = self.verify().heads
        made = self.do(write_checkpoint, heads=heads, key=self.key)
        keep_checkpoint(FolderStorage(self.data_dir), made, trusted_keys(self.key_path))
        return made

    def releases(self) -> list[Release]:
        return self.read(lambda session: session.query(Release).order_by(Release.created_at).all())

    @contextmanager
    def tampered(self, *statements: str) -> Iterator[Session]:
        """Run statements with the rights of the tables' owner, and undo them afterwards.

        No trigger, foreign key or check holds back the statements; uniqueness does.
        """
        with self.factory() as session:
            if self.sqlite:
                for table in ("entries", "checkpoints"):
                    for action in ("no_update", "no_delete", "no_replace"):
                        session.execute(text(f"DROP TRIGGER {table}_{action}"))
                session.execute(text("PRAGMA ignore_check_constraints=ON"))
                session.execute(text("PRAGMA defer_foreign_keys=ON"))
            else:
                for table in ("entries", "checkpoints"):
                    session.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
                rules = "SELECT conrelid::regclass, conname FROM pg_constraint WHERE contype IN ('c', 'f')"
                for table, name in session.execute(text(f"{rules} AND conrelid > 16383")).all():
                    session.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {name}"))
            try:
                for statement in statements:
                    session.execute(text(statement))
                yield session
            finally:
                session.rollback()
                if self.sqlite:
                    session.execute(text("PRAGMA ignore_check_constraints=OFF"))

    def found_in(self, session: Session, **options: Any) -> list[tuple[FindingCode, int | None]]:
        report = verify(session, trusted=trusted_keys(self.key_path), **options)
        return [(finding.code, finding.sequence) for finding in report.findings]

    def found_after(self, *statements: str, **options: Any) -> list[tuple[FindingCode, int | None]]:
        """Tamper, verify, undo."""
        with self.tampered(*statements) as session:
            return self.found_in(session, **options)
