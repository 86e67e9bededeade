"""The audit log, for auditors and admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.dashboard.access import Reader, Running
from service.dashboard.pages import PageRoute, SignInNeeded, page
from service.db.access_tables import ApiKey
from service.db.session import transaction
from service.identity.access import Scope, visible
from service.views import events

router = APIRouter(route_class=PageRoute)
EVENTS_SHOWN = 100


@router.get("/audit")
def show_audit_log(
    request: Request, dashboard: Running, viewer: Reader, before: Annotated[str | None, Query(max_length=64)] = None
) -> HTMLResponse:
    """Show the newest events."""
    if viewer.principal is None:
        raise SignInNeeded("Sign in with an auditor's key to see this page.")
    viewer.principal.require(Scope.AUDIT)
    with transaction(dashboard.factory, read_only=True) as session:
        shown = events.newest(session, before=before, limit=EVENTS_SHOWN + 1)
        asked = {event.key_id for event in shown}
        keys = session.scalars(visible(session, ApiKey).where(ApiKey.id.in_(asked))).all()
    return page(
        request,
        "audit.html",
        events=shown[:EVENTS_SHOWN],
        names={key.id: key.name for key in keys},
        older=shown[EVENTS_SHOWN - 1].id if len(shown) > EVENTS_SHOWN else None,
        kept=dashboard.service.settings.audit_log != "off",
    )
