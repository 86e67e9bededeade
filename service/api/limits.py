"""Limits and headers that hold for every request: body size, browser protections."""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON_BODY_BYTES_MAX = 1 << 20
CONTENT_PATH = re.compile(r"/v1/datasets/[a-z0-9_]+/content")  # counts its own bytes, up to the upload limit

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
}


class SecurityHeaders:
    """Adds the headers that a response has not set itself (pages of the dashboard bring their own policy)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class BodyLimit:
    """Refuses bodies above a limit, counting bytes: a Content-Length that lies does not help.

    The upload route is left out here; it streams and counts against its own, larger limit.
    """

    def __init__(self, app: ASGIApp, bytes_max: int = JSON_BODY_BYTES_MAX) -> None:
        self.app = app
        self.bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or CONTENT_PATH.fullmatch(scope["path"]):
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        announced = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
        counted = 0

        async def receive_limited() -> Message:
            nonlocal counted
            message = await receive()
            if message["type"] == "http.request":
                counted += len(message.get("body", b""))
                if max(announced, counted) > self.bytes_max:
                    raise HTTPException(413, f"The body may have at most {self.bytes_max} bytes.")
            return message

        await self.app(scope, receive_limited, send)
