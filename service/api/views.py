"""Table rows as wire records: what a record's schema does not name does not leave the service.

Functions take rows that were read in the caller's transaction. Those of jobs and of releases, which need more rows, are
in `service.api.job_views`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.admin_schemas import AdminRecord, AdminRequestRecord, KeyRecord
from obscura.wire.job_schemas import BudgetFacts, PlanRecord, PlanRequest, StageFacts
from obscura.wire.schemas import (
    AccountRecord,
    BalanceFacts,
    CountRecord,
    DatasetRecord,
    EntryRecord,
    LimitRequestRecord,
    record_of,
)
from obscura.wire.words import Visibility
from privacy.plans.plan import Plan
from service import admins, decisions, ledger
from service.db.access_tables import Admin, ApiKey, Decision
from service.db.dataset_tables import Dataset


def account(row: ledger.Account) -> AccountRecord:
    """An account with its balance."""
    return record_of(AccountRecord, row, balance=record_of(BalanceFacts, ledger.balance_of(row)))


def limit_request(row: Decision, now: datetime) -> LimitRequestRecord:
    """A request to raise a limit."""
    return record_of(
        LimitRequestRecord,
        row,
        requested_by=row.asked_with,
        requested_by_admin=row.asked_by,
        requested_at=row.asked_at,
        decided_by=row.decided_with,
        decided_by_admin=row.decided_by,
        **_lifetime(row, now),
    )


def admin(row: Admin) -> AdminRecord:
    """A person who decides."""
    return record_of(AdminRecord, row)


def admin_request(row: Decision, now: datetime) -> AdminRequestRecord:
    """What was asked about a person."""
    introduction = None if row.key_hash is None else f"{row.key_id}:{row.key_hash}"
    return record_of(AdminRequestRecord, row, introduction=introduction, **_lifetime(row, now))


def _lifetime(row: Decision, now: datetime) -> dict[str, Any]:
    return {"state": decisions.state_at(row, now), "expires_at": row.asked_at + decisions.REQUEST_LIFETIME}


def count(paid: ledger.Entry) -> CountRecord:
    """A noisy count of records that was paid for."""
    return CountRecord(
        account_id=paid.account_id,
        sequence=paid.sequence,
        price_nano=paid.amount_nano,
        noise_stddev=paid.details["noise_stddev"],
    )


def entry(row: ledger.Entry) -> EntryRecord:
    """A ledger row."""
    return record_of(EntryRecord, row)


def dataset(row: Dataset) -> DatasetRecord:
    """A dataset. Size and digest of private content are functions of private data and stay inside."""
    public = row.visibility is Visibility.PUBLIC
    return record_of(
        DatasetRecord,
        row,
        content_sha256=row.content_sha256 if public else None,
        content_bytes=row.content_bytes if public else None,
    )


def keys(session: Session, rows: Sequence[ApiKey]) -> list[KeyRecord]:
    """Keys without their hashes, each with the person who made it."""
    makers = admins.makers(session, rows)
    return [
        record_of(KeyRecord, row, created_by_admin=maker and maker.id, created_by_name=maker and maker.name)
        for row, maker in ((row, makers.get(row.id)) for row in rows)
    ]


def plan(made: Plan, payer: ledger.Account, asked: PlanRequest) -> PlanRecord:
    """A plan with its price, what it buys, and the account before and after."""
    before = ledger.balance_of(payer)
    epsilon_of = ledger.filter_of(payer).epsilon_of
    left_after_nano = max(before.left_nano - made.price_nano, 0)
    affordable = not payer.frozen and made.budget_nano <= before.left_nano
    return PlanRecord(
        recipe=made.recipe,
        dataset_id=asked.dataset_id,
        epsilon=asked.epsilon,
        delta=payer.delta,
        unit=payer.unit.value,
        adjacency=payer.adjacency.value,
        price_nano=made.price_nano,
        price_epsilon=epsilon_of(made.price_nano),
        stages=[
            StageFacts(
                name=stage.name,
                releases=stage.event.count,
                repeats=stage.repeats,
                noise_multiplier=stage.event.noise_multiplier,
                price_nano=stage.price_nano,
            )
            for stage in made.stages
        ],
        buys=made.facts,
        notes=list(made.notes),
        config=made.config.model_dump(),
        budget=BudgetFacts(
            account_id=payer.id,
            limit_epsilon=before.limit_epsilon,
            left_epsilon=before.left_epsilon,
            left_nano=before.left_nano,
            left_after_epsilon=epsilon_of(left_after_nano) if affordable else before.left_epsilon,
            left_after_nano=left_after_nano if affordable else before.left_nano,
            affordable=affordable,
        ),
    )
