"""What every request passes first: limits on address, size and time, room for it, browser protections."""

from __future__ import annotations

import re
import secrets

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from service.api.problems import SECURITY_HEADERS, problem_response

JSON_BODY_BYTES_MAX = 1 << 20
BODY_SECONDS_MAX = 30.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")  # nothing that could break a line of a log
CONTENT_PATH = re.compile(r"/v1/datasets/[a-z0-9_]+/content")  # counts its own bytes, up to the upload limit


class SecurityHeaders:
    """Adds the headers that a response has not set itself (pages of the dashboard bring their own policy).

    And those that say how many requests are left, where that was counted (`service.api.rates`).
    """

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
    """Names each request: by what the client calls it in X-Request-Id, or else anew. Answers and log lines carry it."""

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
    """Ends the connection after an answer that was given before the whole body had come.

    A server would otherwise read on, up to the announced end, only to find the next request behind it.
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


class BodyLimit:
    """Refuses bodies above a limit, counting bytes: a Content-Length that lies does not help. Nor does dawdling.

    The upload route is left out here; it streams and counts against its own, larger limit.
    """

    def __init__(
        self, app: ASGIApp, bytes_max: int = JSON_BODY_BYTES_MAX, seconds_max: float = BODY_SECONDS_MAX
    ) -> None:
        self.app = app
        self.bytes_max = bytes_max
        self.seconds_max = seconds_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or CONTENT_PATH.fullmatch(scope["path"]):
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        announced = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
        counted = 0
        deadline = anyio.current_time() + self.seconds_max
        complete = False

        async def receive_limited() -> Message:
            nonlocal counted, complete
            if complete:
                return await receive()  # whoever streams an answer waits here for the client to hang up
            with anyio.move_on_after(deadline - anyio.current_time()) as waiting:
                message = await receive()
            if waiting.cancelled_caught:
                raise HTTPException(408, f"The body has to arrive within {self.seconds_max:g} seconds.")
            if message["type"] == "http.request":
                complete = not message.get("more_body", False)
                counted += len(message.get("body", b""))
                if max(announced, counted) > self.bytes_max:
                    raise HTTPException(413, f"The body may have at most {self.bytes_max} bytes.")
            return message

        await self.app(scope, receive_limited, send)


REQUESTS_MAX = 500  # at a time; half of the connections, so that there is always one to ask for liveness with
LIVENESS_PATH = "/v1/health/live"
_HOST = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


class Gate:
    """Refuses requests above a number at a time, but for liveness, and those whose address cannot be read."""

    def __init__(self, app: ASGIApp, requests_max: int = REQUESTS_MAX) -> None:
        self.app = app
        self.requests_max = requests_max
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        fault = _fault(scope)
        if fault is not None:
            await problem_response(request, "invalid_request", fault, status=400)(scope, receive, send)
            return
        if self._open >= self.requests_max and scope["path"] != LIVENESS_PATH:
            detail = "The service answers as many requests as it can at a time. Try again soon."
            await problem_response(request, "busy", detail)(scope, receive, send)
            return
        self._open += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._open -= 1


def _fault(scope: Scope) -> str | None:
    """Say what is wrong with a request's address, if anything."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) > 1 or (hosts and _HOST.fullmatch(hosts[0]) is None):
        return "The Host header must be one name or address, with a port or without."
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        return "A path or query may hold no NUL character (%00)."
    return None
