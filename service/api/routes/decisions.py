"""Decisions: what one admin asks for and a second one approves, about limits, admins, keys and shared releases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from obscura.wire.admin_schemas import DecisionRecord
from obscura.wire.schemas import Identifier, Page
from obscura.wire.words import DecisionAction
from service import jobs, ledger
from service.api.answers import answer, answer_newest, narrowed
from service.api.deps import PROBLEMS, Admin, ApiRoute, OfAccount, Paging, Reader, Running, Service
from service.db.access_tables import Decision
from service.db.session import transaction
from service.errors import NotFound
from service.identity import admins, decisions
from service.identity.access import Principal, visible
from service.views import admins as views

router = APIRouter(prefix="/v1/decisions", tags=["decisions"], responses=PROBLEMS, route_class=ApiRoute)
RequestId = Annotated[Identifier, Path()]
EFFECTS = {**ledger.LIMIT_EFFECTS, **admins.EFFECTS, **jobs.SHARE_EFFECTS}


def answer_asked(service: Service, request: Request, ask: Callable[..., Decision]) -> Response:
    """Ask for what another admin must approve, and send the pending request."""
    with transaction(service.factory) as session:
        now = service.clock()
        record = views.decision(session, ask(session, now=now), now)
    return answer(request, record, status_code=201, headers={"Location": f"/v1/decisions/{record.id}"})


@router.get("", response_model=Page[DecisionRecord], summary="List decisions")
def list_decisions(
    service: Running,
    reader: Reader,
    request: Request,
    page: Paging,
    action: Annotated[DecisionAction | None, Query(description="Of this action only.")] = None,
    account_id: OfAccount = None,
) -> Response:
    """List requests, decided ones too, newest first. Keys without the scope `admin` see those to raise a limit."""
    chosen = *decisions.readable_by(reader), *narrowed(Decision, action=action, account_id=account_id)
    show = partial(views.decisions_of, now=service.clock())
    return answer_newest(service, request, page, Decision, show, *chosen, moment="asked_at")


@router.get("/{request_id}", response_model=DecisionRecord, summary="Read a decision")
def read_decision(service: Running, reader: Reader, request: Request, request_id: RequestId) -> Response:
    """Read a request: who asked for what and why, and what was decided."""
    with transaction(service.factory, read_only=True) as session:
        chosen = Decision.id == request_id, *decisions.readable_by(reader)
        row = session.scalar(visible(session, Decision).where(*chosen))
        if row is None:
            raise NotFound("There is no such decision.", decision_id=request_id)
        record = views.decision(session, row, service.clock())
    return answer(request, record)


@router.post("/{request_id}/approve", response_model=DecisionRecord, summary="Approve a request")
def approve(service: Running, admin: Admin, request: Request, request_id: RequestId) -> Response:
    """Carry out what another admin has asked for. 403 when the same person asked, with whichever key.

    A raise is recorded in the ledger with its reason and both people; a frozen account stays frozen.
    """
    return _decide(service, request, admin, request_id, approved=True)


@router.post("/{request_id}/decline", response_model=DecisionRecord, summary="Decline a request")
def decline(service: Running, admin: Admin, request: Request, request_id: RequestId) -> Response:
    """Leave everything as it is. The requester may withdraw the request this way."""
    return _decide(service, request, admin, request_id, approved=False)


def _decide(service: Service, request: Request, admin: Principal, request_id: str, *, approved: bool) -> Response:
    with transaction(service.factory) as session:
        now = service.clock()
        row = decisions.decide(session, request_id, admin.id, now, EFFECTS, approved=approved)
        record = views.decision(session, row, now)
    return answer(request, record)
