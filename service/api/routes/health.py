"""Liveness and readiness, the only routes without a key, and metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import Literal

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from obscura.wire.schemas import HealthRecord
from service.api.deps import METRICS, PROBLEMS, ApiRoute, Running, Service
from service.api.problems import Busy
from service.db.session import transaction
from service.ledger.stops import arming_stops

router = APIRouter(prefix="/v1/health", tags=["health"], responses=PROBLEMS, route_class=ApiRoute)
VERSION = version("obscura-images")
READY_SECONDS = 2.0


@router.get("/live", response_model=HealthRecord, summary="Liveness")
async def live() -> HealthRecord:
    """Answer if the process is alive. Uses no database and no thread."""
    return HealthRecord(status="ok", version=VERSION)


@router.get("/ready", response_model=HealthRecord, summary="Readiness")
async def ready(service: Running) -> HealthRecord:
    """Answer 200 if the database, and a required audit log, respond within two seconds; 503 otherwise and during
    shutdown.

    Reports whether trainings may start, and which external services do not respond: `storage`, `sign-in provider`. The
    service stays ready without these, because all other requests work. Disk usage is not reported: it would reveal the
    sizes of uploads.
    """
    if service.stopping.is_set():
        raise Busy("The service is shutting down.")
    if not service.readiness.acquire(blocking=False):
        raise Busy("Earlier checks of the database have not been answered yet.")
    try:
        with anyio.fail_after(READY_SECONDS):
            # A thread of its own, because those of other requests may all be waiting for a writer.
            own = anyio.CapacityLimiter(1)
            stopped, trouble = await run_sync(_look, service, abandon_on_cancel=True, limiter=own)
    except TimeoutError:
        raise Busy("The database does not answer.") from None
    if trouble:
        raise Busy(trouble)
    trainings: Literal["stopped", "open"] = "stopped" if stopped else "open"
    away = service.dependencies.away()
    return HealthRecord(status="ok", version=VERSION, trainings=trainings, unavailable=away or None)


def _look(service: Service) -> tuple[bool, str]:
    try:
        with transaction(service.factory, read_only=True) as session:
            stopped = bool(arming_stops(session))
        return stopped, service.audit_trouble()
    finally:
        service.readiness.release()


metrics_router = APIRouter(route_class=ApiRoute)


@metrics_router.get("/metrics", dependencies=[METRICS], include_in_schema=False)
def read_metrics(service: Running) -> Response:
    """Return the metrics in Prometheus' text format, at most a minute old."""
    return Response(service.metrics.tell(), media_type=CONTENT_TYPE_LATEST)
