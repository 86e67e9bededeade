"""Accounts: populations with one privacy budget each, and their ledgers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from obscura.wire import schemas as wire
from obscura.wire.admin_schemas import DecisionRecord
from obscura.wire.job_schemas import FirstPlanRequest, PlanRecord, PlanRequest
from service import ledger
from service.api.answers import ApiRoute, decode_cursor, encode_cursor
from service.api.deps import ADMIN, DATA, INSTALLATION, READ, Admin, Paging, Running, Service
from service.api.middleware import LARGE_BODY_BYTES_MAX, body_limit
from service.api.routes.admins import request_decision
from service.datasets import withdrawal
from service.datasets.states import declare
from service.db.session import transaction
from service.identity import projects
from service.views import accounts as views
from service.views import plans

router = APIRouter(prefix="/v1/accounts", tags=["accounts"], route_class=ApiRoute)
AccountId = Annotated[wire.Identifier, Path(description="The account.")]


@router.post("", dependencies=[INSTALLATION], status_code=201, summary="Open an account")
def open_account(service: Running, response: Response, body: wire.AccountRequest) -> wire.AccountRecord:
    """Open an account with a lifetime budget. The budget never refreshes, and deleting data never restores it."""
    with transaction(service.factory) as session:
        terms = body.model_dump() | {"project_id": projects.choose(session, body.project_id)}
        record = views.account(ledger.open_account(session, **terms, now=service.clock()))
    response.headers["Location"] = f"/v1/accounts/{record.id}"
    return record


@router.post("/first-plan", dependencies=[INSTALLATION], summary="Plan a first training")
@body_limit(LARGE_BODY_BYTES_MAX)
def plan_first(service: Running, body: FirstPlanRequest) -> PlanRecord:
    """Plan a training before its account is opened and its dataset declared. Stores nothing."""
    now = service.clock()
    with transaction(service.factory) as session:
        terms = body.account.model_dump() | {"project_id": projects.choose(session, body.account.project_id)}
        account = ledger.open_account(session, **terms, now=now)
        declared = body.dataset.model_copy(update={"account_id": account.id})
        dataset = declare(session, service.settings, declared, now=now)
        order = PlanRequest(dataset_id=dataset.id, **body.model_dump(include={"recipe", "epsilon", "options"}))
        record = plans.plan(session, service.settings, order)
        session.rollback()
    return record


@router.get("", dependencies=[READ], summary="List accounts")
def list_accounts(service: Running, page: Paging) -> wire.Page[wire.AccountRecord]:
    """List accounts with their balances, oldest first."""
    after = decode_cursor(page.cursor or None, str)
    with transaction(service.factory, read_only=True) as session:
        payers, last = views.page(session, after=after, limit=page.limit)
        shown = [views.sound(payer) for payer in payers]
    return wire.Page[wire.AccountRecord](items=shown, next_cursor=last and encode_cursor(last))


@router.get("/{account_id}", dependencies=[READ], summary="Read an account")
def read_account(service: Running, account_id: AccountId) -> wire.AccountRecord:
    """Return an account: limit, spent, reserved and remaining budget."""
    with transaction(service.factory, read_only=True) as session:
        return views.sound(views.read(session, account_id))


@router.get("/{account_id}/entries", dependencies=[READ], summary="Read an account's ledger")
def list_entries(service: Running, account_id: AccountId, page: Paging) -> wire.Page[wire.EntryRecord]:
    """List the immutable ledger entries of an account, oldest first. Each hash covers the previous entry."""
    after = decode_cursor(page.cursor or None, int) or 0
    with transaction(service.factory, read_only=True) as session:
        rows = ledger.entries(session, account_id, after, page.limit + 1)
        shown = [wire.record_of(wire.EntryRecord, row) for row in rows[: page.limit]]
    cursor = encode_cursor(shown[-1].sequence) if len(rows) > page.limit else None
    return wire.Page[wire.EntryRecord](items=shown, next_cursor=cursor)


def _change(service: Service, act: Callable[..., ledger.Account], **change: Any) -> wire.AccountRecord:
    with transaction(service.factory) as session:
        return views.account(act(session, **change))


@router.post("/{account_id}/lower-limit", summary="Lower an account's limit")
def lower_limit(
    service: Running, admin: Admin, account_id: AccountId, body: wire.LimitChangeRequest
) -> wire.AccountRecord:
    """Lower the lifetime limit at once. If more is spent and reserved than the new limit, the account is frozen."""
    change = {"account_id": account_id, **body.model_dump(), "by": admin.id, "now": service.clock()}
    return _change(service, ledger.limits.lower_limit, **change)


@router.post("/{account_id}/raise-limit", status_code=201, summary="Request a higher limit")
def request_raise(
    service: Running, admin: Admin, response: Response, account_id: AccountId, body: wire.LimitChangeRequest
) -> DecisionRecord:
    """Request a higher limit. Nothing changes until another admin approves it, within seven days.

    Only one request can be pending at a time. Delta and rate stay as they were when the account was opened.
    """
    asked = {"account_id": account_id, **body.model_dump()}
    return request_decision(service, response, partial(ledger.limits.request_raise, **asked, requested_with=admin.id))


@router.post("/{account_id}/freeze", summary="Freeze an account")
def freeze(service: Running, admin: Admin, account_id: AccountId, body: wire.ReasonRequest) -> wire.AccountRecord:
    """Freeze an account: accept no new jobs, and start no queued jobs. Jobs that opened data continue. Idempotent."""
    change = {"account_id": account_id, **body.model_dump(), "by": admin.id, "now": service.clock()}
    return _change(service, ledger.limits.set_frozen, **change, frozen=True)


@router.post("/{account_id}/unfreeze", summary="Open a frozen account again")
def unfreeze(service: Running, admin: Admin, account_id: AccountId, body: wire.ReasonRequest) -> wire.AccountRecord:
    """Unfreeze an account: accept jobs again. 409 if the spent and reserved budget exceeds the limit."""
    change = {"account_id": account_id, **body.model_dump(), "by": admin.id, "now": service.clock()}
    return _change(service, ledger.limits.set_frozen, **change, frozen=False)


@router.post("/{account_id}/close", dependencies=[ADMIN], summary="Close an account to new data")
def close(service: Running, account_id: AccountId) -> wire.AccountRecord:
    """Close an account: accept no new datasets or uploads, so that no new subjects share this budget.

    Trainings on existing datasets continue. Idempotent.
    """
    return _change(service, ledger.limits.set_closed, account_id=account_id, closed=True)


@router.post("/{account_id}/reopen", dependencies=[ADMIN], summary="Reopen an account for new data")
def reopen(service: Running, account_id: AccountId) -> wire.AccountRecord:
    """Reopen an account: accept new datasets and uploads again. Idempotent."""
    return _change(service, ledger.limits.set_closed, account_id=account_id, closed=False)


@router.post("/{account_id}/withdrawals", dependencies=[DATA], summary="Withdraw subjects from an account")
@body_limit(LARGE_BODY_BYTES_MAX)
def withdraw_subjects(service: Running, account_id: AccountId, body: wire.WithdrawalRequest) -> wire.WithdrawalRecord:
    """Destroy the images of subjects in all datasets of the account with `subjects_recognised`.

    Later uploads to the account are stored without these subjects. Spent budget stays spent, releases remain, and the
    ledger does not change. The response does not reveal whether a subject was present. 409 if trainings that need one
    of the datasets are queued or running, unless `cancel_jobs` is set. 422 if the account protects records, or no
    dataset has `subjects_recognised`. Idempotent.
    """
    done = withdrawal.withdraw(
        service.settings,
        service.factory,
        account_id,
        body.subjects,
        subjects_key_check=body.subjects_key_check,
        cancel_jobs=body.cancel_jobs,
        now=service.clock(),
    )
    return wire.record_of(wire.WithdrawalRecord, done)
