"""Accounts and their logs.

Every amount shown to users comes from `Payments`, `read` or `page`, which compare it with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Self

from sqlalchemy import select, text, tuple_
from sqlalchemy.orm import Session

from obscura.wire.admin_schemas import DecisionRecord
from obscura.wire.schemas import AccountRecord, AccountTerms, BalanceFacts, EntryRecord, record_of
from obscura.wire.words import DecisionAction, DecisionState, EntryKind
from privacy.errors import InvalidParameter
from service import ledger
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.ledger_tables import Account, Entry, Hold
from service.errors import LedgerCorruption, NotFound
from service.identity.access import require_visible, visible
from service.logs import get_logger
from service.views import ROWS_MAX
from service.wording import RECIPE_TITLES

GROUPS_A_PAGE = 20
ENTRIES_A_PAGE = 200
BARS_MAX = 20  # of a chart, legible at 390 pixels


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


def effects_of(session: Session, requests: Iterable[DecisionRecord]) -> dict[str, tuple[BalanceFacts, BalanceFacts]]:
    """Return the balances before and after each raise that can be approved, by request id.

    Accounts that contradict their log, and limits that no longer fit, are left out.
    """
    raises = [each for each in requests if each.action == DecisionAction.RAISE and each.state == DecisionState.PENDING]
    paid, shown = Payments.read(session, [each.account_id for each in raises]), {}
    for each in raises:
        row = paid.accounts[str(each.account_id)]
        if row.id not in paid.faults:
            with suppress(InvalidParameter):
                shown[each.id] = ledger.balance_of(row), ledger.balance_of(row, each.epsilon)
    return shown


@dataclass(frozen=True)
class JobCost:
    """A job's share of its account's present budget. Shares add up; epsilons do not."""

    job_id: str
    words: str | None  # "Training Moments on digits"; None if the caller may not see the job
    ended: EntryKind | None  # CAPTURE or RETURN; None while its budget is reserved
    at: datetime
    share: float


@dataclass(frozen=True)
class LogGroup:
    """All entries of one job, or one entry without a job."""

    cost: JobCost | None
    runs: Sequence[Sequence[EntryRecord]]  # consecutive charges of one stage are one run


def log_groups(session: Session, account_id: str, before: int | None) -> tuple[list[LogGroup], int | None]:
    """Return a page of an account's log, newest first, and the sequence number before which the next page starts."""
    groups = ledger.entries_by_job(session, account_id, before, limit=GROUPS_A_PAGE, most=ENTRIES_A_PAGE)
    costs, shown = _costs(session, account_id, groups), []
    for group in groups:
        records = [record_of(EntryRecord, row) for row in group]
        runs = groupby(records, lambda row: row.details["stage"] if row.kind == EntryKind.CHARGE else row.sequence)
        shown.append(LogGroup(costs.get(group[0].job_id or ""), [list(run) for _, run in runs]))
    oldest = groups[-1][0].sequence if groups else 1
    return shown, oldest if oldest > 1 else None


def recent_costs(session: Session, account_id: str) -> tuple[list[JobCost], float]:
    """Return the newest jobs that cost something, oldest first, and the share spent besides them."""
    groups = ledger.entries_by_job(session, account_id, limit=BARS_MAX, most=ENTRIES_A_PAGE, only_jobs=True)
    costs = [cost for cost in _costs(session, account_id, groups[::-1]).values() if cost.share]
    account = ledger.get_account(session, account_id)
    spent = sum(cost.share for cost in costs if cost.ended)
    return costs, max(account.spent_nano / account.capacity_nano - spent, 0.0)


def _costs(session: Session, account_id: str, groups: Sequence[Sequence[Entry]]) -> dict[str, JobCost]:
    """Return the costs of the jobs among groups of entries, by job id."""
    capacity_nano, by_job = ledger.get_account(session, account_id).capacity_nano, {}
    job_ids = [group[0].job_id for group in groups if group[0].job_id]
    jobs = visible(session, Job, select(Job.id, Job.recipe, Dataset.name)).where(Job.id.in_(job_ids))
    rows = session.execute(jobs.outerjoin(Dataset, Dataset.id == Job.dataset_id))
    words = {row.id: f"Training {RECIPE_TITLES.get(row.recipe, row.recipe)} on {row.name}" for row in rows}
    for head, last in ((group[0], group[-1]) for group in groups):
        if head.job_id is not None:
            ended = last.kind if last.kind in (EntryKind.CAPTURE, EntryKind.RETURN) else None
            amount_nano = 0 if ended is EntryKind.RETURN else last.amount_nano if ended else head.amount_nano
            share = amount_nano / capacity_nano
            by_job[head.job_id] = JobCost(head.job_id, words.get(head.job_id), ended, head.created_at, share)
    return by_job


def open_holds(session: Session, account_id: str) -> list[ledger.Hold] | None:
    """Return the open holds of an account, oldest first; None if the account contradicts its log."""
    # Literals, because SQLite uses the partial index on open holds only if it sees the states.
    of_account = Hold.account_id == account_id
    query = visible(session, Hold, select(Hold.id)).where(of_account, text("state IN ('held', 'armed')"))
    ids = session.scalars(query.order_by(Hold.created_at).limit(ROWS_MAX)).all()
    paid = Payments.read(session, [account_id], ids)
    return None if isinstance(paid.payer(account_id), DoubtfulAccount) else [paid.holds[id] for id in ids]
