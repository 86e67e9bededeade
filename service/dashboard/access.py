"""Who is looking: a session (`service.dashboard.sessions`), or anybody who can connect where the operator allows that.

Forms carry a token made from the session's cookie, beside SameSite.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Concatenate, ParamSpec, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from service import projects
from service.access import Principal, Scope
from service.api.deps import Service, require_open_to, running_service
from service.dashboard.pages import SignInNeeded
from service.dashboard.sessions import SignInLinks, find_session, form_token, may_read
from service.db.session import SessionFactory, transaction
from service.errors import Forbidden, InvalidInput, TooLarge, Unauthorized

COOKIE = "obscura_session"  # over plain HTTP, which `cookie_name` replaces over HTTPS
Facts = ParamSpec("Facts")
Made = TypeVar("Made")


FORM_BYTES_MAX = 16 * 1024
FORM_FIELDS_MAX = 32


@dataclass(frozen=True)
class Dashboard:
    """The running dashboard; lives in `app.state.dashboard`."""

    service: Service
    links: SignInLinks = field(default_factory=SignInLinks)

    @property
    def factory(self) -> SessionFactory:
        """Makes sessions with the database."""
        return self.service.factory

    @property
    def clock(self) -> Callable[[], datetime]:
        """Returns the time, aware."""
        return self.service.clock

    def do(self, step: Callable[Concatenate[Session, Facts], Made], *args: Facts.args, **facts: Facts.kwargs) -> Made:
        """Take a step in a transaction of its own, and return what it made."""
        with transaction(self.factory) as session:
            return step(session, *args, **facts)


@dataclass(frozen=True)
class Viewer:
    """Whoever looks at a page.

    Attributes:
        principal: The key that signed in; None for a reader without a key.
        form_token: What this session's forms carry; empty without a session.
        name: Of the person or the key that signed in.
        hidden_projects: The number of projects whose content an admin of the installation does not see; 0 for others.
    """

    principal: Principal | None
    form_token: str
    name: str = ""
    hidden_projects: int = 0

    @property
    def runs_installation(self) -> bool:
        """Whether the key belongs to an admin of the installation, and to no single project."""
        return self.may(Scope.ADMIN) and self.principal is not None and self.principal.project_id is None

    def may(self, scope: str) -> bool:
        """Whether the key has a scope, or that of admins, which includes the others."""
        return self.principal is not None and bool(self.principal.scopes & {Scope.ADMIN, Scope(scope)})


async def running_dashboard(request: Request) -> Dashboard:
    """The dashboard that this application runs, with the service of whoever looks."""
    dashboard: Dashboard = request.app.state.dashboard
    return replace(dashboard, service=await running_service(request))


Running = Annotated[Dashboard, Depends(running_dashboard)]


def find_viewer(request: Request, dashboard: Running) -> Viewer:
    """Find who is looking: a session, or anybody where the settings say so.

    Raises:
        SignInNeeded: Neither.
        TooManyRequests: There were as many in this minute as may come.
    """
    viewer = _signed_in(request, dashboard)
    if viewer is None and dashboard.service.settings.dashboard_public:
        viewer = Viewer(principal=None, form_token="")
    if viewer is None:
        raise SignInNeeded("Sign in with an API key to see this page.")
    if viewer.principal is None:
        dashboard.service.rates.pass_address(request)
    else:
        dashboard.service.rates.pass_key(request, viewer.principal.id, viewer.principal.project_id)
    request.state.viewer, request.state.caller = viewer, viewer.principal
    if viewer.principal is not None:
        require_open_to(dashboard.service, request, viewer.principal)
    if viewer.principal is not None and not may_read(viewer.principal):
        raise Forbidden("Your role opens no page but *You* (/you), where you make keys for programs.")
    return viewer


Reader = Annotated[Viewer, Depends(find_viewer)]


def find_member(request: Request, dashboard: Running) -> Viewer:
    """Find who is signed in, whatever they may do.

    Raises:
        SignInNeeded: Nobody is.
    """
    viewer = _signed_in(request, dashboard)
    if viewer is None or viewer.principal is None:
        raise SignInNeeded("Sign in to see this page.")
    dashboard.service.rates.pass_key(request, viewer.principal.id, viewer.principal.project_id)
    request.state.viewer, request.state.caller = viewer, viewer.principal
    require_open_to(dashboard.service, request, viewer.principal)
    return viewer


Member = Annotated[Viewer, Depends(find_member)]


async def read_form(request: Request) -> dict[str, str]:
    """Read a small form.

    Raises:
        Forbidden: Another site sent it.
        InvalidInput: It is not a form.
        TooLarge: It is longer than any form of ours.
    """
    require_same_origin(request)
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/x-www-form-urlencoded":
        raise InvalidInput("This page takes a form.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise TooLarge("This form", FORM_BYTES_MAX)
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX, errors="strict"
        )
    except ValueError:
        raise InvalidInput("This form cannot be read.") from None
    if any("\0" in text for field in fields for text in field):
        raise InvalidInput("A form may hold no NUL character.")
    return dict(fields)


Form = Annotated[dict[str, str], Depends(read_form)]


def _acting(scope: Scope) -> Callable[[Viewer, dict[str, str]], Principal]:
    """Let a form act: it comes from this session, whose key has a scope.

    Raises, when a form comes:
        Forbidden: The key lacks the scope, or the form is another session's.
        SignInNeeded: Nobody is signed in.
    """

    def find(viewer: Reader, form: Form) -> Principal:
        return require_acting(viewer, form.get("token", ""), scope)

    return find


def require_acting(viewer: Viewer, token: str, scope: Scope) -> Principal:
    """Return whoever acts with a form that carries this session's token, by a key with a scope.

    Raises:
        Forbidden: The key lacks the scope, or the form is another session's.
        SignInNeeded: Nobody is signed in.
    """
    principal = require_form_of(viewer, token)
    principal.require(scope)
    return principal


def require_form_of(viewer: Viewer, token: str) -> Principal:
    """Return whoever sends a form that carries this session's token.

    Raises:
        Forbidden: The form is another session's.
        SignInNeeded: Nobody is signed in.
    """
    if viewer.principal is None:
        raise SignInNeeded("Sign in with an API key to do this.")
    if not hmac.compare_digest(token.encode(), viewer.form_token.encode()):
        raise Forbidden("This form is from an earlier session. Reload the page and try again.")
    return viewer.principal


find_trainer, find_uploader, find_admin = _acting(Scope.TRAIN), _acting(Scope.DATA), _acting(Scope.ADMIN)
Trainer = Annotated[Principal, Depends(find_trainer)]
Uploader = Annotated[Principal, Depends(find_uploader)]
Admin = Annotated[Principal, Depends(find_admin)]


def require_same_origin(request: Request) -> None:
    """Refuse a form that another site's page has sent. Browsers say so in one of two headers, or in both.

    Ours is the origin of `Settings.public_url`; without one it is the host that was asked, whatever the scheme.

    Raises:
        Forbidden: Another site sent it.
    """
    origin = request.headers.get("origin")  # a scheme, "://", a host; or "null"
    ours = request.app.state.settings.public_url
    foreign = origin is not None and (
        origin != ours if ours else origin.partition("://")[2] != request.headers.get("host")
    )
    if foreign or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("This form was sent from another site.")


def is_secure(request: Request) -> bool:
    """Tell whether browsers reach the service by https: then they send the session's cookie no other way."""
    public_url: str = request.app.state.settings.public_url
    return public_url.startswith("https:") or request.url.scheme == "https"


def cookie_name(request: Request) -> str:
    """Return the name of the session's cookie. Browsers take `__Host-` from this very host and over HTTPS alone."""
    return f"__Host-{COOKIE}" if is_secure(request) else COOKIE


def _signed_in(request: Request, dashboard: Dashboard) -> Viewer | None:
    cookie = request.cookies.get(cookie_name(request))
    if cookie is None:
        return None
    now = dashboard.clock()
    with transaction(dashboard.factory, read_only=True) as session:
        found = find_session(session, cookie, now=now)
        hidden = 0 if found is None or found.principal.project_id else projects.count_hidden(session)
    if found is None:
        return None
    dashboard.service.key_uses.note(found.principal.id, now)
    request.state.known = found.principal
    return Viewer(found.principal, form_token(cookie), found.name, hidden)


def still_signed_in(request: Request, dashboard: Dashboard) -> bool:
    """Tell whether the session of a request that stays open has not ended: what it asks again and again."""
    try:
        return _signed_in(request, dashboard) is not None
    except Unauthorized:  # the provider no longer vouches for whoever it is of, or does not answer
        return False
