"""What the pages show, read in one transaction each. Nothing here writes, and job secrets are never loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from sqlalchemy import select, text
from sqlalchemy.orm import Session, aliased

from privacy.plans.registry import RECIPES
from service import ledger
from service.db.access_tables import Admin
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release
from service.db.ledger_tables import AccountRow, EntryRow, HoldRow, LimitRequest
from service.db.words import DatasetState, EntryKind, LimitRequestState, Visibility
from service.logs import get_logger

ROWS_MAX = 200
ACCOUNTS_A_PAGE = 25
RECENT_REQUESTS = 8
ENTRIES_A_PAGE = 60
CHART_POINTS_MAX = 120  # on 640 pixels
CHOICES_MAX = 50  # of a field
ACCOUNT_CHOICES = (AccountRow.id, AccountRow.name, AccountRow.unit)

_ASKING, _DECIDING = aliased(Admin), aliased(Admin)
_LIMIT_REQUESTS = (
    select(LimitRequest, AccountRow.name, _ASKING.name, _DECIDING.name)
    .join(AccountRow, AccountRow.id == LimitRequest.account_id)
    .join(_ASKING, _ASKING.id == LimitRequest.requested_by_admin)
    .outerjoin(_DECIDING, _DECIDING.id == LimitRequest.decided_by_admin)
    .order_by(LimitRequest.requested_at.desc(), LimitRequest.id)
)


@dataclass(frozen=True)
class AccountView:
    """An account, its balance, and the shares of its lifetime budget. Shares add up; epsilons do not."""

    account: ledger.Account
    balance: ledger.Balance

    @property
    def spent_share(self) -> float:
        """Spent part of the capacity, 0 to 1."""
        return min(self.balance.spent_nano / self.balance.capacity_nano, 1.0)

    @property
    def held_share(self) -> float:
        """Held part of the capacity, 0 to 1."""
        return min(self.balance.held_nano / self.balance.capacity_nano, 1.0 - self.spent_share)

    @property
    def left_share(self) -> float:
        """Part that is left, 0 to 1."""
        return self.balance.left_nano / self.balance.capacity_nano


@dataclass(frozen=True)
class DoubtfulAccount:
    """An account that its log contradicts: nothing of its budget is shown."""

    account: ledger.Account
    balance: None = None


@dataclass(frozen=True)
class LimitRequestView:
    """A request to raise a limit, with the names of the keys that asked and decided."""

    request: LimitRequest
    account_name: str
    asked_by: str
    decided_by: str | None
    expired: bool

    @property
    def pending(self) -> bool:
        """Whether it waits for a second admin."""
        return self.request.state is LimitRequestState.PENDING and not self.expired


@dataclass(frozen=True)
class EntriesPage:
    """Part of an account's log, newest first, checked against its chain."""

    entries: Sequence[ledger.Entry]
    older_before: int | None
    newer_before: int | None

    @property
    def groups(self) -> list[list[ledger.Entry]]:
        """The entries, newest first, with charges of one job and stage that follow each other together."""
        groups: list[list[ledger.Entry]] = []
        for entry in self.entries:
            if groups and entry.kind is EntryKind.CHARGE and _charged_for(groups[-1][-1]) == _charged_for(entry):
                groups[-1].append(entry)
            else:
                groups.append([entry])
        return groups


def _charged_for(entry: ledger.Entry) -> tuple[EntryKind, str | None, object]:
    return entry.kind, entry.job_id, entry.details.get("stage")


@dataclass(frozen=True)
class SpendPoint:
    """Balances of an account after one entry."""

    at: datetime
    spent: float
    held: float


def list_accounts(
    session: Session, *, after: str | None = None
) -> tuple[list[AccountView | DoubtfulAccount], str | None]:
    """Return a page of accounts, oldest first, each checked against its log, and the last one's id if there are more.

    An account that its log contradicts is shown without figures; it does not take the others' away.

    Args:
        session: Any transaction.
        after: Id of the last account of the page before; None for the first page.

    Raises:
        NotFound: There is no such account.
    """
    rows = ledger.audited_accounts(session, after=after, limit=ACCOUNTS_A_PAGE + 1)
    shown: list[AccountView | DoubtfulAccount] = []
    for account, fault in rows[:ACCOUNTS_A_PAGE]:
        if fault is None:
            shown.append(AccountView(account, ledger.balance_of(account)))
        else:
            get_logger(__name__).error("operator_needed", code=fault.code, message=fault.message, **fault.numbers)
            shown.append(DoubtfulAccount(account))
    return shown, shown[-1].account.id if len(rows) > ACCOUNTS_A_PAGE else None


def read_account(session: Session, account_id: str) -> AccountView:
    """Return an account, checked against its log.

    Raises:
        NotFound: There is none.
        LedgerCorruption: Its balances contradict the log.
    """
    account = ledger.get_account(session, account_id)
    return AccountView(account, ledger.balance_of(account))


def list_entries(session: Session, account: ledger.Account, before: int | None) -> EntriesPage:
    """Return the entries below a sequence number, newest first, with their links checked."""
    end = account.head_sequence + 1 if before is None else max(min(before, account.head_sequence + 1), 1)
    start = max(end - 1 - ENTRIES_A_PAGE, 0)
    rows = ledger.entries(session, account.id, start, end - 1 - start) if end - 1 > start else []
    newer = min(end + ENTRIES_A_PAGE, account.head_sequence + 1) if end <= account.head_sequence else None
    return EntriesPage(list(reversed(rows)), older_before=start + 1 if start > 0 else None, newer_before=newer)


def list_limit_requests(
    session: Session, now: datetime, *, account_id: str | None = None, limit: int = RECENT_REQUESTS
) -> list[LimitRequestView]:
    """Return the latest requests to raise the limit of an account, or of any, newest first."""
    query = _LIMIT_REQUESTS if account_id is None else _LIMIT_REQUESTS.where(LimitRequest.account_id == account_id)
    return [
        LimitRequestView(request, account, asked_by, decided_by, ledger.has_expired(request, now))
        for request, account, asked_by, decided_by in session.execute(query.limit(limit))
    ]


def list_open_holds(session: Session, account_id: str) -> Sequence[HoldRow]:
    """Return the holds of an account that reserve budget now, oldest first."""
    # The states are spelt out, for SQLite uses the index on open holds only where it sees them.
    query = select(HoldRow).where(HoldRow.account_id == account_id, text("state IN ('held', 'armed')"))
    return session.scalars(query.order_by(HoldRow.created_at).limit(ROWS_MAX)).all()


def read_spending(session: Session, account: ledger.Account) -> list[SpendPoint]:
    """Return the latest balances over time, oldest first, as parts of the present capacity."""
    query = (
        select(EntryRow.created_at, EntryRow.spent_nano, EntryRow.held_nano)
        .where(EntryRow.account_id == account.id)
        .order_by(EntryRow.sequence.desc())
        .limit(CHART_POINTS_MAX)
    )
    capacity = account.capacity_nano
    rows = session.execute(query).all()[::-1]
    # What trainings do is dated by the hour, so an entry may bear an earlier time than the one before it.
    times = accumulate((at for at, _, _ in rows), max)
    return [SpendPoint(at, spent / capacity, held / capacity) for at, (_, spent, held) in zip(times, rows, strict=True)]


def list_datasets(session: Session, account_id: str) -> Sequence[Dataset]:
    """Return the private datasets of an account, oldest first."""
    query = select(Dataset).where(Dataset.account_id == account_id, Dataset.visibility == Visibility.PRIVATE)
    return session.scalars(query.order_by(Dataset.created_at).limit(ROWS_MAX)).all()


@dataclass(frozen=True)
class FirstSteps:
    """What a new installation has done by now on the way to its first release."""

    account: bool
    images: bool
    training: bool


def first_steps(session: Session) -> FirstSteps | None:
    """Return how far a new installation has come; None once it has released something."""
    if session.scalar(select(Release.id).limit(1)) is not None:
        return None
    ready = select(Dataset.id).where(Dataset.state == DatasetState.READY, Dataset.visibility == Visibility.PRIVATE)
    asked = select(Job.id).where(Job.recipe.in_(list(RECIPES)))
    return FirstSteps(*(session.scalar(query.limit(1)) is not None for query in (select(AccountRow.id), ready, asked)))
