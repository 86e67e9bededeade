"""An account with short names for the ledger's steps, for the tests of the ledger."""

from datetime import datetime

from obscura.wire.words import HoldState
from privacy.accounting.filter import open_filter
from service import ledger
from service.db.session import SessionFactory
from tests.service.steps import Steps, WithAccount, charge, hold_amount

CAPACITY = open_filter(8.0, 1e-5).capacity_nano
SHA = "ab" * 32


class AccountBook(WithAccount, Steps):
    """An account and the ledger's steps on it."""

    def __init__(self, factory: SessionFactory, account_id: str, now: datetime) -> None:
        self.factory, self.account_id, self.now = factory, account_id, now
        self.jobs = 0

    def hold(self, amount_nano: int, *, attempt: int = 0) -> str:
        self.jobs += 1
        facts = {"account_id": self.account_id, "job_id": f"job_{self.jobs:020}"}
        hold_id: str = self.do(hold_amount, amount_nano=amount_nano, **facts).id
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
        return self.do(ledger.limits.lower_limit, account_id=self.account_id, **facts)

    def freeze(self, frozen: bool, *, reason: str = "an audit", by: str | None = None) -> None:
        self.do(ledger.limits.set_frozen, account_id=self.account_id, frozen=frozen, reason=reason, by=by)

    def money(self) -> tuple[int, int, int]:
        balance = self.balance()
        return balance.spent_nano, balance.reserved_nano, balance.left_nano

    def hold_row(self, hold_id: str) -> ledger.Hold:
        return self.read(ledger.get_hold, hold_id)
