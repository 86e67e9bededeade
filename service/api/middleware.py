"""ASGI middleware of every request: request ids, security headers, limits on concurrency, bodies and time."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
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

BODY_BYTES_MAX = 64 * 1024  # of a route that declares no other limit
LARGE_BODY_BYTES_MAX = 1 << 20
BODY_SECONDS_MAX = 30.0  # from the moment a route asks for the body to its end
REQUESTS_MAX = 500  # processed at a time; half of the connections, so that there is always one to ask for liveness with
REQUESTS_PER_ADDRESS_MAX = 250
WAITING_MAX = 250  # requests whose bodies are incomplete; with REQUESTS_MAX fewer than the connections
WAITING_PER_ADDRESS_MAX = 25
LIVENESS_PATH = "/v1/health/live"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")  # nothing that could break a line of a log
_HOST = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class SecurityHeaders:
    """Adds default security headers (pages set their own policy) and the rate limit headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                counted: dict[str, str] = scope.get("state", {}).get("rate_headers", {})
                for name, value in (SECURITY_HEADERS | counted).items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class RequestIds:
    """Names each request by a valid X-Request-Id or a random id. Answers and log lines carry it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)

        async def send_with_name(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = name
            await send(message)

        scope["obscura.request_id"] = name  # for what answers outside of all middleware
        with bound_contextvars(request_id=name):
            await self.app(scope, receive, send_with_name)


class CloseUnread:
    """Closes the connection after an answer that was sent before the whole body arrived.

    The server would otherwise read to the announced end of the body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        announced = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if not announced:
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
    """Declare the largest body of a route; the default is BODY_BYTES_MAX.

    Args:
        bytes_max: Capped by `Settings.body_bytes_max`; None for a route that streams its body and bounds it itself.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.body_bytes_max = bytes_max  # type: ignore[attr-defined]  # functions take attributes
        return endpoint

    return declare


class WaitingRoom:
    """Bounded set of requests with incomplete bodies. When it is full, the address with most loses its oldest
    request.
    """

    def __init__(self, waiting_max: int = WAITING_MAX, per_address_max: int = WAITING_PER_ADDRESS_MAX) -> None:
        self._waiting_max, self._per_address_max = waiting_max, per_address_max
        self._waiting: dict[anyio.CancelScope, str] = {}  # address, oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    async def receive(self, read: Awaitable[Message], address: str, seconds_max: float) -> Message:
        """Return the body that `read` waits for. Raise HTTPException 408 after `seconds_max`, 503 if evicted."""
        held = Counter(self._waiting.values())
        if held[address] >= self._per_address_max:
            self._evict(address)
        elif len(self._waiting) >= self._waiting_max:
            self._evict(max(held, key=held.__getitem__))
        with anyio.move_on_after(seconds_max) as waiting:
            self._waiting[waiting] = address
            try:
                return await read
            finally:
                evicted = self._waiting.pop(waiting, None) is None
        if evicted:
            raise HTTPException(
                503, "Too many requests with incomplete bodies; this one waited longest. Send it again."
            )
        raise HTTPException(408, f"The body took longer than {seconds_max:g} seconds. Send it again, faster.")

    def _evict(self, address: str) -> None:
        oldest = next(waiting for waiting, other in self._waiting.items() if other == address)
        del self._waiting[oldest]
        oldest.cancel()


class Gate:
    """Bounds the requests that are processed at a time, liveness excepted, and receives their bodies.

    A request whose body is incomplete does not count. It waits in a `WaitingRoom`, so slow clients cannot keep others
    out. A request whose answer has begun does not count either: connections that nobody reads are closed elsewhere.

    Bodies are limited by the bytes that arrive, whatever Content-Length says. A request with an invalid Host, path or
    framing is refused, and its connection closed.

    Args:
        app: The next application.
        requests_max: Processed at a time.
        per_address_max: Processed at a time for one address.
        body_bytes_max: Of any body. A route without `body_limit` takes at most BODY_BYTES_MAX.
        room: For requests whose bodies are incomplete.
    """

    def __init__(
        self,
        app: ASGIApp,
        requests_max: int = REQUESTS_MAX,
        per_address_max: int = REQUESTS_PER_ADDRESS_MAX,
        body_bytes_max: int = LARGE_BODY_BYTES_MAX,
        room: WaitingRoom | None = None,
    ) -> None:
        self.app = app
        self.requests_max, self.per_address_max = requests_max, per_address_max
        self.body_bytes_max = body_bytes_max
        self._room = room or WaitingRoom()
        self._open = Counter[str]()  # by address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        fault = _fault(scope)
        if fault is not None:
            close = {"Connection": "close"}
            refused = problem_response(request, "invalid_request", fault, status=400, headers=close)
            await refused(scope, receive, send)
            return
        address = client_address(request)
        full = self._open.total() >= self.requests_max or self._open[address] >= self.per_address_max
        if full and scope["path"] != LIVENESS_PATH:
            detail = "The service answers as many requests as it can at a time. Try again soon."
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
                return await self._room.receive(read, address, BODY_SECONDS_MAX)
            self._count_down(address)
            try:
                return await self._room.receive(read, address, BODY_SECONDS_MAX)
            finally:
                self._open[address] += 1

        async def send_answer(message: Message) -> None:
            nonlocal counted
            if counted and message["type"] == "http.response.start":
                counted = False
                self._count_down(address)
            await send(message)

        self._open[address] += 1
        try:
            await self.app(scope, receive_body, send_answer)
        finally:
            if counted:
                self._count_down(address)

    def _count_down(self, address: str) -> None:
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


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
