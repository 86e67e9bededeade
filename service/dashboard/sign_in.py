"""Sign-in, invitations and sign-out, a person's own page (*You*), static files, and the API reference (Swagger UI)."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session
from swagger_ui_bundle import swagger_ui_path

from obscura.wire.ids import digest_token
from service.api.deps import Running, Service, cookie_name, identify, is_secure
from service.api.limits import client_address
from service.api.problems import STATUSES, TooManyWrongKeys
from service.dashboard.access import Acting, BySession, Form, Member, read_form
from service.dashboard.pages import REFERENCE_POLICY, PageRoute, page
from service.db.access_tables import ONE_PROJECT, ApiKey, Person
from service.db.session import transaction
from service.errors import Forbidden, InvalidInput, NotFound, ObscuraError, Unauthorized
from service.identity import auth, invitations, people, projects
from service.identity.access import Principal, Scope, covers, visible
from service.identity.auth import SESSION_SECONDS, close_session, open_session
from service.ledger.stops import require_unlocked

if TYPE_CHECKING:
    from service.identity.provider import Provider

router = APIRouter(route_class=PageRoute)
LINK_SECONDS = 600
_STATIC = Path(__file__).parent / "static"
NEXT_CHARACTERS_MAX = 500
PENDING_COOKIE = "obscura_sign_in"
PENDING_PATH = "/login"
KEYS_SHOWN_MAX = 100
DAYS = (7, 30, 90, 365)
OVERLAP_HOURS = (0, 1, 24, 168)
REFERENCE_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")
_LINK_OVER = (
    f"This link was used before, or is older than {LINK_SECONDS // 60} minutes. Sign in with an API key, or start "
    "`obscura up` again for another link."
)
_FILES = {path.name: path for path in (*_STATIC.iterdir(), *(Path(swagger_ui_path, name) for name in REFERENCE_FILES))}


@dataclass
class SignInLinks:
    """One-time sign-in links. Only their SHA-256 is stored, in memory. Operations on a dict are atomic."""

    _open: dict[str, float] = field(default_factory=dict)

    def make(self, *, now_seconds: float) -> str:
        """Return the secret of a new link that is valid for LINK_SECONDS."""
        secret = secrets.token_hex(32)
        self._open[digest_token(secret)] = now_seconds + LINK_SECONDS
        return secret

    def is_open(self, secret: str, *, now_seconds: float) -> bool:
        return self._open.get(digest_token(secret), now_seconds) > now_seconds

    def use(self, secret: str, *, now_seconds: float) -> bool:
        """Use a link; return False if it is used, expired or unknown."""
        return self._open.pop(digest_token(secret), now_seconds) > now_seconds


@router.get("/login")
def sign_in_form(request: Request, next: Annotated[str, Query(max_length=NEXT_CHARACTERS_MAX)] = "/") -> HTMLResponse:
    return login_page(request, local_path(next))


@router.post("/login")
def sign_in(request: Request, service: Running, form: Form) -> Response:
    target = local_path(form.get("next", "/"))
    try:
        principal = identify(service, request, form.get("key", "").strip())
    except (Unauthorized, TooManyWrongKeys) as error:
        if isinstance(error, Unauthorized):
            structlog.get_logger(__name__).warning("dashboard_sign_in_refused", address=client_address(request))
        return login_page(request, target, error)
    if not covers(principal.scopes, Scope.READ):
        message = f"This key cannot open the dashboard: it needs the scope {Scope.READ.value!r} or 'admin'."
        return login_page(request, target, Forbidden(message))
    return _begin(request, service, principal.id, RedirectResponse(target, status_code=303))


def login_page(request: Request, target: str, error: ObscuraError | None = None) -> HTMLResponse:
    """Return the sign-in form with an error message. If there is a sign-in provider, the form has a link to it."""
    status, message = (200, None) if error is None else (STATUSES[error.code], error.message)
    provider = request.app.state.service.provider is not None
    response = page(request, "login.html", status_code=status, next=target, message=message, provider=provider)
    response.headers.update(getattr(error, "headers", {}))
    return response


@router.get("/sign-in/{secret}")
def link(request: Request, secret: str) -> HTMLResponse:
    """Show the button that uses a one-time link, so that mail programs that open links do not consume it."""
    if not request.app.state.links.is_open(secret, now_seconds=time.monotonic()):
        raise NotFound(_LINK_OVER)
    return page(request, "link.html", secret=secret)


@router.post("/sign-in/{secret}", dependencies=[Depends(read_form)])
def use_link(request: Request, service: Running, secret: str) -> Response:
    """Open a session of the first admin with the link that `obscura up` printed."""
    if not request.app.state.links.use(secret, now_seconds=time.monotonic()):
        raise NotFound(_LINK_OVER)
    try:
        token = service.settings.admin_key_path.read_text("ascii").strip()
        with transaction(service.factory, read_only=True) as session:
            principal = request.state.known = auth.authenticate(session, token, now=service.clock())
    except (OSError, UnicodeDecodeError, Unauthorized):
        raise Unauthorized("The first admin's key is no longer valid. Sign in with a key of your own.") from None
    return _begin(request, service, principal.id, RedirectResponse("/", status_code=303))


@router.get("/invitations/{secret}")
def show_invitation(request: Request, service: Running, secret: str) -> HTMLResponse:
    """Show the form that accepts an invitation. Mail programs open links, so this changes nothing."""
    service.rates.pass_address(request)
    with transaction(service.factory, read_only=True) as session:
        invitation, inviting = invitations.find_open(session, secret, now=service.clock())
        named = projects.names(session, {invitation.project_id, inviting.admin_id})
        several = session.scalar(select(ONE_PROJECT)) is False
    project = named[invitation.project_id] if several and invitation.project_id else ""
    facts: dict[str, Any] = {"invitation": invitation, "inviter": named[str(inviting.admin_id)], "project": project}
    deciding = invitation.role in invitations.DECIDING
    return page(request, "invitation.html", token="", secret=secret, days=DAYS, deciding=deciding, **facts)


@router.post("/invitations/{secret}")
def accept_invitation(request: Request, service: Running, form: Form, secret: str) -> Response:
    """Accept an invitation once: create the person's key, show it, and sign the browser in."""
    facts = {"name": form.get("name", "").strip(), "introduction": form.get("introduction", "")}
    valid = timedelta(days=_choice(form, "days", DAYS))
    service.rates.pass_address(request)
    try:
        with transaction(service.factory) as session:
            require_unlocked(session)
            invitation, token = invitations.accept(session, secret, **facts, valid=valid, now=service.clock())
    except NotFound as error:
        wait_seconds = service.wrong_keys.count(client_address(request), "invitation")
        if wait_seconds > 0:
            raise TooManyWrongKeys(error.message, wait_seconds) from None
        raise
    response = page(request, "invitation.html", status_code=201, invitation=invitation, token=token)
    return _begin(request, service, str(invitation.key_id), response) if token else response


@router.post("/view")
def view_project(request: Request, service: Running, principal: Acting, signed_in: BySession, form: Form) -> Response:
    """View a project as its owner, or return to the installation. Only for admins of the installation."""
    back = None if signed_in is None else signed_in.return_key_id
    if "project" in form:
        with transaction(service.factory) as session:
            key_id = auth.view_project(session, principal, form["project"], now=service.clock()).id
        return _begin(request, service, key_id, RedirectResponse("/", status_code=303), return_key_id=principal.id)
    if back is None:
        raise Forbidden("You are not viewing a project.")
    return _begin(request, service, back, RedirectResponse("/", status_code=303))


def _begin(
    request: Request, service: Service, key_id: str, response: Response, return_key_id: str | None = None
) -> Response:
    """Open a session for a key. Close the browser's current session, which may belong to another person."""
    with transaction(service.factory) as session:
        close_session(session, request.cookies.get(cookie_name(request), ""))
        cookie = open_session(session, key_id, now=service.clock(), return_key_id=return_key_id)
    name, secure = cookie_name(request), is_secure(request)
    response.set_cookie(name, cookie, max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=secure)
    return response


def _provider(request: Request, service: Service) -> Provider:
    if service.provider is None:
        raise NotFound("This service has no sign-in provider. Sign in with an API key.")
    service.rates.pass_address(request)
    return service.provider


@router.get("/login/provider")
def begin(request: Request, service: Running, next: str = "/") -> RedirectResponse:
    provider = _provider(request, service)
    address, cookie = provider.begin(request, local_path(next[: NEXT_CHARACTERS_MAX + 1]))
    response = RedirectResponse(address, status_code=303)
    # Not "strict": the browser must send the cookie when the provider redirects back.
    flags: dict[str, Any] = {"httponly": True, "samesite": "lax", "secure": is_secure(request)}
    response.set_cookie(PENDING_COOKIE, cookie, max_age=people.PENDING_SECONDS, path=PENDING_PATH, **flags)
    return response


@router.get("/login/callback")
def finish(request: Request, service: Running) -> Response:
    """Open a session for the person who has signed in at the provider."""
    provider = _provider(request, service)
    try:
        claims, refresh_token, target = provider.finish(request, request.cookies.get(PENDING_COOKIE, ""))
        with transaction(service.factory) as session:
            person = people.sign_in(session, service.settings, claims, refresh_token, now=service.clock())
            theirs = [auth.principal_of(key) for key in people.roles(session, person)]
        if not theirs:
            raise Forbidden(
                f"You signed in as {person.name}, but none of your groups has a role here. Ask the people who manage "
                "the groups for a role, then sign in again."
            )
        principal = request.state.known = theirs[0]
    except (Unauthorized, Forbidden) as error:
        structlog.get_logger(__name__).warning("provider_sign_in_refused", address=client_address(request))
        refused = login_page(request, "/", error)
        refused.delete_cookie(PENDING_COOKIE, path=PENDING_PATH)
        return refused
    # A page instead of a redirect: browsers send a strict cookie only for navigation that starts on this site.
    response = page(request, "signed_in.html", target=local_path(target))
    response.delete_cookie(PENDING_COOKIE, path=PENDING_PATH)
    return _begin(request, service, principal.id, response)


@router.get("/you")
def show(request: Request, service: Running, viewer: Member) -> HTMLResponse:
    return _page(request, service, viewer.signed_in())


def _page(request: Request, service: Service, principal: Principal, token: str | None = None) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        person = None if principal.person_id is None else session.get_one(Person, principal.person_id)
        mine = [] if person is None else people.roles(session, person)
        newest = visible(session, ApiKey).where(_own(principal)).order_by(ApiKey.created_at.desc(), ApiKey.id)
        keys = session.scalars(newest.limit(KEYS_SHOWN_MAX)).all()
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
        now=service.clock(),
    )


@router.post("/you/project")
def change_project(request: Request, service: Running, principal: Acting, form: Form) -> Response:
    with transaction(service.factory, read_only=True) as session:
        person = session.get_one(Person, _person_of(principal))
        roles = [key.id for key in people.roles(session, person)]
    if form.get("role") not in roles:
        raise NotFound("You have no such role.")
    return _begin(request, service, form["role"], RedirectResponse("/you", status_code=303))


@router.post("/you/keys")
def make_key(request: Request, service: Running, principal: Acting, form: Form) -> HTMLResponse:
    """Create a key with at most the permissions of the person's role, and show its token once."""
    _person_of(principal)
    wished = form.get("scope", "")
    scopes = sorted(principal.scopes) if wished == "all" else [wished]
    with transaction(service.factory) as session:
        now = service.clock()
        end = now + timedelta(days=_choice(form, "days", DAYS))
        name = form.get("name", "").strip()
        _key, token = auth.create_key(
            session, name=name, scopes=scopes, now=now, by=principal, expires_at=end, project_id=principal.project_id
        )
    return _page(request, service, principal, token)


@router.post("/you/keys/{key_id}/rotate")
def rotate_key(request: Request, service: Running, principal: Acting, form: Form, key_id: str) -> HTMLResponse:
    """Rotate one of the person's keys, or a member's key. The successor of a member's key expires with it."""
    with transaction(service.factory) as session:
        now = service.clock()
        _require_own(session, principal, key_id)
        _key, token = auth.rotate_key(
            session,
            key_id=key_id,
            overlap_seconds=3600 * _choice(form, "overlap", OVERLAP_HOURS),
            expires_at=None if principal.person_id is None else now + timedelta(days=_choice(form, "days", DAYS)),
            by=principal,
            now=now,
        )
    return _page(request, service, principal, token)


@router.post("/you/keys/{key_id}/revoke")
def revoke_key(service: Running, principal: Acting, key_id: str) -> RedirectResponse:
    """Revoke one of the person's keys, or the key that opened the session, with all keys that it created."""
    with transaction(service.factory) as session:
        _require_own(session, principal, key_id)
        auth.revoke(session, ApiKey.id == key_id, now=service.clock())
    return RedirectResponse("/you", status_code=303)


def _own(principal: Principal) -> ColumnElement[bool]:
    if principal.person_id is None:
        return ApiKey.id == principal.id
    return (
        (ApiKey.person_id == principal.person_id)
        & ApiKey.created_by.is_not(None)
        & ApiKey.project_id.is_not_distinct_from(principal.project_id)
    )


def _require_own(session: Session, principal: Principal, key_id: str) -> None:
    if session.scalar(visible(session, ApiKey).where(ApiKey.id == key_id, _own(principal))) is None:
        raise NotFound("There is no such key.", key_id=key_id)


def _person_of(principal: Principal) -> str:
    if principal.person_id is None:
        raise Forbidden("Only people who sign in through the provider can do this. Ask an admin instead.")
    return principal.person_id


def _choice(form: Form, field: str, choices: tuple[int, ...]) -> int:
    text = form.get(field, "")
    if text not in map(str, choices):
        raise InvalidInput("Choose one of the durations in the form.")
    return int(text)


@router.post("/logout", dependencies=[Depends(read_form)])
def sign_out(request: Request, service: Running) -> Response:
    """End the session. Copies of its cookie also become invalid."""
    cookie = request.cookies.get(cookie_name(request))
    if cookie is not None:
        with transaction(service.factory) as session:
            close_session(session, cookie)
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(cookie_name(request), httponly=True, samesite="strict", secure=is_secure(request))
    return response


@router.get("/static/{name}")
async def static_file(name: str) -> FileResponse:
    """Serve a style, script or image. Its URL changes with its content, so browsers may cache it forever."""
    if name not in _FILES:
        raise NotFound("There is no such file.")
    return FileResponse(_FILES[name], headers={"Cache-Control": "public, max-age=31536000, immutable"})


@router.get("/reference")
def reference(request: Request) -> HTMLResponse:
    """Show every operation with its fields and examples. With a key, you can try them."""
    response = page(request, "reference.html", ui_version=version("swagger-ui-bundle-v2"))
    response.headers["Content-Security-Policy"] = REFERENCE_POLICY
    return response


def local_path(target: str) -> str:
    """Return `target` if it is a path of this site, otherwise the path of the overview."""
    plain = target.startswith("/") and not target.startswith("//") and "\\" not in target and target.isprintable()
    return target if plain and len(target) <= NEXT_CHARACTERS_MAX else "/"
