"""The state of the ledger's verification, which `obscura ledger verify` runs on the machine, and the audit log."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from obscura.wire.schemas import Identifier, Minute
from service.api.answers import answer
from service.api.deps import AUDIT, INSTALLATION, PROBLEMS, ApiRoute, Running
from service.audit.findings import verifications
from service.audit.proofs import newest_checkpoint
from service.db.session import transaction
from service.ledger import EVERYWHERE
from service.ledger.stops import arming_stops
from service.views import admins as views

LINES_MAX = 1000  # of an answer


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True)


class StopFacts(_Facts):
    """Why no data is opened for an account, or for any."""

    account_id: str | None = Field(description="Null: nothing is opened for any account.")
    code: str = Field(description="Of the first finding, from a closed list.")
    sequence: int | None = Field(description="The first bad entry, where one is concerned.")
    found_at: Minute = Field(description="When the fault was found.")


class VerificationFacts(_Facts):
    """The newest verification of one kind."""

    kind: Literal["full", "recent"] = Field(description="Recent: only entries since the newest checkpoint were read.")
    verified_at: Minute = Field(description="When it was done.")
    entries: int = Field(description="How many were read.")
    findings: int = Field(description="How many faults were found; 0 is well.")


class CheckpointFacts(_Facts):
    """The newest signed statement of the heads of all logs."""

    sequence: int = Field(description="Number of the entry, from 1 without a gap.")
    created_at: Minute = Field(description="When it was made.")
    key_id: str = Field(description="Fingerprint of the key that signed it: SHA-256 of the public key.")


class LedgerRecord(_Facts):
    """What is known about the ledger's soundness."""

    trainings: Literal["open", "stopped"] = Field(description="`open`, or `stopped` while an operator must look.")
    stops: list[StopFacts] = Field(
        description="Why trainings that would read data wait, one for each fault; empty when all is well."
    )
    verifications: list[VerificationFacts] = Field(description="The last of each kind.")
    checkpoint: CheckpointFacts | None = Field(description="The newest signed checkpoint; null before the first.")


def read_ledger(session: Session) -> LedgerRecord:
    """Read the state of the ledger's verification."""
    stops = [
        StopFacts(
            account_id=None if row.scope == EVERYWHERE else row.scope,
            code=row.code,
            sequence=row.sequence,
            found_at=row.found_at,
        )
        for row in arming_stops(session)
    ]
    verified = [
        VerificationFacts(kind=row.kind.value, verified_at=row.verified_at, entries=row.entries, findings=row.findings)
        for row in verifications(session)
    ]
    newest = newest_checkpoint(session)
    return LedgerRecord(
        trainings="stopped" if stops else "open",
        stops=stops,
        verifications=verified,
        checkpoint=None
        if newest is None
        else CheckpointFacts(sequence=newest.sequence, created_at=newest.created_at, key_id=newest.key_id),
    )


router = APIRouter(prefix="/v1/ledger", tags=["ledger"], responses=PROBLEMS, route_class=ApiRoute)


@router.get("", dependencies=[INSTALLATION], response_model=LedgerRecord, summary="Read the state of the ledger")
def read_ledger_state(service: Running, request: Request) -> Response:
    """Return stopped trainings with reasons, the latest verifications, and the newest checkpoint."""
    with transaction(service.factory, read_only=True) as session:
        record = read_ledger(session)
    return answer(request, record)


audit_router = APIRouter(prefix="/v1/audit-events", tags=["audit"], responses=PROBLEMS, route_class=ApiRoute)


class Lines(Response):
    """JSON lines."""

    media_type = "application/jsonl"


@audit_router.get("", dependencies=[AUDIT], response_class=Lines, summary="Read the audit log")
def list_audit_events(
    service: Running,
    limit: Annotated[int, Query(ge=1, le=LINES_MAX, description="Lines of the answer, at most.")] = LINES_MAX,
    after: Annotated[Identifier | None, Query(description="`id` of the last line that you have.")] = None,
) -> Response:
    """Read the audit log, oldest first, one JSON object per line.

    Each event has `id`, `at` (to the minute), `action`, `object_id`, `outcome` (`allowed`, `refused`, `missing` or
    `failed`), `key_id`, `admin_id` and `project_id`. Send the last `id` as `after` to continue; fewer lines than
    `limit` mean that there are no more yet. Empty if the service keeps no audit log. Treat it as private.
    """
    with transaction(service.factory, read_only=True) as session:
        records = views.oldest_events(session, after=after, limit=limit)
    return Lines("".join(f"{record.model_dump_json()}\n" for record in records))
