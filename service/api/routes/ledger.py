"""The state of the ledger's verification, for admins. Verifying itself is `obscura ledger verify`, on the machine."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.api.conditional import answer
from service.api.deps import ADMIN, PROBLEMS, Running
from service.api.ledger_state import LedgerRecord, read_ledger
from service.db.session import transaction

router = APIRouter(prefix="/v1/ledger", tags=["ledger"], responses=PROBLEMS)


@router.get("", dependencies=[ADMIN], response_model=LedgerRecord, summary="Read the state of the ledger")
def read_ledger_state(service: Running, request: Request) -> Response:
    """Read which trainings are stopped and why, when the ledger was last verified, and its newest checkpoint."""
    with transaction(service.factory, read_only=True) as session:
        record = read_ledger(session)
    return answer(request, record)
