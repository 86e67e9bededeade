"""ASGI middleware for every request: headers, traffic counts, and limits on concurrency, bodies and time."""

from __future__ import annotations

import re
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from service.api.limits import client_address
from service.api.problems import SECURITY_HEADERS, problem_response
from service.api.uploading import PARTS_PATH, content_length
from service.errors import TooLarge
from service.identity.access import Principal
from service.logs import get_logger

BODY_BYTES_MAX = 64 * 1024  # for routes without a declared limit
LARGE_BODY_BYTES_MAX = 1 << 20
LIVENESS_PATH = "/v1/health/live"
NOT_ANSWERED = 499  # the client disconnected before a response started
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")  # safe in log lines
_HOST = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True)
class GateLimits:
    """Bounds for the requests of one process."""

    # Processed at the same time. Half of the connections stay free, so that liveness checks can always connect.
    requests_max: int = 500
    per_address_max: int = 250
    # With incomplete bodies. Together with `requests_max`, below the number of connections.
    waiting_max: int = 250
    waiting_per_address_max: int = 25
    body_seconds_max: float = 30.0  # from the first read of the body to its end


@dataclass(eq=False)
class Middleware(ABC):
    """Base of middleware that handles HTTP requests and passes everything else on."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self.handle if scope["type"] == "http" else self.app
        await handle(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class CommonHeaders(Middleware):
    """Adds request id, rate limit and default security headers; pages set their own security policy.

    The request id is the client's X-Request-Id, if valid, or random. Log lines also contain it. A response that is sent
    before the whole body arrived closes the connection: otherwise the server would read to the body's announced end.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        requested = Headers(scope=scope)
        given = requested.get("x-request-id", "")
        name = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        ended = requested.get("content-length", "0") == "0" and "transfer-encoding" not in requested

        async def receive_noting() -> Message:
            nonlocal ended
            message = await receive()
            ended = ended or message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = name
                if not ended:
                    headers["Connection"] = "close"
                counted: dict[str, str] = scope.get("state", {}).get("rate_headers", {})
                for header, value in (SECURITY_HEADERS | counted).items():
                    headers.setdefault(header, value)
            await send(message)

        scope["obscura.request_id"] = name  # for responses created outside all middleware
        with bound_contextvars(request_id=name):
            await self.app(scope, receive_noting, send_with_headers)


@dataclass(eq=False, kw_only=True)
class Traffic(Middleware):
    """Counts each response for the metrics and, if `logged`, writes the access log.

    Routes are recorded by template (`/v1/jobs/{job_id}`), callers by key id. Paths and queries are never recorded,
    because they contain ids and names. `count` takes method, route, status, and seconds until the response started.
    """

    count: Callable[[str, str, int, float], None]
    logged: bool

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status, seconds = time.monotonic(), NOT_ANSWERED, 0.0

        async def send_noting(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                status, seconds = message["status"], time.monotonic() - began
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        except BaseException:
            status = 500 if status == NOT_ANSWERED else status
            raise
        finally:
            method, route = method_of(scope), route_of(scope)
            shown = route != PARTS_PATH
            if shown:
                self.count(method, route, status, seconds)
            if shown and self.logged:
                caller = caller_of(scope)
                key_id = caller and caller.id
                get_logger(__name__).info("request", method=method, route=route, status=status, key_id=key_id)


def caller_of(scope: Scope) -> Principal | None:
    """Return the authenticated caller of a request, or None."""
    principal: Principal | None = scope.get("state", {}).get("known")
    return principal


def method_of(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"


def route_of(scope: Scope) -> str:
    """Return the template of the matched route, or "other"."""
    return str(getattr(scope.get("route"), "path", "other"))


def body_limit(bytes_max: int | None) -> Callable[[Endpoint], Endpoint]:
    """Declare a route's body limit, capped at `Settings.body_bytes_max`. The default limit is BODY_BYTES_MAX.

    Use None for a route that streams its body and enforces its own limit.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.body_bytes_max = bytes_max  # type: ignore[attr-defined]  # functions can have attributes
        return endpoint

    return declare


@dataclass(eq=False)
class WaitingRoom:
    """Bounded set of requests with incomplete bodies. If it is full, the address with most requests loses its oldest
    request.
    """

    limits: GateLimits
    waiting: dict[anyio.CancelScope, str] = field(default_factory=dict)  # address by scope, oldest first

    async def receive(self, read: Awaitable[Message], address: str) -> Message:
        """Wait for `read` and return the body. Raise HTTPException 408 on a timeout, 503 if evicted."""
        held, seconds_max = Counter(self.waiting.values()), self.limits.body_seconds_max
        if held[address] >= self.limits.waiting_per_address_max:
            self._evict(address)
        elif len(self.waiting) >= self.limits.waiting_max:
            self._evict(max(held, key=held.__getitem__))
        with anyio.move_on_after(seconds_max) as waiting:
            self.waiting[waiting] = address
            try:
                return await read
            finally:
                evicted = self.waiting.pop(waiting, None) is None
        if evicted:
            raise HTTPException(
                503, "Too many requests have incomplete bodies, and this request waited longest. Send it again."
            )
        raise HTTPException(408, f"The body took longer than {seconds_max:g} seconds. Send it again, faster.")

    def _evict(self, address: str) -> None:
        oldest = next(waiting for waiting, other in self.waiting.items() if other == address)
        del self.waiting[oldest]
        oldest.cancel()


@dataclass(eq=False)
class Gate(Middleware):
    """Limits concurrent requests and receives their bodies. Liveness checks are not limited.

    A request with an incomplete body does not count: it waits in a `WaitingRoom`, so that slow clients cannot block
    others. A request whose response has started does not count either: the server closes stalled connections.

    Body limits apply to received bytes, not to Content-Length. A route's limit is set by `body_limit`, or is
    BODY_BYTES_MAX; it never exceeds `body_bytes_max`. A request with an invalid Host, path or framing is rejected, and
    its connection is closed.
    """

    limits: GateLimits = GateLimits()
    body_bytes_max: int = LARGE_BODY_BYTES_MAX
    open: Counter[str] = field(default_factory=Counter)  # number of requests by address

    def __post_init__(self) -> None:
        self.room = WaitingRoom(self.limits)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        fault = _fault(scope)
        if fault is not None:
            close = {"Connection": "close"}
            refused = problem_response(request, "invalid_request", fault, status=400, headers=close)
            await refused(scope, receive, send)
            return
        address = client_address(request)
        one = Counter({address: 1})
        full = self.open.total() >= self.limits.requests_max or self.open[address] >= self.limits.per_address_max
        if full and scope["path"] != LIVENESS_PATH:
            detail = "The service is answering its maximum number of requests. Try again soon."
            await problem_response(request, "busy", detail)(scope, receive, send)
            return
        received, counted = False, True

        async def receive_body() -> Message:
            nonlocal received
            bytes_max = getattr(scope.get("endpoint"), "body_bytes_max", BODY_BYTES_MAX)
            if received or bytes_max is None:
                return await receive()
            received = True
            waiting = one if counted else Counter[str]()
            self.open -= waiting  # also removes an address without requests
            try:
                return await self.room.receive(_read(scope, receive, min(bytes_max, self.body_bytes_max)), address)
            finally:
                self.open += waiting

        async def send_answer(message: Message) -> None:
            nonlocal counted
            if counted and message["type"] == "http.response.start":
                counted = False
                self.open -= one
            await send(message)

        self.open += one
        try:
            await self.app(scope, receive_body, send_answer)
        finally:
            if counted:
                self.open -= one


async def _read(scope: Scope, receive: Receive, bytes_max: int) -> Message:
    announced = content_length(Headers(scope=scope))
    if announced is not None and announced > bytes_max:
        raise TooLarge("This request", bytes_max, announced)
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return message
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > bytes_max:
            raise TooLarge("This request", bytes_max)
    return {"type": "http.request", "body": bytes(body), "more_body": False}


def _fault(scope: Scope) -> str | None:
    headers = Headers(scope=scope)
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) > 1 or (hosts and _HOST.fullmatch(hosts[0]) is None):
        return "The Host header must be one name or address, with a port or without."
    if "transfer-encoding" in headers and "content-length" in headers:
        return "A request must not have both a Content-Length and a Transfer-Encoding header."
    if len(headers.getlist("content-length")) > 1:
        return "A request must not have several Content-Length headers."
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        return "A path or query must not contain a NUL character (%00)."
    return None
