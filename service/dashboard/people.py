"""Sign-in with the organisation's provider, and the page *You*: a person's roles and keys."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from service.api.rates import client_address
from service.dashboard.access import (
    Dashboard,
    Form,
    Member,
    Running,
    Viewer,
    cookie_name,
    is_secure,
    require_form_of,
)
from service.dashboard.pages import PageRoute, page
from service.dashboard.sessions import close_session, open_session
from service.dashboard.sign_in import NEXT_CHARACTERS_MAX, local_path, login_page, set_session
from service.db.access_tables import ApiKey, Person
from service.db.session import transaction
from service.errors import Forbidden, InvalidInput, NotFound, Unauthorized
from service.identity import auth, people, projects
from service.identity.access import Principal, Scope, covers, visible

router = APIRouter(route_class=PageRoute)
PENDING_COOKIE = "obscura_sign_in"
PENDING_PATH = "/login"
PENDING_SECONDS = 600
KEYS_SHOWN_MAX = 100
DAYS = (7, 30, 90, 365)
OVERLAP_HOURS = (0, 1, 24, 168)


@router.get("/login/provider")
def begin(request: Request, dashboard: Running, next: str = "/") -> RedirectResponse:
    """Redirect the browser to the provider."""
    provider = dashboard.service.provider
    if provider is None:
        raise _no_provider()
    dashboard.service.rates.pass_address(request)
    address, cookie = provider.begin(request, local_path(next[: NEXT_CHARACTERS_MAX + 1]))
    response = RedirectResponse(address, status_code=303)
    response.set_cookie(
        PENDING_COOKIE,
        cookie,
        max_age=PENDING_SECONDS,
        path=PENDING_PATH,
        httponly=True,
        samesite="lax",  # not "strict": the browser must send it when the provider redirects back
        secure=is_secure(request),
    )
    return response


@router.get("/login/callback")
def finish(request: Request, dashboard: Running) -> Response:
    """Open a session of the person who has signed in at the provider.

    The browser's present session ends, so that nobody continues one that another person has begun.
    """
    provider = dashboard.service.provider
    if provider is None:
        raise _no_provider()
    dashboard.service.rates.pass_address(request)
    try:
        claims, refresh_token, target = provider.finish(request, request.cookies.get(PENDING_COOKIE, ""))
        principal = _note(request, dashboard, claims, refresh_token)
    except (Unauthorized, Forbidden) as error:
        structlog.get_logger(__name__).warning("provider_sign_in_refused", address=client_address(request))
        status = 401 if isinstance(error, Unauthorized) else 403
        refused = login_page(request, "/", error.message, status)
        refused.delete_cookie(PENDING_COOKIE, path=PENDING_PATH)
        return refused
    with transaction(dashboard.factory) as session:
        close_session(session, request.cookies.get(cookie_name(request), ""))
        cookie = open_session(session, principal.id, now=dashboard.clock())
    # A page, not a redirect: browsers send a strict cookie only for navigation that starts on this site.
    response = page(request, "signed_in.html", target=local_path(target))
    response.delete_cookie(PENDING_COOKIE, path=PENDING_PATH)
    set_session(request, response, cookie)
    return response


def _note(request: Request, dashboard: Dashboard, claims: people.Claims, refresh_token: str) -> Principal:
    settings = dashboard.service.settings
    with transaction(dashboard.factory) as session:
        person = people.sign_in(session, settings, claims, refresh_token, now=dashboard.clock())
        theirs = [auth.principal_of(key) for key in people.roles(session, person)]
    if not theirs:
        raise Forbidden(
            f"The sign-in provider knows you as {person.name}, and none of your groups has a role here. Ask whoever "
            "looks after the groups, then sign in again."
        )
    request.state.known = theirs[0]
    return theirs[0]


@router.get("/you")
def show(request: Request, dashboard: Running, viewer: Member) -> HTMLResponse:
    """Show the person, their role, and the keys that they made."""
    return _page(request, dashboard, viewer)


def _page(request: Request, dashboard: Dashboard, viewer: Viewer, token: str | None = None) -> HTMLResponse:
    principal, now = _principal(viewer), dashboard.clock()
    with transaction(dashboard.factory, read_only=True) as session:
        person = None if principal.person_id is None else session.get_one(Person, principal.person_id)
        mine = [] if person is None else people.roles(session, person)
        newest = visible(session, ApiKey).where(_own(principal)).order_by(ApiKey.created_at.desc(), ApiKey.id)
        keys = [] if person is None else session.scalars(newest.limit(KEYS_SHOWN_MAX)).all()
        names = projects.names(session, {principal.project_id, *(role.project_id for role in mine)})
    return page(
        request,
        "you.html",
        status_code=200 if token is None else 201,
        principal=principal,
        scopes=[scope.value for scope in Scope if covers(principal.scopes, scope)],
        person=person,
        roles=mine,
        keys=keys,
        projects=names,
        days=DAYS,
        overlaps=OVERLAP_HOURS,
        new_token=token,
        now=now,
    )


@router.post("/you/project")
def change_project(request: Request, dashboard: Running, viewer: Member, form: Form) -> Response:
    """Open a session of the person's role in another project."""
    principal = require_form_of(viewer, form.get("token", ""))
    with transaction(dashboard.factory) as session:
        person = session.get_one(Person, _person_of(principal))
        chosen = next((key for key in people.roles(session, person) if key.id == form.get("role")), None)
        if chosen is None:
            raise NotFound("You have no such role.")
        close_session(session, request.cookies.get(cookie_name(request), ""))
        cookie = open_session(session, chosen.id, now=dashboard.clock())
    response = RedirectResponse("/you", status_code=303)
    set_session(request, response, cookie)
    return response


@router.post("/you/keys")
def make_key(request: Request, dashboard: Running, viewer: Member, form: Form) -> HTMLResponse:
    """Create a key with at most the permissions of the person's role, and show its token once."""
    principal = require_form_of(viewer, form.get("token", ""))
    _person_of(principal)
    wished = form.get("scope", "")
    scopes = sorted(principal.scopes) if wished == "all" else [wished]
    with transaction(dashboard.factory) as session:
        now = dashboard.clock()
        asked = {"created_by": principal.id, "admin_id": principal.admin_id, "project_id": principal.project_id}
        end = _after(now, form.get("days", ""), DAYS, hours=24)
        name = form.get("name", "").strip()
        _key, token = auth.create_key(session, name=name, scopes=scopes, now=now, expires_at=end, **asked)
    return _page(request, dashboard, viewer, token)


@router.post("/you/keys/{key_id}/rotate")
def rotate_key(request: Request, dashboard: Running, viewer: Member, form: Form, key_id: str) -> HTMLResponse:
    """Rotate one of the person's keys."""
    principal = require_form_of(viewer, form.get("token", ""))
    with transaction(dashboard.factory) as session:
        now = dashboard.clock()
        _require_own(session, principal, key_id)
        _key, token = auth.rotate_key(
            session,
            key_id=key_id,
            overlap_seconds=int((_after(now, form.get("overlap", ""), OVERLAP_HOURS) - now).total_seconds()),
            expires_at=_after(now, form.get("days", ""), DAYS, hours=24),
            created_by=principal.id,
            admin_id=principal.admin_id,
            now=now,
        )
    return _page(request, dashboard, viewer, token)


@router.post("/you/keys/{key_id}/revoke")
def revoke_key(dashboard: Running, viewer: Member, form: Form, key_id: str) -> RedirectResponse:
    """Revoke one of the person's keys, with all that it made."""
    principal = require_form_of(viewer, form.get("token", ""))
    with transaction(dashboard.factory) as session:
        _require_own(session, principal, key_id)
        auth.revoke(session, ApiKey.id == key_id, now=dashboard.clock())
    return RedirectResponse("/you", status_code=303)


def _own(principal: Principal) -> ColumnElement[bool]:
    return (
        (ApiKey.person_id == principal.person_id)
        & ApiKey.created_by.is_not(None)
        & ApiKey.project_id.is_not_distinct_from(principal.project_id)
    )


def _require_own(session: Session, principal: Principal, key_id: str) -> None:
    _person_of(principal)
    if session.scalar(visible(session, ApiKey).where(ApiKey.id == key_id, _own(principal))) is None:
        raise NotFound("There is no such key.", key_id=key_id)


def _principal(viewer: Viewer) -> Principal:
    assert viewer.principal is not None, "somebody is signed in"
    return viewer.principal


def _person_of(principal: Principal) -> str:
    if principal.person_id is None:
        raise Forbidden("This is for people whom the sign-in provider knows. An admin makes other keys.")
    return principal.person_id


def _after(now: datetime, text: str, choices: tuple[int, ...], *, hours: int = 1) -> datetime:
    if text not in [str(choice) for choice in choices]:
        raise InvalidInput("Choose one of the spans that the form offers.")
    return now + timedelta(hours=int(text) * hours)


def _no_provider() -> NotFound:
    return NotFound("This service has no sign-in provider. Sign in with an API key.")
