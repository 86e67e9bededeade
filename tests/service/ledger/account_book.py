"""An account with short names for the ledger's steps, for the tests of the ledger."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import text

from obscura.wire.schemas import BalanceFacts
from obscura.wire.words import HoldState
from privacy.accounting.filter import open_filter
from service import ledger
from service.db.session import SessionFactory, transaction
from tests.service.holds import charge, hold_at_present_rate

CAPACITY = open_filter(8.0, 1e-5).capacity_nano
SHA = "ab" * 32


class AccountBook:
    """An account and the ledger's steps on it, each in its own transaction."""

    def __init__(self, factory: SessionFactory, account_id: str, now: datetime) -> None:
        self.factory, self.account_id, self.now = factory, account_id, now
        self.jobs = 0
        self.dialect: str = factory.kw["bind"].dialect.name

    def do(self, step: Callable[..., Any], *arguments: Any, **facts: Any) -> Any:
        with transaction(self.factory) as session:
            return step(session, *arguments, **{"now": self.now, **facts})

    def read(self, look: Callable[..., Any], *arguments: Any, **facts: Any) -> Any:
        with transaction(self.factory, read_only=True) as session:
            return look(session, *arguments, **facts)

    def hold(self, amount_nano: int, *, attempt: int = 0) -> str:
        self.jobs += 1
        facts = {"account_id": self.account_id, "job_id": f"job_{self.jobs:020}"}
        hold_id: str = self.do(hold_at_present_rate, amount_nano=amount_nano, **facts).id
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
        self.do(ledger.fence, hold_id=hold_id, attempt=attempt)

    def arm(self, hold_id: str, attempt: int) -> HoldState:
        return self.do(ledger.arm, hold_id=hold_id, attempt=attempt).state

    def charge(self, hold_id: str, attempt: int, amount_nano: int) -> int:
        return self.do(charge, hold_id=hold_id, attempt=attempt, amount_nano=amount_nano)

    def capture(self, hold_id: str, attempt: int, sha: str | None = SHA) -> HoldState:
        return self.do(ledger.capture, hold_id=hold_id, attempt=attempt, artifact_sha256=sha, reason="published").state

    def give_back(self, hold_id: str) -> HoldState:
        return self.do(ledger.return_hold, hold_id=hold_id, reason="cancelled").state

    def lower(self, epsilon: float, *, by: str | None = None) -> ledger.Account:
        facts = {"epsilon": epsilon, "reason": "the owner asked", "by": by}
        return self.do(ledger.lower_limit, account_id=self.account_id, **facts)

    def freeze(self, frozen: bool, *, reason: str = "an audit", by: str | None = None) -> None:
        self.do(ledger.set_frozen, account_id=self.account_id, frozen=frozen, reason=reason, by=by)

    def balance(self) -> BalanceFacts:
        return self.read(ledger.balance, self.account_id)

    def money(self) -> tuple[int, int, int]:
        balance = self.balance()
        return balance.spent_nano, balance.reserved_nano, balance.left_nano

    def log(self) -> list[ledger.Entry]:
        return list(self.read(ledger.entries, self.account_id, 0, 1000))

    def kinds(self) -> list[str]:
        return [entry.kind.value for entry in self.log()]

    def hold_row(self, hold_id: str) -> ledger.Hold:
        return self.read(ledger.get_hold, hold_id)

    def sql(self, statement: str) -> None:
        with transaction(self.factory) as session:
            session.execute(text(statement))

    def tamper(self, statement: str) -> None:
        """Run a statement with the rights of the tables' owner."""
        with transaction(self.factory) as session:
            if self.dialect == "sqlite":
                session.execute(text("DROP TRIGGER IF EXISTS entries_no_update"))
                session.execute(text("DROP TRIGGER IF EXISTS entries_no_delete"))
                session.execute(text(statement))
            else:
                session.execute(text("ALTER TABLE entries DISABLE TRIGGER USER"))
                session.execute(text(statement))
                session.execute(text("ALTER TABLE entries ENABLE TRIGGER USER"))
