"""Dependencies of routes: running service, caller (by key or session cookie), page parameters, idempotency key."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Header, Path, Query, Request, Security, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from sqlalchemy import Engine

from obscura.wire.schemas import Identifier
from service.api import events, problems, uploading
from service.api.limits import Rates, Slots, WrongKeys, client_address
from service.db.session import SessionFactory, transaction
from service.dependencies import Dependencies
from service.disk import DiskProbe
from service.errors import Forbidden, InvalidInput, ObscuraError, Unauthorized
from service.identity import auth
from service.identity.access import Principal, Scope, on_behalf
from service.ledger.stops import require_unlocked
from service.metrics import Metrics
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import Storage

if TYPE_CHECKING:
    from service.identity.provider import Provider

COOKIE = "obscura_session"  # over plain HTTP; see `cookie_name`
FORM_TOKEN = "X-Form-Token"  # request header of our scripts, with the session's form token
READINESS_AT_A_TIME_MAX = 8  # concurrent readiness checks, including hanging ones


@dataclass(frozen=True)
class Service:
    """The running service; lives in `app.state.service`."""

    settings: Settings
    engine: Engine
    factory: SessionFactory
    streams: Slots[events.StreamLimits]
    clock: Callable[[], datetime]
    uploads: Slots[uploading.UploadLimits]
    ring: Callable[[], None]
    disks: DiskProbe
    dependencies: Dependencies
    key_uses: auth.KeyUses
    metrics: Metrics
    audit_trouble: Callable[[], str] = lambda: ""
    provider: Provider | None = None
    wrong_keys: WrongKeys = field(default_factory=WrongKeys)
    rates: Rates = field(default_factory=lambda: Rates(0))
    stopping: threading.Event = field(default_factory=threading.Event)
    readiness: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(READINESS_AT_A_TIME_MAX)
    )

    @property
    def storage(self) -> Storage:
        return storage_of(self.settings)


async def running_service(request: Request) -> Service:
    """Return the running service with sessions bound to the caller of this request (`request.state.caller`)."""
    service: Service = request.app.state.service
    note = getattr(request.state, "note", None)
    return replace(service, factory=on_behalf(service.factory, lambda: request.state.caller, note))


Running = Annotated[Service, Depends(running_service)]

Credentials = HTTPAuthorizationCredentials | None
bearer = HTTPBearer(auto_error=False, scheme_name="ApiKey", description="`Authorization: Bearer obs_...`")


def identify(service: Service, request: Request, token: str) -> Principal:
    """Authenticate a token. Record the key's use, or count an invalid key for the client's address."""
    now = service.clock()
    try:
        with transaction(service.factory, read_only=True) as session:
            principal = auth.authenticate(session, token, now=now)
    except Unauthorized as error:
        wait_seconds = service.wrong_keys.count(client_address(request), auth.claimed_id(token))
        if wait_seconds > 0:
            raise problems.TooManyWrongKeys(error.message, wait_seconds) from None
        raise
    service.key_uses.note(principal.id, now)
    request.state.known = principal
    return principal


def require_same_origin(request: Request) -> None:
    """Raise Forbidden if the header Origin or Sec-Fetch-Site shows that another site sent the request.

    Our origin is that of `Settings.public_url`. If that is empty, our origin is the requested host with any scheme.
    """
    origin = request.headers.get("origin")  # a scheme, "://", a host; or "null"
    ours = request.app.state.settings.public_url
    foreign = origin is not None and (
        origin != ours if ours else origin.partition("://")[2] != request.headers.get("host")
    )
    if foreign or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("This request was sent from another site.")


def require_token(token: str, expected: str) -> None:
    """Raise Forbidden unless the request contains the form token (CSRF token) of its session."""
    if not hmac.compare_digest(token.encode(), expected.encode()):
        raise Forbidden("This page is from an earlier session. Reload it and try again.")


def is_secure(request: Request) -> bool:
    """Return whether browsers reach the service over HTTPS. If so, the session cookie is marked secure."""
    public_url: str = request.app.state.settings.public_url
    return public_url.startswith("https:") or request.url.scheme == "https"


def cookie_name(request: Request) -> str:
    """Return the session cookie's name. With the prefix `__Host-`, only this host can set it, and only over HTTPS."""
    return f"__Host-{COOKIE}" if is_secure(request) else COOKIE


def signed_in_by_cookie(service: Running, request: Request) -> auth.SignedIn | None:
    """Return the caller of the request's session cookie, or None."""
    cookie = request.cookies.get(cookie_name(request))
    if cookie is None:
        return None
    now = service.clock()
    with transaction(service.factory, read_only=True) as session:
        signed_in = auth.find_session(session, cookie, now=now)
    if signed_in is not None:
        service.key_uses.note(signed_in.principal.id, now)
        request.state.known = signed_in.principal
    return signed_in


def authenticate_request(service: Service, request: Request, credentials: Credentials) -> Principal:
    """Authenticate the key or the page's session, once per request, and count the request for the rate limit."""
    known: Principal | None = getattr(request.state, "known", None)
    if known is not None:
        return known
    principal, needed = None, "Send an API key: 'Authorization: Bearer obs_...'."
    if credentials is not None:
        principal = identify(service, request, credentials.credentials)
    elif FORM_TOKEN in request.headers:  # sent by a page's script
        require_same_origin(request)
        signed_in, needed = signed_in_by_cookie(service, request), "Your session has ended."
        if signed_in is not None:
            require_token(request.headers[FORM_TOKEN], signed_in.form_token)
            principal = signed_in.principal
    if principal is None:
        service.rates.pass_address(request)
        raise Unauthorized(needed)
    service.rates.pass_key(request, principal.id, principal.project_id)
    return principal


def authorize(
    needed: SecurityScopes, service: Running, request: Request, credentials: Annotated[Credentials, Security(bearer)]
) -> Principal:
    """Authenticate the caller and require the scopes that the route declares."""
    principal = authenticate_request(service, request, credentials)
    for scope in needed.scopes:
        principal.require(Scope(scope))
    require_open_to(service, request, principal)
    request.state.caller = principal
    return principal


def require_open_to(service: Service, request: Request, principal: Principal) -> None:
    """Raise InstallationLocked if the installation is locked, except for admins' read requests."""
    if request.method not in ("GET", "HEAD") or Scope.ADMIN not in principal.scopes:
        with transaction(service.factory, read_only=True) as session:
            require_unlocked(session)


class UnsupportedMediaType(ObscuraError):
    """The route does not read bodies of this content type."""


async def refuse_the_unknown(request: Request) -> None:
    """Reject unknown query parameters (InvalidInput) and content types (UnsupportedMediaType)."""
    route = request.scope["route"]
    parameters = get_flat_params(route.dependant)
    known = [field.alias for field in parameters if isinstance(field.field_info, params.Query)]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        takes = f"only {', '.join(known)}" if known else "no query parameters"
        raise InvalidInput(f"A query parameter is unknown. This route accepts {takes}.", known=known)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    empty = request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
    if route.body_field is not None and not empty and kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType("Send the body as JSON, with 'Content-Type: application/json'.")
    if request.method == "PUT" and kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
        raise UnsupportedMediaType("Send the file itself as the body, not a form: 'curl -T FILE'.")


# Each route declares its scope as a dependency, or as a parameter if it needs the caller.
READ = Security(authorize, scopes=["read"])
TRAIN = Security(authorize, scopes=["train"])
DATA = Security(authorize, scopes=["data"])
ADMIN = Security(authorize, scopes=["admin"])
VIEW = Security(authorize, scopes=["releases"])
AUDIT = Security(authorize, scopes=["audit"])
METRICS = Security(authorize, scopes=["metrics"])
Reader = Annotated[Principal, READ]
Trainer = Annotated[Principal, TRAIN]
Uploader = Annotated[Principal, DATA]
Admin = Annotated[Principal, ADMIN]


async def installation_admin(admin: Admin) -> Principal:
    """Require an admin of the installation. A project's owner is not enough."""
    admin.require_installation()
    return admin


INSTALLATION = Depends(installation_admin)


@dataclass(frozen=True)
class PageRequest:
    limit: int
    cursor: str | None


async def page_request(
    service: Running,
    limit: Annotated[int, Query(ge=1, description="Items per page, capped by the service.")] = 50,
    cursor: Annotated[str | None, Query(max_length=500, description="`next_cursor` of the previous page.")] = None,
) -> PageRequest:
    return PageRequest(min(limit, service.settings.page_size_max), cursor)


Paging = Annotated[PageRequest, Depends(page_request)]


OfAccount = Annotated[Identifier | None, Query(description="Only items of this account.")]
ReleaseId = Annotated[Identifier, Path(description="The release.")]


async def idempotency_key(
    key: Annotated[
        str | None,
        Header(alias="Idempotency-Key", description="Required. The same key with the same body gives the same job."),
    ] = None,
) -> str:
    """Return the Idempotency-Key header: 1 to 200 visible ASCII characters."""
    if key is None:
        raise InvalidInput("Send an Idempotency-Key header, so that a retry cannot start (or pay for) a job twice.")
    if not 1 <= len(key) <= 200 or not all("!" <= character <= "~" for character in key):
        raise InvalidInput("An Idempotency-Key must have 1 to 200 visible ASCII characters.")
    return key


IdempotencyKey = Annotated[str, Depends(idempotency_key)]
