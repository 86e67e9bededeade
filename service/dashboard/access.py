"""Who is looking: a session opened with an API key, or anybody on this machine where the operator allows it.

The cookie is a random text; its SHA-256 names a row that says whose key opened the session and until when. Row and key
are looked up on every request, so signing out, or revoking the key, ends every copy of the cookie at once. Forms carry
a token made from the cookie, beside SameSite.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.auth import Principal, Scope, principal_of
from service.dashboard.pages import SignInNeeded
from service.db.access_tables import ApiKey, SignIn
from service.db.session import SessionFactory, transaction
from service.errors import Forbidden, InvalidInput, TooLarge
from service.settings import LOOPBACK_HOSTS, Settings

COOKIE = "obscura_session"
SESSION_SECONDS = 8 * 3600
SESSIONS_PER_KEY_MAX = 20  # the oldest make room
_TOKEN_BYTES = 32
Facts = ParamSpec("Facts")
Made = TypeVar("Made")
_READING_SCOPES = frozenset({Scope.ADMIN, Scope.READ})


def open_session(session: Session, key_id: str, *, now: datetime) -> str:
    """Open a session of a key and return its cookie, which is stored nowhere. Expired sessions are removed."""
    session.execute(delete(SignIn).where(SignIn.expires_at <= now))
    open_ones = select(SignIn).where(SignIn.key_id == key_id).order_by(SignIn.created_at.desc(), SignIn.token_sha256)
    for oldest in session.scalars(open_ones.offset(SESSIONS_PER_KEY_MAX - 1)).all():
        session.delete(oldest)
    cookie = secrets.token_hex(_TOKEN_BYTES)
    expires_at = now + timedelta(seconds=SESSION_SECONDS)
    session.add(SignIn(token_sha256=_digest(cookie), key_id=key_id, created_at=now, expires_at=expires_at))
    session.flush()
    return cookie


def find_session(session: Session, cookie: str, *, now: datetime) -> Principal | None:
    """Return the caller behind a cookie whose session is open and whose key is valid and may read."""
    row = session.get(SignIn, _digest(cookie))
    if row is None or row.expires_at <= now:
        return None
    key = session.get(ApiKey, row.key_id)
    if key is None or key.revoked_at is not None:
        return None
    principal = principal_of(key)
    return principal if may_read(principal) else None


def close_session(session: Session, cookie: str) -> None:
    """End a session for good; one that has ended stays so."""
    session.execute(delete(SignIn).where(SignIn.token_sha256 == _digest(cookie)))


def form_token(cookie: str) -> str:
    """Return the token that forms of this session must carry."""
    return hmac.new(cookie.encode(errors="surrogatepass"), b"form", hashlib.sha256).hexdigest()


def may_read(principal: Principal) -> bool:
    """Tell whether a key may look at the dashboard."""
    return bool(principal.scopes & _READING_SCOPES)


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode(errors="surrogatepass")).hexdigest()


@dataclass
class SignInThrottle:
    """Slow down guessing: a few failures an address, and a bound on all together, within a sliding window.

    Keys have 256 random bits, so this keeps the log and the processor quiet more than it keeps guessers out.
    """

    failures_max: int = 10
    failures_in_all_max: int = 200
    window_seconds: float = 300.0
    _failures: deque[tuple[str, float]] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_seconds(self, address: str, *, now_seconds: float) -> float:
        """Return how long this address has to wait; 0 when it may try."""
        with self._lock:
            while self._failures and self._failures[0][1] <= now_seconds - self.window_seconds:
                self._failures.popleft()
            all_times = [time for _, time in self._failures]
            own_times = [time for failed, time in self._failures if failed == address]
        for times, most in ((all_times, self.failures_in_all_max), (own_times, self.failures_max)):
            if len(times) >= most:
                return times[-most] + self.window_seconds - now_seconds
        return 0.0

    def record_failure(self, address: str, *, now_seconds: float) -> None:
        """Count a wrong key."""
        with self._lock:
            self._failures.append((address, now_seconds))
            while len(self._failures) > self.failures_in_all_max:
                self._failures.popleft()


FORM_BYTES_MAX = 16 * 1024
FORM_FIELDS_MAX = 32
_FORWARDED = (
    "forwarded",
    "via",
    "x-forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-host",
    "true-client-ip",
    "cf-connecting-ip",
)


class Doorbell(Protocol):
    """The part of the running service that the dashboard uses."""

    @property
    def clock(self) -> Callable[[], datetime]:
        """Returns the time, aware."""

    @property
    def ring(self) -> Callable[[], None]:
        """Sends what the outbox holds, after a commit."""


@dataclass(frozen=True)
class Dashboard:
    """The running dashboard; lives in `app.state.dashboard`."""

    settings: Settings
    factory: SessionFactory
    clock: Callable[[], datetime]
    ring: Callable[[], None]
    throttle: SignInThrottle

    @classmethod
    def of(cls, settings: Settings, factory: SessionFactory, service: Doorbell | None) -> Dashboard:
        """Build it around an application's settings and sessions."""
        clock = service.clock if service is not None else lambda: datetime.now(UTC)
        ring = service.ring if service is not None else lambda: None
        return cls(settings, factory, clock, ring, SignInThrottle())

    def do(self, step: Callable[Concatenate[Session, Facts], Made], *args: Facts.args, **facts: Facts.kwargs) -> Made:
        """Take a step in a transaction of its own, and return what it made."""
        with transaction(self.factory) as session:
            return step(session, *args, **facts)


@dataclass(frozen=True)
class Viewer:
    """Whoever looks at a page.

    Attributes:
        principal: The key that signed in; None for a reader on the service's own machine.
        form_token: What this session's forms carry; empty without a session.
    """

    principal: Principal | None
    form_token: str

    @property
    def may_train(self) -> bool:
        """May cancel jobs and draw samples."""
        return self.principal is not None and bool(self.principal.scopes & {Scope.ADMIN, Scope.TRAIN})

    @property
    def may_delete(self) -> bool:
        """May delete datasets."""
        return self.principal is not None and bool(self.principal.scopes & {Scope.ADMIN, Scope.DATA})

    @property
    def may_administer(self) -> bool:
        """May freeze accounts, lower limits, ask for higher ones, and decide about what other admins ask for."""
        return self.principal is not None and Scope.ADMIN in self.principal.scopes


async def running_dashboard(request: Request) -> Dashboard:
    """The dashboard that this application runs."""
    dashboard: Dashboard = request.app.state.dashboard
    return dashboard


Running = Annotated[Dashboard, Depends(running_dashboard)]


def find_viewer(request: Request, dashboard: Running) -> Viewer:
    """Find who is looking: a session, or anybody on this machine where the settings say so.

    Raises:
        SignInNeeded: Neither.
    """
    viewer = _signed_in(request, dashboard)
    if viewer is None and dashboard.settings.dashboard_public and _is_local(request):
        viewer = Viewer(principal=None, form_token="")
    if viewer is None:
        raise SignInNeeded("Sign in with an API key to see this page.")
    request.state.viewer = viewer
    return viewer


Reader = Annotated[Viewer, Depends(find_viewer)]


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
            raise TooLarge("This form is too long.")
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
        if viewer.principal is None:
            raise SignInNeeded("Sign in with an API key to do this.")
        if not hmac.compare_digest(form.get("token", "").encode(), viewer.form_token.encode()):
            raise Forbidden("This form is from an earlier session. Reload the page and try again.")
        viewer.principal.require(scope)
        return viewer.principal

    return find


find_trainer, find_uploader, find_admin = _acting(Scope.TRAIN), _acting(Scope.DATA), _acting(Scope.ADMIN)
Trainer = Annotated[Principal, Depends(find_trainer)]
Admin = Annotated[Principal, Depends(find_admin)]


def require_same_origin(request: Request) -> None:
    """Refuse a form that another site's page has sent. Browsers say so in one of two headers, or in both.

    Raises:
        Forbidden: Another site sent it.
    """
    origin = request.headers.get("origin")  # a scheme, "://", a host; or "null"
    foreign = origin is not None and origin.partition("://")[2] != request.headers.get("host")
    if foreign or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("This form was sent from another site.")


def _signed_in(request: Request, dashboard: Dashboard) -> Viewer | None:
    cookie = request.cookies.get(COOKIE)
    if cookie is None:
        return None
    with transaction(dashboard.factory, read_only=True) as session:
        principal = find_session(session, cookie, now=dashboard.clock())
    return None if principal is None else Viewer(principal, form_token(cookie))


def _is_local(request: Request) -> bool:
    """Tell whether somebody on this machine asks, with a browser of this machine.

    The connection must come from a loopback address, and nobody may say that it was forwarded: what a proxy says of the
    client's address is never believed, and a request that passed one is not local, whatever the server has made of it.
    HTTP/1.0 is what proxies speak that say nothing. The name in the address bar is judged as well: a foreign site that
    lets its name point to this machine is not local.
    """
    if any(name in request.headers for name in _FORWARDED) or request.scope.get("http_version") == "1.0":
        return False
    try:
        peer = ipaddress.ip_address(request.client.host if request.client is not None else "")
        peer = getattr(peer, "ipv4_mapped", None) or peer  # as a socket for both protocols names an IPv4 client
        return peer.is_loopback and request.url.hostname in LOOPBACK_HOSTS
    except ValueError:  # no address, or a host that is none
        return False
