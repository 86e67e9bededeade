"""The audit log, for auditors and owners of a project and admins of the installation."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from obscura.wire.schemas import Identifier
from service.api.deps import AUDIT, PROBLEMS, ApiRoute, Running
from service.db.session import transaction
from service.views import events

LINES_MAX = 1000
router = APIRouter(prefix="/v1/audit-events", tags=["audit"], responses=PROBLEMS, route_class=ApiRoute)


class Lines(Response):
    """JSON lines."""

    media_type = "application/jsonl"


@router.get("", dependencies=[AUDIT], response_class=Lines, summary="Read the audit log")
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
        records = events.oldest(session, after=after, limit=limit)
    return Lines("".join(f"{record.model_dump_json()}\n" for record in records))
