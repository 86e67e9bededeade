"""What the pages show, read in one transaction each. Nothing here writes, and job secrets are never loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased, defer, joinedload

from service import ledger
from service.db.tables import (
    Account,
    ApiKey,
    Dataset,
    Entry,
    Hold,
    HoldState,
    Job,
    LimitRequest,
    LimitRequestState,
    Release,
    Sample,
    Visibility,
)
from service.errors import NotFound

ROWS_MAX = 200
RECENT_RELEASES = 6
RECENT_REQUESTS = 8
ENTRIES_A_PAGE = 50
CHART_POINTS_MAX = 1000


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


@dataclass(frozen=True)
class SpendPoint:
    """Balances of an account after one entry."""

    at: datetime
    spent: float
    held: float


def list_accounts(session: Session) -> list[AccountView]:
    """Return all accounts, oldest first, at most ROWS_MAX, each checked against its log.

    Raises:
        LedgerCorruption: The balances of one contradict its log.
    """
    return [read_account(session, row.id) for row in ledger.accounts(session, after=None, limit=ROWS_MAX)]


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
    asking, deciding = aliased(ApiKey), aliased(ApiKey)
    query = (
        select(LimitRequest, Account.name, asking.name, deciding.name)
        .join(Account, Account.id == LimitRequest.account_id)
        .join(asking, asking.id == LimitRequest.requested_by)
        .outerjoin(deciding, deciding.id == LimitRequest.decided_by)
        .order_by(LimitRequest.requested_at.desc(), LimitRequest.id)
    )
    if account_id is not None:
        query = query.where(LimitRequest.account_id == account_id)
    return [
        LimitRequestView(request, account, asked_by, decided_by, ledger.has_expired(request, now))
        for request, account, asked_by, decided_by in session.execute(query.limit(limit))
    ]


def list_open_holds(session: Session, account_id: str) -> Sequence[Hold]:
    """Return the holds of an account that reserve budget now, oldest first."""
    query = select(Hold).where(Hold.account_id == account_id, Hold.state.in_((HoldState.HELD, HoldState.ARMED)))
    return session.scalars(query.order_by(Hold.created_at).limit(ROWS_MAX)).all()


def read_spending(session: Session, account: ledger.Account) -> list[SpendPoint]:
    """Return the latest balances over time, oldest first, as parts of the present capacity."""
    query = (
        select(Entry.created_at, Entry.spent_nano, Entry.held_nano)
        .where(Entry.account_id == account.id)
        .order_by(Entry.sequence.desc())
        .limit(CHART_POINTS_MAX)
    )
    capacity = account.capacity_nano
    points = [SpendPoint(at, spent / capacity, held / capacity) for at, spent, held in session.execute(query)]
    return points[::-1]


def list_datasets(session: Session, account_id: str) -> Sequence[Dataset]:
    """Return the private datasets of an account, oldest first."""
    query = select(Dataset).where(Dataset.account_id == account_id, Dataset.visibility == Visibility.PRIVATE)
    return session.scalars(query.order_by(Dataset.created_at).limit(ROWS_MAX)).all()


def list_releases(session: Session, *, limit: int, account_id: str | None = None) -> Sequence[Release]:
    """Return releases, newest first."""
    query = select(Release).options(joinedload(Release.account), joinedload(Release.dataset))
    if account_id is not None:
        query = query.where(Release.account_id == account_id)
    return session.scalars(query.order_by(Release.created_at.desc()).limit(limit)).all()


def read_release(session: Session, release_id: str) -> Release:
    """Return one release.

    Raises:
        NotFound: There is none.
    """
    query = select(Release).options(
        joinedload(Release.account),
        joinedload(Release.dataset),
        joinedload(Release.job).options(
            defer(Job.secret, raiseload=True), joinedload(Job.hold), joinedload(Job.evaluation_dataset)
        ),
    )
    release = session.scalar(query.where(Release.id == release_id))
    if release is None:
        raise NotFound("There is no such release.")
    return release


def list_samples(session: Session, release_id: str) -> Sequence[Sample]:
    """Return the drawings from a release, newest first."""
    query = select(Sample).options(joinedload(Sample.job).defer(Job.secret, raiseload=True))
    return session.scalars(
        query.where(Sample.release_id == release_id).order_by(Sample.created_at.desc()).limit(ROWS_MAX)
    ).all()


def read_sample(session: Session, sample_id: str) -> Sample:
    """Return one finished drawing.

    Raises:
        NotFound: There is none, or it has no file yet.
    """
    sample = session.get(Sample, sample_id)
    if sample is None or sample.path is None:
        raise NotFound("There is no such file.")
    return sample


def count_releases(session: Session) -> int:
    """Return how many releases there are."""
    return session.scalar(select(func.count()).select_from(Release)) or 0
