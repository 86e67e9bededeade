"""Requests to raise a limit: read by many, decided by a second admin."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from sqlalchemy import select

from service import ledger
from service.api import views
from service.api.conditional import answer
from service.api.deps import PROBLEMS, READ, Admin, Paging, Running
from service.api.pages import cut, newest_first
from service.api.schemas import Identifier, LimitRequestRecord, Page
from service.db.ledger_tables import LimitRequest
from service.db.session import transaction

router = APIRouter(prefix="/v1/limit-requests", tags=["accounts"], responses=PROBLEMS)
RequestId = Annotated[Identifier, Path()]


@router.get("", dependencies=[READ], response_model=Page[LimitRequestRecord], summary="List limit requests")
def list_limit_requests(
    service: Running,
    request: Request,
    page: Paging,
    account_id: Annotated[Identifier | None, Query(description="Of this account only.")] = None,
) -> Response:
    """List the requests to raise a limit, decided ones too, newest first."""
    with transaction(service.factory, read_only=True) as session:
        wanted = select(LimitRequest)
        if account_id is not None:
            wanted = wanted.where(LimitRequest.account_id == account_id)
        query = newest_first(wanted, LimitRequest.requested_at, LimitRequest.id, page.cursor, page.limit)
        rows, cursor = cut(session.scalars(query).all(), page.limit, moment="requested_at")
        shown = [views.limit_request(row, service.clock()) for row in rows]
    return answer(request, Page[LimitRequestRecord](items=shown, next_cursor=cursor))


@router.get("/{request_id}", dependencies=[READ], response_model=LimitRequestRecord, summary="Read a limit request")
def read_limit_request(service: Running, request: Request, request_id: RequestId) -> Response:
    """Read a request: who asked for what and why, and what was decided."""
    with transaction(service.factory, read_only=True) as session:
        record = views.limit_request(ledger.get_limit_request(session, request_id), service.clock())
    return answer(request, record)


@router.post("/{request_id}/approve", response_model=LimitRequestRecord, summary="Approve a higher limit")
def approve_raise(service: Running, admin: Admin, request: Request, request_id: RequestId) -> Response:
    """Raise the limit. The ledger records the reason and both people. A frozen account stays frozen.

    403 when the same person asked for it, with whichever key.
    """
    with transaction(service.factory) as session:
        now = service.clock()
        decided = ledger.approve_raise(session, request_id=request_id, decided_by=admin.id, now=now)
        record = views.limit_request(decided, now)
    return answer(request, record)


@router.post("/{request_id}/decline", response_model=LimitRequestRecord, summary="Decline a higher limit")
def decline_raise(service: Running, admin: Admin, request: Request, request_id: RequestId) -> Response:
    """Leave the limit as it is. Whoever asked may withdraw the request this way."""
    with transaction(service.factory) as session:
        now = service.clock()
        decided = ledger.decline_raise(session, request_id=request_id, decided_by=admin.id, now=now)
        record = views.limit_request(decided, now)
    return answer(request, record)
