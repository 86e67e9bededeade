"""The page of the admins: who decides, and what two of them decide about a third."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy import select

from service import admins
from service.auth import Scope
from service.dashboard import wording
from service.dashboard.access import Admin, Form, Reader, Running, find_viewer
from service.dashboard.admin_routes import read_reason
from service.dashboard.pages import PageRoute, SignInNeeded, page
from service.db.access_tables import AdminRequest
from service.db.session import transaction

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
RECENT_REQUESTS = 50


@router.get("/admins")
def show_admins(request: Request, dashboard: Running, viewer: Reader) -> HTMLResponse:
    """Show the admins and what was asked about them, to admins."""
    if viewer.principal is None:
        raise SignInNeeded("Sign in with an admin's key to see this page.")
    viewer.principal.require(Scope.ADMIN)
    now = dashboard.clock()
    newest = select(AdminRequest).order_by(AdminRequest.asked_at.desc(), AdminRequest.id).limit(RECENT_REQUESTS)
    with transaction(dashboard.factory, read_only=True) as session:
        people, asked = admins.admins(session), session.scalars(newest).all()
    return page(
        request,
        "admins.html",
        admins=people,
        names={admin.id: admin.name for admin in people},
        requests=asked,
        expired={row.id for row in asked if admins.has_expired(row, now)},
        admission_words=wording.ADMISSIONS,
        admin_request_words=wording.ADMIN_REQUESTS,
    )


@router.post("/admins")
def ask_admission(dashboard: Running, admin: Admin, form: Form) -> RedirectResponse:
    """Ask for a person to be admitted."""
    with transaction(dashboard.factory) as session:
        admins.ask_admission(
            session,
            name=form.get("name", "").strip(),
            introduction=form.get("introduction", ""),
            reason=read_reason(form),
            asked_by=admin.admin_id,
            now=dashboard.clock(),
        )
    return _back()


@router.post("/admins/{admin_id}/remove")
def ask_removal(dashboard: Running, admin: Admin, form: Form, admin_id: str) -> RedirectResponse:
    """Ask for an admin to be removed."""
    with transaction(dashboard.factory) as session:
        admins.ask_removal(
            session, admin_id=admin_id, reason=read_reason(form), asked_by=admin.admin_id, now=dashboard.clock()
        )
    return _back()


@router.post("/admin-requests/{request_id}/approve")
def approve(dashboard: Running, admin: Admin, request_id: str) -> RedirectResponse:
    """Do what another admin has asked for."""
    with transaction(dashboard.factory) as session:
        admins.approve(session, request_id=request_id, decided_by=admin.admin_id, now=dashboard.clock())
    return _back()


@router.post("/admin-requests/{request_id}/decline")
def decline(dashboard: Running, admin: Admin, request_id: str) -> RedirectResponse:
    """Leave everything as it is."""
    with transaction(dashboard.factory) as session:
        admins.decline(session, request_id=request_id, decided_by=admin.admin_id, now=dashboard.clock())
    return _back()


def _back() -> RedirectResponse:
    return RedirectResponse("/admins", status_code=303)
