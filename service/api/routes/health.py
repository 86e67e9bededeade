"""Liveness and readiness; the only routes without a key."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter

from service.api.deps import PROBLEMS, Running
from service.api.problems import Busy
from service.api.schemas import HealthRecord
from service.db.session import transaction
from service.ledger.arming import arming_stops

router = APIRouter(prefix="/v1/health", tags=["health"], responses=PROBLEMS)
VERSION = version("obscura")


@router.get("/live", response_model=HealthRecord, summary="Liveness")
def live() -> HealthRecord:
    """The process answers."""
    return HealthRecord(status="ok", version=VERSION)


@router.get("/ready", response_model=HealthRecord, summary="Readiness")
def ready(service: Running) -> HealthRecord:
    """The database answers, and the service is not shutting down. 503 otherwise. Tells whether trainings may start."""
    if service.stopping.is_set():
        raise Busy("The service is shutting down.")
    with transaction(service.factory, read_only=True) as session:
        stopped = bool(arming_stops(session))
    return HealthRecord(status="ok", version=VERSION, trainings="stopped" if stopped else "open")
