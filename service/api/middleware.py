"""ASGI middleware of every request: headers, traffic counts, limits on concurrency, bodies and time."""

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

from service.api.problems import SECURITY_HEADERS, problem_response
from service.api.rates import client_address
from service.api.uploading import content_length
from service.errors import TooLarge
from service.identity.access import Principal
from service.logs import get_logger

BODY_BYTES_MAX = 64 * 1024  # of a route that declares no other limit
LARGE_BODY_BYTES_MAX = 1 << 20
LIVENESS_PATH = "/v1/health/live"
NOT_ANSWERED = 499  # the client disconnected before an answer started
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")  # safe in log lines
_HOST = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True)
class GateLimits:
    """Bounds of the requests of one process."""

    # Processed at a time. Half of the connections stay free, so that a liveness check always finds one.
    requests_max: int = 500
    per_address_max: int = 250
    # With incomplete bodies. Together with `requests_max` fewer than the connections.
    waiting_max: int = 250
    waiting_per_address_max: int = 25
    body_seconds_max: float = 30.0  # from the moment a route asks for the body to its end


@dataclass(eq=False)
class Middleware(ABC):
    """Base of middleware that handles HTTP requests and passes everything else on."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self.handle if scope["type"] == "http" else self.app
        await handle(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an HTTP request."""


class CommonHeaders(Middleware):
    """Adds request id, rate limit and default security headers; pages set their own policy.

    A request is named by a valid X-Request-Id or a random id, which log lines carry too.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = name
                counted: dict[str, str] = scope.get("state", {}).get("rate_headers", {})
                for header, value in (SECURITY_HEADERS | counted).items():
                    headers.setdefault(header, value)
            await send(message)

        scope["obscura.request_id"] = name  # for answers made outside all middleware
        with bound_contextvars(request_id=name):
            await self.app(scope, receive, send_with_headers)


@dataclass(eq=False, kw_only=True)
class Traffic(Middleware):
    """Counts each answer for the metrics and, if `logged`, writes the access log.

    Routes are named by template (`/v1/jobs/{job_id}`), callers by key id. Paths and queries, which hold identifiers and
    names, are never recorded. `count` takes method, route, status, and seconds until the answer started.
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
            self.count(method, route, status, seconds)
            if self.logged:
                caller = caller_of(scope)
                key_id = caller and caller.id
                get_logger(__name__).info("request", method=method, route=route, status=status, key_id=key_id)


def caller_of(scope: Scope) -> Principal | None:
    """Return the caller whose valid key came with a request, or None."""
    principal: Principal | None = scope.get("state", {}).get("known")
    return principal


def method_of(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"


def route_of(scope: Scope) -> str:
    """Return the template of the matched route, or "other"."""
    return str(getattr(scope.get("route"), "path", "other"))


class CloseUnread(Middleware):
    """Closes the connection after an answer that was sent before the whole body arrived.

    The server would otherwise read to the announced end of the body.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            await self.app(scope, receive, send)
            return
        ended = False

        async def receive_noting() -> Message:
            nonlocal ended
            message = await receive()
            ended = ended or message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and not ended:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self.app(scope, receive_noting, send_and_close)


def body_limit(bytes_max: int | None) -> Callable[[Endpoint], Endpoint]:
    """Declare the largest body of a route, capped by `Settings.body_bytes_max`; the default is BODY_BYTES_MAX.

    None is for a route that streams its body and bounds it itself.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.body_bytes_max = bytes_max  # type: ignore[attr-defined]  # functions take attributes
        return endpoint

    return declare


@dataclass(eq=False)
class WaitingRoom:
    """Bounded set of requests with incomplete bodies. When it is full, the address with most loses its oldest
    request.
    """

    limits: GateLimits
    waiting: dict[anyio.CancelScope, str] = field(default_factory=dict)  # address, oldest first

    async def receive(self, read: Awaitable[Message], address: str) -> Message:
        """Return the body that `read` waits for. Raise HTTPException 408 after a while, 503 if evicted."""
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
                503, "Too many requests with incomplete bodies; this one waited longest. Send it again."
            )
        raise HTTPException(408, f"The body took longer than {seconds_max:g} seconds. Send it again, faster.")

    def _evict(self, address: str) -> None:
        oldest = next(waiting for waiting, other in self.waiting.items() if other == address)
        del self.waiting[oldest]
        oldest.cancel()


@dataclass(eq=False)
class Gate(Middleware):
    """Bounds concurrent requests, except liveness checks, and receives their bodies.

    A request with an incomplete body does not count: it waits in a `WaitingRoom`, so that slow clients cannot keep
    others out. A request whose answer has started does not count either: the server closes connections that stall.

    Bodies are limited by the bytes that arrive, whatever Content-Length says: to `body_bytes_max`, and to
    BODY_BYTES_MAX for a route without `body_limit`. A request with an invalid Host, path or framing is refused, and its
    connection closed.
    """

    limits: GateLimits = GateLimits()
    body_bytes_max: int = LARGE_BODY_BYTES_MAX
    open: Counter[str] = field(default_factory=Counter)  # requests by address

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
            read = _read(scope, receive, min(bytes_max, self.body_bytes_max))
            if not counted:
                return await self.room.receive(read, address)
            self.open -= one  # which drops an address without requests
            try:
                return await self.room.receive(read, address)
            finally:
                self.open += one

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
        return "A request has either a Content-Length or a Transfer-Encoding header, not both."
    if len(headers.getlist("content-length")) > 1:
        return "A request has at most one Content-Length header."
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        return "A path or query may hold no NUL character (%00)."
    return None
