"""Pages for admins: admins and keys, decisions, projects with webhooks, and the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse

from obscura.wire.admin_schemas import AdminRecord
from obscura.wire.schemas import record_of
from service.api.deps import Running
from service.dashboard.access import Reader, find_viewer
from service.dashboard.pages import PageRoute, page
from service.db.access_tables import ApiKey, Project, Webhook
from service.db.session import transaction
from service.identity import admins, decisions, people, projects
from service.identity.access import Scope, visible
from service.views import admins as views

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
RECENT_REQUESTS = 50
MEMBERS_SHOWN_MAX = 500
SHOWN_MAX = 100  # keys, projects, webhooks or events


@router.get("/admins")
def show_admins(request: Request, service: Running, viewer: Reader) -> HTMLResponse:
    """Show the admins and keys. An owner sees those of their project."""
    viewer.require(Scope.ADMIN)
    with transaction(service.factory, read_only=True) as session:
        rows = admins.admins(session)
        records = [record_of(AdminRecord, row) for row in rows]
        names = projects.names(session, {id for row in rows for id in (row.id, row.requested_by, row.approved_by)})
        newest_keys = visible(session, ApiKey).order_by(ApiKey.created_at.desc(), ApiKey.id).limit(SHOWN_MAX)
        keys = views.keys(session, session.scalars(newest_keys).all())
        departments = views.project_names(session)
        members = people.members(session, MEMBERS_SHOWN_MAX)
    return page(
        request,
        "admins.html",
        admins=records,
        members=members,
        names=names,
        keys=keys,
        projects=departments if len(departments) > 1 else {},
        shown_max=SHOWN_MAX,
        now=service.clock(),
    )


@router.get("/decisions")
def show_decisions(request: Request, service: Running, viewer: Reader) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        chosen = decisions.readable_by(viewer.principal)
        rows = decisions.pending_first(session, *chosen, limit=RECENT_REQUESTS)
        requests = views.decisions(session, rows, service.clock())
    return page(request, "decisions.html", requests=requests)


@router.get("/projects")
def show_projects(request: Request, service: Running, viewer: Reader) -> HTMLResponse:
    """Show the projects that the key can see. Admins also see the webhooks."""
    viewer.require(Scope.READ)
    with transaction(service.factory, read_only=True) as session:
        rows = session.scalars(visible(session, Project).order_by(Project.name).limit(SHOWN_MAX)).all()
        shown = views.project_uses(session, rows)
        newest = visible(session, Webhook).order_by(Webhook.created_at.desc()).limit(SHOWN_MAX)
        hooks = views.webhooks(session, session.scalars(newest).all() if viewer.may("admin") else [], service.clock())
    return page(
        request, "projects.html", projects=shown, webhooks=hooks, sets=viewer.runs_installation, shown_max=SHOWN_MAX
    )


@router.get("/audit")
def show_audit_log(
    request: Request, service: Running, viewer: Reader, before: Annotated[str | None, Query(max_length=64)] = None
) -> HTMLResponse:
    viewer.require(Scope.AUDIT)
    with transaction(service.factory, read_only=True) as session:
        shown = views.events(session, newest=True, before=before, limit=SHOWN_MAX + 1)
        asked = {event.key_id for event in shown}
        keys = session.scalars(visible(session, ApiKey).where(ApiKey.id.in_(asked))).all()
    return page(
        request,
        "audit.html",
        events=shown[:SHOWN_MAX],
        names={key.id: key.name for key in keys},
        older=shown[SHOWN_MAX - 1].id if len(shown) > SHOWN_MAX else None,
        kept=service.settings.audit_log != "off",
    )
