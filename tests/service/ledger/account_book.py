"""One account, and short names for the ledger's steps on it, for the tests of the ledger."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text

from privacy.accounting.filters import open_filter
from service import ledger
from service.db.session import SessionFactory, transaction
from service.db.words import HoldState

CAPACITY = open_filter("gdp", 8.0, 1e-5).capacity_nano
SHA = "ab" * 32


class AccountBook:
    """One account and short names for the steps, each in a transaction of its own."""

    def __init__(self, factory: SessionFactory, account_id: str, now: datetime) -> None:
        self.factory, self.account_id, self.now = factory, account_id, now
        self.jobs = 0
        self.dialect: str = factory.kw["bind"].dialect.name

    def hold(self, amount_nano: int, *, attempt: int = 0) -> str:
        self.jobs += 1
        with transaction(self.factory) as session:
            made = ledger.hold(
                session,
                account_id=self.account_id,
                job_id=f"job_{self.jobs:020}",
                amount_nano=amount_nano,
                now=self.now,
                details={"recipe": "none"},
            )
            hold_id = made.id
        if attempt:
            self.fence(hold_id, attempt)
        return hold_id

    def armed(self, amount_nano: int, *, charged_nano: int = 0) -> str:
        hold_id = self.hold(amount_nano, attempt=1)
        self.arm(hold_id, 1)
        if charged_nano:
            self.charge(hold_id, 1, charged_nano)
        return hold_id

    def fence(self, hold_id: str, attempt: int) -> None:
        with transaction(self.factory) as session:
            ledger.fence(session, hold_id=hold_id, attempt=attempt, now=self.now)

    def arm(self, hold_id: str, attempt: int) -> HoldState:
        with transaction(self.factory) as session:
            return ledger.arm(session, hold_id=hold_id, attempt=attempt, now=self.now).state

    def charge(self, hold_id: str, attempt: int, amount_nano: int) -> int:
        with transaction(self.factory) as session:
            return ledger.charge(
                session, hold_id=hold_id, attempt=attempt, amount_nano=amount_nano, stage="votes", now=self.now
            )

    def capture(self, hold_id: str, attempt: int, sha: str | None = SHA) -> HoldState:
        with transaction(self.factory) as session:
            return ledger.capture(
                session, hold_id=hold_id, attempt=attempt, artifact_sha256=sha, reason="published", now=self.now
            ).state

    def give_back(self, hold_id: str) -> HoldState:
        with transaction(self.factory) as session:
            return ledger.return_hold(session, hold_id=hold_id, reason="cancelled", now=self.now).state

    def balance(self) -> ledger.Balance:
        with transaction(self.factory, read_only=True) as session:
            return ledger.balance(session, self.account_id)

    def money(self) -> tuple[int, int, int]:
        balance = self.balance()
        return balance.spent_nano, balance.held_nano, balance.left_nano

    def log(self) -> list[ledger.Entry]:
        with transaction(self.factory, read_only=True) as session:
            return list(ledger.entries(session, self.account_id, 0, 1000))

    def kinds(self) -> list[str]:
        return [entry.kind.value for entry in self.log()]

    def hold_row(self, hold_id: str) -> ledger.Hold:
        with transaction(self.factory, read_only=True) as session:
            return ledger.get_hold(session, hold_id)

    def sql(self, statement: str) -> None:
        with transaction(self.factory) as session:
            session.execute(text(statement))

    def tamper(self, statement: str) -> None:
        """Do what only somebody with the rights of the tables' owner can do."""
        with transaction(self.factory) as session:
            if self.dialect == "sqlite":
                session.execute(text("DROP TRIGGER IF EXISTS entries_no_update"))
                session.execute(text("DROP TRIGGER IF EXISTS entries_no_delete"))
                session.execute(text(statement))
            else:
                session.execute(text("ALTER TABLE entries DISABLE TRIGGER USER"))
                session.execute(text(statement))
                session.execute(text("ALTER TABLE entries ENABLE TRIGGER USER"))
