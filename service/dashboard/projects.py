"""The page of projects, with quotas and webhooks, and the page of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from service import quotas
from service.dashboard.access import Admin, Form, Reader, Running
from service.dashboard.pages import PageRoute, SignInNeeded, page
from service.db.access_tables import ApiKey
from service.db.project_tables import Project
from service.db.session import transaction
from service.db.webhook_tables import Webhook
from service.errors import InvalidInput
from service.identity.access import Scope, visible
from service.views import admins as views

router = APIRouter(route_class=PageRoute)
PROJECTS_SHOWN = 100
WEBHOOKS_SHOWN = 100
EVENTS_SHOWN = 100


@router.get("/projects")
def show_projects(request: Request, dashboard: Running, viewer: Reader) -> HTMLResponse:
    """Show the projects that the key can see, with their jobs, and webhooks to admins."""
    if viewer.principal is None:
        raise SignInNeeded("Sign in with an API key to see this page.")
    viewer.principal.require(Scope.READ)
    now = dashboard.clock()
    with transaction(dashboard.factory, read_only=True) as session:
        rows = session.scalars(visible(session, Project).order_by(Project.name).limit(PROJECTS_SHOWN)).all()
        shown = views.project_uses(session, rows)
        newest = visible(session, Webhook).order_by(Webhook.created_at.desc()).limit(WEBHOOKS_SHOWN)
        hooks = views.webhooks(session, session.scalars(newest).all() if viewer.may("admin") else [], now)
    sets = viewer.may("admin") and viewer.principal.project_id is None
    return page(request, "projects.html", projects=shown, webhooks=hooks, sets=sets, shown_max=PROJECTS_SHOWN)


@router.post("/projects/{project_id}/quota")
def set_quota(dashboard: Running, admin: Admin, form: Form, project_id: str) -> RedirectResponse:
    """Set a project's quota of jobs; an empty field removes it."""
    admin.require_installation()
    jobs = form.get("jobs", "").strip()
    if jobs and (not jobs.isdecimal() or len(jobs) > 15):
        raise InvalidInput("A quota is a whole number, or empty for none.")
    dashboard.do(quotas.set_quota, project_id, jobs_max=int(jobs) if jobs else None)
    return RedirectResponse("/projects", status_code=303)


@router.get("/audit")
def show_audit_log(
    request: Request, dashboard: Running, viewer: Reader, before: Annotated[str | None, Query(max_length=64)] = None
) -> HTMLResponse:
    """Show the newest events."""
    if viewer.principal is None:
        raise SignInNeeded("Sign in with an auditor's key to see this page.")
    viewer.principal.require(Scope.AUDIT)
    with transaction(dashboard.factory, read_only=True) as session:
        shown = views.newest_events(session, before=before, limit=EVENTS_SHOWN + 1)
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
