"""Routes without a key: signing in and out, static files, and the API reference (Swagger UI)."""

from __future__ import annotations

import mimetypes
import time
from collections.abc import AsyncIterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import anyio
import structlog
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from swagger_ui_bundle import swagger_ui_path

from service.api.deps import identify
from service.api.problems import TooManyWrongKeys
from service.api.rates import client_address
from service.dashboard.access import Dashboard, Form, Running, cookie_name, is_secure, read_form
from service.dashboard.pages import REFERENCE_POLICY, PageRoute, page
from service.dashboard.sessions import LINK_SECONDS, SESSION_SECONDS, close_session, may_read, open_session
from service.db.session import transaction
from service.errors import NotFound, Unauthorized
from service.identity.access import Principal, Scope
from service.identity.auth import authenticate

router = APIRouter(route_class=PageRoute)
_STATIC = Path(__file__).parent / "static"
NEXT_CHARACTERS_MAX = 500
BLOCK_BYTES = 32 * 1024  # of a static file, sent at a time
REFERENCE_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")
FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}  # the address changes with the content


@router.get("/login")
def sign_in_form(request: Request, next: Annotated[str, Query(max_length=NEXT_CHARACTERS_MAX)] = "/") -> HTMLResponse:
    """Show the form."""
    return login_page(request, local_path(next))


@router.post("/login")
def sign_in(request: Request, dashboard: Running, form: Form) -> Response:
    """Check a key and begin a session."""
    target = local_path(form.get("next", "/"))
    try:
        principal = identify(dashboard.service, request, form.get("key", "").strip())
    except Unauthorized as error:
        structlog.get_logger(__name__).warning("dashboard_sign_in_refused", address=client_address(request))
        return login_page(request, target, error.message, 401)
    except TooManyWrongKeys as error:
        refused = login_page(request, target, error.message, 429)
        refused.headers["Retry-After"] = str(error.seconds)
        return refused
    if not may_read(principal):
        message = f"This key may not look at the dashboard: it needs the scope {Scope.READ.value!r} or 'admin'."
        return login_page(request, target, message, 403)
    return _begin(request, dashboard, principal, target)


def login_page(request: Request, target: str, message: str | None = None, status_code: int = 200) -> HTMLResponse:
    """Show the form, with what was wrong, and a link to the sign-in provider where there is one."""
    provider = request.app.state.service.provider is not None
    facts = {"next": target, "message": message, "provider": provider}
    return page(request, "login.html", status_code=status_code, **facts)


@router.get("/sign-in/{secret}")
def link(request: Request, dashboard: Running, secret: str) -> HTMLResponse:
    """Show the button that uses a one-time link: what only looks at an address, as mail programs do, does not."""
    if not dashboard.links.is_open(secret, now_seconds=time.monotonic()):
        raise _over()
    return page(request, "link.html", secret=secret)


@router.post("/sign-in/{secret}", dependencies=[Depends(read_form)])
def use_link(request: Request, dashboard: Running, secret: str) -> Response:
    """Begin a session of the first admin by the link that `obscura up` has printed."""
    if not dashboard.links.use(secret, now_seconds=time.monotonic()):
        raise _over()
    try:
        token = dashboard.service.settings.admin_key_path.read_text("ascii").strip()
        with transaction(dashboard.factory, read_only=True) as session:
            principal = request.state.known = authenticate(session, token, now=dashboard.clock())
    except (OSError, UnicodeDecodeError, Unauthorized):
        raise Unauthorized("The first admin's key is no longer valid. Sign in with a key of your own.") from None
    return _begin(request, dashboard, principal, "/")


def _over() -> NotFound:
    return NotFound(
        f"This link was used before, or is older than {LINK_SECONDS // 60} minutes. Sign in with an API key, or start "
        "`obscura up` again for another link."
    )


def _begin(request: Request, dashboard: Dashboard, principal: Principal, target: str) -> Response:
    with transaction(dashboard.factory) as session:
        cookie = open_session(session, principal.id, now=dashboard.clock())
    response = RedirectResponse(target, status_code=303)
    set_session(request, response, cookie)
    return response


def set_session(request: Request, response: Response, cookie: str) -> None:
    """Set the session cookie."""
    response.set_cookie(
        cookie_name(request),
        cookie,
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=is_secure(request),
    )


@router.post("/logout", dependencies=[Depends(read_form)])
def sign_out(request: Request, dashboard: Running) -> Response:
    """End the session, in this browser and wherever else its cookie may be."""
    cookie = request.cookies.get(cookie_name(request))
    if cookie is not None:
        with transaction(dashboard.factory) as session:
            close_session(session, cookie)
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(cookie_name(request), httponly=True, samesite="strict", secure=is_secure(request))
    return response


@router.get("/static/{name}")
async def static_file(name: str) -> Response:
    """Serve a style, script or picture of the dashboard; its address changes with its content."""
    return _file(_STATIC, name)


@router.get("/reference")
def reference(request: Request) -> HTMLResponse:
    """Show every operation with its fields and examples; with a key, they can be tried."""
    response = page(request, "reference.html", ui_version=version("swagger-ui-bundle-v2"))
    response.headers["Content-Security-Policy"] = REFERENCE_POLICY
    return response


@router.get("/reference/{name}")
async def reference_file(name: str) -> Response:
    """Serve one of Swagger UI's files; its address changes with the package's version."""
    if name not in REFERENCE_FILES:
        raise NotFound("There is no such file.")
    return _file(Path(swagger_ui_path), name)


def _file(folder: Path, name: str) -> Response:
    content = _files(folder).get(name)
    if content is None:
        raise NotFound("There is no such file.")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = FOR_EVER | {"Content-Length": str(len(content))}
    return StreamingResponse(_blocks(content), media_type=kind, headers=headers)


async def _blocks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), BLOCK_BYTES):
        yield content[start : start + BLOCK_BYTES]
        await anyio.sleep(0)  # lets other requests in between


@cache  # read once, because these files are requested without a key
def _files(folder: Path) -> dict[str, bytes]:
    wanted = [path for path in folder.iterdir() if folder == _STATIC or path.name in REFERENCE_FILES]
    return {path.name: path.read_bytes() for path in wanted if path.is_file()}


def local_path(target: str) -> str:
    """Return a path of this site; anything else becomes the overview."""
    plain = target.startswith("/") and not target.startswith("//") and "\\" not in target and target.isprintable()
    return target if plain and len(target) <= NEXT_CHARACTERS_MAX else "/"
