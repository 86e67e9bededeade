"""What the pages show, read in one transaction each. Nothing here writes, and job secrets are never loaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from obscura.wire.words import DatasetState, EntryKind, Visibility
from privacy.plans.registry import RECIPES
from service import ledger
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release
from service.db.ledger_tables import AccountRow, HoldRow
from service.errors import LedgerCorruption, NotFound
from service.logs import get_logger
from service.wording import NONE_SHOWN

ROWS_MAX = 200
ACCOUNTS_A_PAGE = 25
ENTRIES_A_PAGE = 60
CHART_POINTS_MAX = 120  # on 640 pixels
CHOICES_MAX = 50  # of a field
ACCOUNT_CHOICES = (AccountRow.id, AccountRow.name, AccountRow.unit)


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
    """An account that its log contradicts, or a hold of it: nothing of its budget is shown."""

    account: ledger.Account
    balance: None = None


Payer = AccountView | DoubtfulAccount


class AccountInDoubt(LedgerCorruption):
    """There is nothing on a page but the figures of one account, and its log contradicts them."""


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


def list_accounts(session: Session, *, after: str | None = None) -> tuple[list[Payer], str | None]:
    """Return a page of accounts, oldest first, each checked against its log, and the last one's id if there are more.

    An account that its log contradicts is shown without figures; it does not take the others' away.

    Args:
        session: Any transaction.
        after: Id of the last account of the page before; None for the first page.

    Raises:
        NotFound: There is no such account.
    """
    rows = ledger.audited_accounts(session, after=after, limit=ACCOUNTS_A_PAGE + 1)
    shown = [_payer(account, fault) for account, fault in rows[:ACCOUNTS_A_PAGE]]
    return shown, shown[-1].account.id if len(rows) > ACCOUNTS_A_PAGE else None


def read_payers(
    session: Session, account_ids: Collection[str], hold_ids: Collection[str] = ()
) -> tuple[dict[str, Payer], dict[str, ledger.Hold]]:
    """Return accounts and holds by their ids: this, or what it calls, is how every page comes by amounts of a budget.

    Each is checked against the log. An account is in doubt where its own figures are, or those of one of these holds.
    """
    holds = ledger.audited_holds(session, hold_ids)
    doubted = {reserved.account_id: fault for reserved, fault in holds.values() if fault is not None}
    accounts = ledger.audited_by_id(session, account_ids)
    payers = {id: _payer(account, fault or doubted.get(id)) for id, (account, fault) in accounts.items()}
    return payers, {id: reserved for id, (reserved, _fault) in holds.items()}


def read_payer(session: Session, account_id: str) -> Payer:
    """Return an account, checked against its log.

    Raises:
        NotFound: There is none.
    """
    payers, _holds = read_payers(session, [account_id])
    if account_id not in payers:
        raise NotFound("There is no such account.")
    return payers[account_id]


def read_account(session: Session, account_id: str) -> AccountView:
    """Return an account whose page has nothing else to show.

    Raises:
        NotFound: There is none.
        AccountInDoubt: Its balances contradict the log.
    """
    payer = read_payer(session, account_id)
    if isinstance(payer, DoubtfulAccount):
        raise AccountInDoubt(f"The figures of account {payer.account.name} contradict its log. {NONE_SHOWN}")
    return payer


def _payer(account: ledger.Account, fault: LedgerCorruption | None) -> Payer:
    if fault is None:
        return AccountView(account, ledger.balance_of(account))
    get_logger(__name__).error("operator_needed", code=fault.code, message=fault.message, **fault.numbers)
    return DoubtfulAccount(account)


def list_entries(session: Session, account: ledger.Account, before: int | None) -> EntriesPage:
    """Return the entries below a sequence number, newest first, with their links checked."""
    end = account.head_sequence + 1 if before is None else max(min(before, account.head_sequence + 1), 1)
    start = max(end - 1 - ENTRIES_A_PAGE, 0)
    rows = ledger.entries(session, account.id, start, end - 1 - start) if end - 1 > start else []
    newer = min(end + ENTRIES_A_PAGE, account.head_sequence + 1) if end <= account.head_sequence else None
    return EntriesPage(list(reversed(rows)), older_before=start + 1 if start > 0 else None, newer_before=newer)


def list_open_holds(session: Session, account_id: str) -> list[ledger.Hold] | None:
    """Return the holds of an account that reserve budget now, oldest first; None where the log contradicts one."""
    # The states are spelt out, for SQLite uses the index on open holds only where it sees them.
    query = select(HoldRow.id).where(HoldRow.account_id == account_id, text("state IN ('held', 'armed')"))
    ids = session.scalars(query.order_by(HoldRow.created_at).limit(ROWS_MAX)).all()
    payers, holds = read_payers(session, [account_id], ids)
    return None if isinstance(payers[account_id], DoubtfulAccount) else [holds[id] for id in ids]


def read_spending(session: Session, account: ledger.Account) -> list[SpendPoint]:
    """Return the latest balances over time, oldest first, as parts of the present capacity.

    Raises:
        LedgerCorruption: Its log is broken there.
    """
    capacity, before = account.capacity_nano, max(account.head_sequence - CHART_POINTS_MAX, 0)
    rows = ledger.entries(session, account.id, before, CHART_POINTS_MAX)
    # What trainings do is dated by the hour, so an entry may bear an earlier time than the one before it.
    times = accumulate((row.created_at for row in rows), max)
    return [
        SpendPoint(at, row.spent_nano / capacity, row.held_nano / capacity) for at, row in zip(times, rows, strict=True)
    ]


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
