"""Liveness and readiness (the only routes without a key), metrics, the ledger's verification, and the audit log."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any, Literal

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import Field
from sqlalchemy.orm import Session

from obscura.wire.schemas import ApiRecord, HealthRecord, Identifier, Minute, record_of
from service.api.answers import ApiRoute
from service.api.deps import AUDIT, INSTALLATION, METRICS, Running
from service.api.problems import Busy
from service.audit.findings import verifications
from service.audit.proofs import newest_checkpoint
from service.db.ledger_tables import EVERYWHERE
from service.db.session import transaction
from service.ledger.stops import arming_stops
from service.views import admins as views

router = APIRouter(prefix="/v1/health", tags=["health"])
VERSION = version("obscura-images")
READY_SECONDS = 2.0
LINES_MAX = 1000  # per response


@router.get("/live", summary="Liveness")
async def live() -> HealthRecord:
    """Return 200 if the process is alive. Uses no database and no thread."""
    return HealthRecord(status="ok", version=VERSION)


@router.get("/ready", summary="Readiness")
async def ready(service: Running) -> HealthRecord:
    """Return 200 if the database, and a required audit log, respond within two seconds; 503 otherwise and during
    shutdown.

    Reports whether trainings may start, and the external services that do not respond: `storage`, `sign-in provider`.
    The service is ready without these services, because all other requests work. Disk usage is not reported, because it
    would reveal the sizes of uploads.
    """
    if service.stopping.is_set():
        raise Busy("The service is shutting down.")
    if not service.readiness.acquire(blocking=False):
        raise Busy("Earlier checks of the database have not been answered yet.")

    def look() -> tuple[bool, str]:
        try:
            with transaction(service.factory, read_only=True) as session:
                stopped = bool(arming_stops(session))
            return stopped, service.audit_trouble()
        finally:
            service.readiness.release()

    try:
        with anyio.fail_after(READY_SECONDS):
            # In a separate thread, because all threads of other requests may be waiting for a writer.
            stopped, trouble = await run_sync(look, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
    except TimeoutError:
        raise Busy("The database does not answer.") from None
    if trouble:
        raise Busy(trouble)
    trainings: Literal["stopped", "open"] = "stopped" if stopped else "open"
    away = service.dependencies.away()
    return HealthRecord(status="ok", version=VERSION, trainings=trainings, unavailable=away or None)


metrics_router = APIRouter()


@metrics_router.get("/metrics", dependencies=[METRICS], include_in_schema=False)
def read_metrics(service: Running) -> Response:
    """Return the metrics, at most one minute old, in the text format of Prometheus."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


class StopFacts(ApiRecord):
    """The reason why trainings of one account, or of all accounts, cannot open private data."""

    account_id: str | None = Field(description="The account; null if trainings are stopped for all accounts.")
    code: str = Field(description="Code of the first finding.")
    sequence: int | None = Field(description="Number of the first bad entry; null if the finding concerns no entry.")
    found_at: Minute = Field(description="When the fault was found.")


class VerificationFacts(ApiRecord):
    """The newest verification of one kind (full, or since a checkpoint)."""

    kind: Literal["full", "recent"] = Field(description="`recent`: only entries since the newest checkpoint were read.")
    verified_at: Minute = Field(description="Time of the verification.")
    entries: int = Field(description="Number of entries read.")
    findings: int = Field(description="Number of findings.")


class CheckpointFacts(ApiRecord):
    """The newest checkpoint: a signed statement of the last entry in the log of each account."""

    sequence: int = Field(description="Number of the checkpoint, from 1 without gaps.")
    created_at: Minute = Field(description="When it was created.")
    key_id: str = Field(description="Fingerprint of the key that signed it: SHA-256 of the public key.")


class LedgerRecord(ApiRecord):
    """State of the ledger's verification."""

    trainings: Literal["open", "stopped"] = Field(description="`stopped` while an operator must act.")
    stops: list[StopFacts] = Field(description="Reasons for stopped trainings; empty if there are none.")
    verifications: list[VerificationFacts] = Field(description="The latest verification of each kind.")
    checkpoint: CheckpointFacts | None = Field(description="The newest signed checkpoint; null before the first.")


def read_ledger(session: Session) -> LedgerRecord:
    stops = [
        record_of(StopFacts, row, account_id=None if row.scope == EVERYWHERE else row.scope)
        for row in arming_stops(session)
    ]
    newest = newest_checkpoint(session)
    return LedgerRecord(
        trainings="stopped" if stops else "open",
        stops=stops,
        verifications=[record_of(VerificationFacts, row) for row in verifications(session)],
        checkpoint=None if newest is None else record_of(CheckpointFacts, newest),
    )


ledger_router = APIRouter(prefix="/v1/ledger", tags=["ledger"], route_class=ApiRoute)


@ledger_router.get("", dependencies=[INSTALLATION], summary="Read the state of the ledger")
def read_ledger_state(service: Running) -> LedgerRecord:
    """Return the reasons for stopped trainings, the latest verifications, and the newest checkpoint."""
    with transaction(service.factory, read_only=True) as session:
        return read_ledger(session)


audit_router = APIRouter(prefix="/v1/audit-events", tags=["audit"], route_class=ApiRoute)
JSON_LINES = "application/jsonl"
_CONTENT: dict[int | str, dict[str, Any]] = {200: {"content": {JSON_LINES: {"schema": {"type": "string"}}}}}


@audit_router.get("", dependencies=[AUDIT], response_class=Response, responses=_CONTENT, summary="Read the audit log")
def list_audit_events(
    service: Running,
    limit: Annotated[int, Query(ge=1, le=LINES_MAX, description="Largest number of lines.")] = LINES_MAX,
    after: Annotated[Identifier | None, Query(description="`id` of the last event that you have.")] = None,
) -> Response:
    """Read the audit log, oldest first, one JSON object per line.

    Each event has `id`, `at` (to the minute), `action`, `object_id`, `outcome` (`allowed`, `refused`, `missing` or
    `failed`), `key_id`, `admin_id` and `project_id`. To continue, send the last `id` as `after`. Fewer lines than
    `limit` mean that there are no more events yet. Empty if the audit log is disabled. Treat the log as private.
    """
    with transaction(service.factory, read_only=True) as session:
        records = views.events(session, after=after, limit=limit)
    lines = "".join(f"{record.model_dump_json()}\n" for record in records)
    return Response(lines, media_type=JSON_LINES, headers={"Cache-Control": "no-store"})
