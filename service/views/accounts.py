"""Accounts and their logs.

Every amount shown to users comes from `Payments`, `read` or `page`, which compare it with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, groupby
from typing import Self

from sqlalchemy import select, text, tuple_
from sqlalchemy.orm import Session

from obscura.wire.schemas import AccountRecord, AccountTerms, EntryRecord, record_of, to_the_minute
from obscura.wire.words import EntryKind
from service import ledger
from service.db.ledger_tables import Account, Hold
from service.errors import LedgerCorruption, NotFound
from service.identity.access import require_visible, visible
from service.logs import get_logger
from service.views import ROWS_MAX

ENTRIES_A_PAGE = 40
CHART_POINTS_MAX = 120  # for 640 pixels


class DoubtfulAccount(AccountTerms, arbitrary_types_allowed=True):
    """An account whose log contradicts its row or one of its holds. No amount is shown."""

    fault: LedgerCorruption
    balance: None = None


Payer = AccountRecord | DoubtfulAccount


def account(row: ledger.Account) -> AccountRecord:
    """Return the record of an account that is already compared with its log."""
    return record_of(AccountRecord, row, balance=ledger.balance_of(row))


def sound(shown: Payer) -> AccountRecord:
    """Return an account's record; raise LedgerCorruption if its log contradicts it."""
    if isinstance(shown, DoubtfulAccount):
        raise shown.fault
    return shown


@dataclass(frozen=True)
class Payments:
    """Accounts and holds by id, compared with the log in two queries.

    An account is in doubt if its amounts or one of these holds contradict the log. Pages mark it and show the other
    accounts; the API returns an error.
    """

    accounts: Mapping[str, ledger.Account]
    holds: Mapping[str, ledger.Hold]
    faults: Mapping[str, LedgerCorruption]  # by account id

    @classmethod
    def read(cls, session: Session, account_ids: Iterable[str | None], hold_ids: Iterable[str | None] = ()) -> Self:
        """Read accounts and holds by id, ignoring None."""
        holds = ledger.audited(session, ledger.Hold, {id for id in hold_ids if id is not None})
        accounts = ledger.audited(session, ledger.Account, {id for id in account_ids if id is not None})
        faults = {hold.account_id: fault for hold, fault in holds.values() if fault is not None}
        faults |= {id: fault for id, (_, fault) in accounts.items() if fault is not None}
        sound = {id: hold for id, (hold, _) in holds.items()}
        return cls({id: row for id, (row, _) in accounts.items()}, sound, faults)

    def require_sound(self) -> Self:
        """Raise LedgerCorruption if the log contradicts any account or hold."""
        for fault in self.faults.values():
            raise fault
        return self

    def payer(self, account_id: str) -> Payer:
        """Return an account for display. If the log contradicts the account, alert the operator."""
        if account_id not in self.accounts:
            raise NotFound("There is no such account.", account_id=account_id)
        row, fault = self.accounts[account_id], self.faults.get(account_id)
        if fault is None:
            return account(row)
        get_logger(__name__).error("operator_needed", code=fault.code, message=fault.message, **fault.numbers)
        terms = {name: getattr(row, name) for name in AccountTerms.model_fields}
        return DoubtfulAccount.model_construct(**terms, fault=fault)  # not validated: the row may contain anything

    def epsilon_of(self, account_id: str) -> Callable[[int], float]:
        """Return a function from nano-units to epsilon at an account's delta. For an account in doubt, it returns 0."""
        if account_id in self.faults:
            return lambda _nano: 0.0
        return ledger.filter_of(self.accounts[account_id]).epsilon_of


def read(session: Session, account_id: str) -> Payer:
    """Return an account, compared with its log."""
    require_visible(session, Account, account_id)
    return Payments.read(session, [account_id]).payer(account_id)


def page(session: Session, *, after: str | None, limit: int) -> tuple[list[Payer], str | None]:
    """Return a page of accounts after an id, oldest first, compared with their logs."""
    order = Account.created_at, Account.id
    query = visible(session, Account, select(Account.id)).order_by(*order).limit(limit + 1)
    if after is not None:
        last = ledger.get_account(session, after)
        query = query.where(tuple_(*order) > (last.created_at, last.id))
    ids = session.scalars(query).all()
    paid = Payments.read(session, ids[:limit])
    return [paid.payer(id) for id in ids[:limit]], ids[limit - 1] if len(ids) > limit else None


@dataclass(frozen=True)
class EntriesPage:
    """Part of an account's log, newest first, with its chain verified."""

    groups: Sequence[Sequence[EntryRecord]]  # consecutive charges of one job and stage are one group
    older_before: int | None  # sequence number for the page of older entries; None if there are none
    newer_before: int | None


def newest_entries(session: Session, account_id: str, before: int | None) -> EntriesPage:
    """Return the entries below a sequence number, newest first, with their chain verified."""
    head = ledger.get_account(session, account_id).head_sequence
    end = head + 1 if before is None else max(min(before, head + 1), 1)
    start = max(end - 1 - ENTRIES_A_PAGE, 0)
    rows = ledger.entries(session, account_id, start, end - 1 - start) if end - 1 > start else []
    newer = min(end + ENTRIES_A_PAGE, head + 1) if end <= head else None
    shown = [record_of(EntryRecord, row) for row in reversed(rows)]
    runs = groupby(
        shown, lambda row: (row.job_id, row.details.get("stage")) if row.kind == EntryKind.CHARGE else row.sequence
    )
    return EntriesPage([list(run) for _, run in runs], start + 1 if start > 0 else None, newer)


@dataclass(frozen=True)
class SpendPoint:
    """Balances after one entry, as fractions of the current capacity."""

    at: datetime
    spent: float
    held: float


def spending(session: Session, account_id: str) -> list[SpendPoint]:
    """Return the latest balances, oldest first."""
    account = ledger.get_account(session, account_id)
    before = max(account.head_sequence - CHART_POINTS_MAX, 0)
    rows = ledger.entries(session, account_id, before, CHART_POINTS_MAX)
    # Entries of trainings are dated by the hour, so one may have an earlier time than the entry before it.
    times = accumulate((to_the_minute(row.created_at) for row in rows), max)
    capacity = account.capacity_nano
    return [
        SpendPoint(at, row.spent_nano / capacity, row.reserved_nano / capacity)
        for at, row in zip(times, rows, strict=True)
    ]


def open_holds(session: Session, account_id: str) -> list[ledger.Hold] | None:
    """Return the open holds of an account, oldest first; None if the account contradicts its log."""
    # Literals, because SQLite uses the partial index on open holds only if it sees the states.
    of_account = Hold.account_id == account_id
    query = visible(session, Hold, select(Hold.id)).where(of_account, text("state IN ('held', 'armed')"))
    ids = session.scalars(query.order_by(Hold.created_at).limit(ROWS_MAX)).all()
    paid = Payments.read(session, [account_id], ids)
    return None if isinstance(paid.payer(account_id), DoubtfulAccount) else [paid.holds[id] for id in ids]
