"""Accounts and their logs.

Every amount of a budget that leaves the service comes from `Payments`, `read` or `page`, which compare it with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, groupby
from typing import Self

from sqlalchemy import select, text, tuple_
from sqlalchemy.orm import Session

from obscura.wire.schemas import (
    AccountRecord,
    BalanceFacts,
    EntryRecord,
    record_of,
    to_the_minute,
)
from obscura.wire.words import EntryKind
from service import ledger
from service.db.ledger_tables import AccountRow, HoldRow
from service.errors import LedgerCorruption, NotFound
from service.identity.access import require_visible, visible
from service.logs import get_logger
from service.views.rows import ROWS_MAX

ENTRIES_A_PAGE = 40
CHART_POINTS_MAX = 120  # on 640 pixels


@dataclass(frozen=True)
class DoubtfulAccount:
    """An account that its log contradicts, or a hold of it: nothing of its budget is shown."""

    id: str
    name: str
    owner: str
    delta: float
    unit: str
    adjacency: str
    fault: LedgerCorruption
    balance: None = None


Payer = AccountRecord | DoubtfulAccount


def account(row: ledger.Account) -> AccountRecord:
    """An account with its balance; its row was compared with the log when it was read."""
    return record_of(AccountRecord, row, balance=record_of(BalanceFacts, ledger.balance_of(row)))


def payer(row: ledger.Account, fault: LedgerCorruption | None) -> Payer:
    """An account whose log may contradict it, which an operator is told."""
    if fault is None:
        return account(row)
    get_logger(__name__).error("operator_needed", code=fault.code, message=fault.message, **fault.numbers)
    return DoubtfulAccount(row.id, row.name, row.owner, row.delta, row.unit, row.adjacency, fault)


def sound(shown: Payer) -> AccountRecord:
    """Let an account pass whose figures its log confirms.

    Raises:
        LedgerCorruption: They contradict it.
    """
    if isinstance(shown, DoubtfulAccount):
        raise shown.fault
    return shown


@dataclass(frozen=True)
class Payments:
    """Accounts and holds by their ids, each compared with the log: two queries, however many there are.

    An account is in doubt where its own figures are, or those of one of these holds. Pages say so and show the others;
    an answer of the API is refused.
    """

    accounts: Mapping[str, ledger.Account]
    holds: Mapping[str, ledger.Hold]
    faults: Mapping[str, LedgerCorruption]  # by the account's id

    @classmethod
    def read(cls, session: Session, account_ids: Iterable[str | None], hold_ids: Iterable[str | None] = ()) -> Self:
        """Read what these ids name, without those that are None."""
        holds = ledger.audited_holds(session, {id for id in hold_ids if id is not None})
        accounts = ledger.audited_by_id(session, {id for id in account_ids if id is not None})
        faults = {hold.account_id: fault for hold, fault in holds.values() if fault is not None}
        faults |= {id: fault for id, (_, fault) in accounts.items() if fault is not None}
        return cls(
            {id: row for id, (row, _) in accounts.items()}, {id: hold for id, (hold, _) in holds.items()}, faults
        )

    def require_sound(self) -> Self:
        """Let amounts pass that the log confirms.

        Raises:
            LedgerCorruption: The log contradicts one of them.
        """
        for fault in self.faults.values():
            raise fault
        return self

    def payer(self, account_id: str) -> Payer:
        """Return an account as it is shown.

        Raises:
            NotFound: No account has this id.
        """
        if account_id not in self.accounts:
            raise NotFound("There is no such account.", account_id=account_id)
        return payer(self.accounts[account_id], self.faults.get(account_id))

    def epsilon_of(self, account_id: str) -> Callable[[int], float]:
        """Return what reads nano-units as an epsilon at an account's delta; of an account in doubt, as none."""
        return (
            (lambda _nano: 0.0) if account_id in self.faults else ledger.filter_of(self.accounts[account_id]).epsilon_of
        )


def part_of_budget(payer: Payer, spent_nano: int) -> float | None:
    """Return what was spent, as a part of all that an account ever promises; None where its figures are in doubt."""
    balance = payer.balance
    if balance is None:
        return None
    return spent_nano / max(balance.capacity_nano, balance.spent_nano + balance.held_nano)


def read(session: Session, account_id: str) -> Payer:
    """Return an account, compared with its log.

    Raises:
        NotFound: No account has this id.
    """
    require_visible(session, AccountRow, account_id)
    return Payments.read(session, [account_id]).payer(account_id)


def page(session: Session, *, after: str | None, limit: int) -> tuple[list[Payer], str | None]:
    """Return a page of accounts, oldest first, each compared with its log, and the last one's id if there are more.

    Args:
        session: Any transaction.
        after: Id of the last account of the page before; None for the first page.
        limit: Of the page.

    Raises:
        NotFound: There is no such account.
    """
    order = AccountRow.created_at, AccountRow.id
    query = visible(session, AccountRow, select(AccountRow.id)).order_by(*order).limit(limit + 1)
    if after is not None:
        last = ledger.get_account(session, after)
        query = query.where(tuple_(*order) > (last.created_at, last.id))
    ids = session.scalars(query).all()
    paid = Payments.read(session, ids[:limit])
    return [paid.payer(id) for id in ids[:limit]], ids[limit - 1] if len(ids) > limit else None


def entry(row: ledger.Entry) -> EntryRecord:
    """A ledger row."""
    return record_of(EntryRecord, row)


@dataclass(frozen=True)
class EntriesPage:
    """Part of an account's log, newest first, checked against its chain."""

    entries: Sequence[EntryRecord]
    older_before: int | None
    newer_before: int | None

    @property
    def groups(self) -> list[list[EntryRecord]]:
        """The entries, newest first, with charges of one job and stage that follow each other together."""
        return [list(run) for _, run in groupby(self.entries, _charged_for)]


def _charged_for(row: EntryRecord) -> object:
    """Return the job and stage of a charge; of any other entry what no other has."""
    return (row.job_id, row.details.get("stage")) if row.kind == EntryKind.CHARGE else row.sequence


def newest_entries(session: Session, account_id: str, before: int | None) -> EntriesPage:
    """Return the entries below a sequence number, newest first, with their links checked.

    Raises:
        LedgerCorruption: The log is broken there.
    """
    head = ledger.get_account(session, account_id).head_sequence
    end = head + 1 if before is None else max(min(before, head + 1), 1)
    start = max(end - 1 - ENTRIES_A_PAGE, 0)
    rows = ledger.entries(session, account_id, start, end - 1 - start) if end - 1 > start else []
    newer = min(end + ENTRIES_A_PAGE, head + 1) if end <= head else None
    return EntriesPage([entry(row) for row in reversed(rows)], start + 1 if start > 0 else None, newer)


@dataclass(frozen=True)
class SpendPoint:
    """Balances of an account after one entry, as parts of its present capacity."""

    at: datetime
    spent: float
    held: float


def spending(session: Session, account_id: str) -> list[SpendPoint]:
    """Return the latest balances over time, oldest first.

    Raises:
        LedgerCorruption: The log is broken there.
    """
    account = ledger.get_account(session, account_id)
    before = max(account.head_sequence - CHART_POINTS_MAX, 0)
    rows = ledger.entries(session, account_id, before, CHART_POINTS_MAX)
    # What trainings do is dated by the hour, so an entry may bear an earlier time than the one before it.
    times = accumulate((to_the_minute(row.created_at) for row in rows), max)
    capacity = account.capacity_nano
    return [
        SpendPoint(at, row.spent_nano / capacity, row.held_nano / capacity) for at, row in zip(times, rows, strict=True)
    ]


def open_holds(session: Session, account_id: str) -> list[ledger.Hold] | None:
    """Return the holds of an account that reserve budget now, oldest first; None where the log contradicts one."""
    # The states are spelt out, for SQLite uses the index on open holds only where it sees them.
    of_account = HoldRow.account_id == account_id
    query = visible(session, HoldRow, select(HoldRow.id)).where(of_account, text("state IN ('held', 'armed')"))
    ids = session.scalars(query.order_by(HoldRow.created_at).limit(ROWS_MAX)).all()
    paid = Payments.read(session, [account_id], ids)
    return None if isinstance(paid.payer(account_id), DoubtfulAccount) else [paid.holds[id] for id in ids]
