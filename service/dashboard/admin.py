"""Pages and forms for admins: freezing, limits, admins, and decisions."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from obscura.wire.admin_schemas import AdminRecord, AdmissionRequest
from obscura.wire.schemas import LimitChangeRequest, ReasonRequest, record_of
from service import ledger
from service.api.routes.admins import EFFECTS
from service.dashboard.access import Admin, Dashboard, Form, Reader, Running, find_viewer
from service.dashboard.forms import read_fields
from service.dashboard.pages import PageRoute, SignInNeeded, page
from service.db.access_tables import ApiKey
from service.db.project_tables import Project
from service.db.session import transaction
from service.identity import admins, decisions, people
from service.identity.access import Principal, Scope, visible
from service.identity.projects import PROJECTS_MAX
from service.views import admins as views

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
RECENT_REQUESTS = 50
RECENT_KEYS = 100
MEMBERS_SHOWN_MAX = 500


@router.post("/accounts/{account_id}/freeze")
def freeze(dashboard: Running, admin: Admin, form: Form, account_id: str) -> RedirectResponse:
    return _switch(dashboard, admin, form, account_id, frozen=True)


@router.post("/accounts/{account_id}/unfreeze")
def unfreeze(dashboard: Running, admin: Admin, form: Form, account_id: str) -> RedirectResponse:
    return _switch(dashboard, admin, form, account_id, frozen=False)


@router.post("/accounts/{account_id}/close")
def close(dashboard: Running, _admin: Admin, account_id: str) -> RedirectResponse:
    dashboard.do(ledger.set_closed, account_id, closed=True)
    return _back_to_account(account_id)


@router.post("/accounts/{account_id}/reopen")
def reopen(dashboard: Running, _admin: Admin, account_id: str) -> RedirectResponse:
    dashboard.do(ledger.set_closed, account_id, closed=False)
    return _back_to_account(account_id)


@router.post("/accounts/{account_id}/lower-limit")
def lower_limit(dashboard: Running, admin: Admin, form: Form, account_id: str) -> RedirectResponse:
    change, now = read_fields(LimitChangeRequest, form), dashboard.clock()
    dashboard.do(ledger.lower_limit, account_id=account_id, **change, by=admin.id, now=now)
    return _back_to_account(account_id)


@router.post("/accounts/{account_id}/raise-limit")
def request_raise(dashboard: Running, admin: Admin, form: Form, account_id: str) -> RedirectResponse:
    change, now = read_fields(LimitChangeRequest, form), dashboard.clock()
    dashboard.do(ledger.request_raise, account_id=account_id, **change, asked_with=admin.id, now=now)
    return _back_to_account(account_id)


@router.get("/admins")
def show_admins(request: Request, dashboard: Running, viewer: Reader) -> HTMLResponse:
    """Show the admins and the keys; to an owner, those of the project."""
    if viewer.principal is None:
        raise SignInNeeded("Sign in with an admin's key to see this page.")
    viewer.principal.require(Scope.ADMIN)
    now = dashboard.clock()
    with transaction(dashboard.factory, read_only=True) as session:
        rows = admins.admins(session)
        records, names = [record_of(AdminRecord, row) for row in rows], admins.names(session, rows)
        newest_keys = visible(session, ApiKey).order_by(ApiKey.created_at.desc(), ApiKey.id).limit(RECENT_KEYS)
        keys = views.keys(session, session.scalars(newest_keys).all())
        departments = session.scalars(visible(session, Project).limit(PROJECTS_MAX)).all()
        members = people.members(session, MEMBERS_SHOWN_MAX)
    return page(
        request,
        "admins.html",
        admins=records,
        members=members,
        names=names,
        keys=keys,
        projects={project.id: project.name for project in departments} if len(departments) > 1 else {},
        keys_shown_max=RECENT_KEYS,
        now=now,
    )


@router.post("/admins")
def ask_admission(dashboard: Running, admin: Admin, form: Form) -> RedirectResponse:
    person = read_fields(AdmissionRequest, form, project_id=form.get("project"))
    dashboard.do(admins.ask_admission, **person, asked_with=admin.id, now=dashboard.clock())
    return _back_to_admins()


@router.post("/admins/{admin_id}/remove")
def ask_removal(dashboard: Running, admin: Admin, form: Form, admin_id: str) -> RedirectResponse:
    why, now = read_fields(ReasonRequest, form), dashboard.clock()
    dashboard.do(admins.ask_removal, admin_id=admin_id, **why, asked_with=admin.id, now=now)
    return _back_to_admins()


@router.get("/decisions")
def show_decisions(request: Request, dashboard: Running, viewer: Reader) -> HTMLResponse:
    """Show what one admin asked for and another decides."""
    with transaction(dashboard.factory, read_only=True) as session:
        chosen = decisions.readable_by(viewer.principal)
        rows = decisions.pending_first(session, *chosen, limit=RECENT_REQUESTS)
        requests = views.decisions(session, rows, dashboard.clock())
    return page(request, "decisions.html", requests=requests)


@router.post("/decisions/{request_id}/approve")
def approve(dashboard: Running, admin: Admin, request_id: str) -> RedirectResponse:
    return _decide(dashboard, admin, request_id, approved=True)


@router.post("/decisions/{request_id}/decline")
def decline(dashboard: Running, admin: Admin, request_id: str) -> RedirectResponse:
    return _decide(dashboard, admin, request_id, approved=False)


def _decide(dashboard: Dashboard, admin: Principal, request_id: str, *, approved: bool) -> RedirectResponse:
    dashboard.do(decisions.decide, request_id, admin.id, dashboard.clock(), EFFECTS, approved=approved)
    return RedirectResponse("/decisions", status_code=303)


def _switch(
    dashboard: Dashboard, admin: Principal, form: dict[str, str], account_id: str, *, frozen: bool
) -> RedirectResponse:
    why, now = read_fields(ReasonRequest, form), dashboard.clock()
    dashboard.do(ledger.set_frozen, account_id=account_id, frozen=frozen, **why, by=admin.id, now=now)
    return _back_to_account(account_id)


def _back_to_account(account_id: str) -> RedirectResponse:
    return RedirectResponse(f"/accounts/{account_id}/controls", status_code=303)


def _back_to_admins() -> RedirectResponse:
    return RedirectResponse("/admins", status_code=303)
