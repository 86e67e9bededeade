"""What every request passes first: there is room for it, and its address can be read.

Everything behind it may take the address for sound. A Host or a path that cannot be read would otherwise fail in
whatever reads it first, and PostgreSQL keeps no text with a NUL in it.
"""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.problems import problem_response

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
            detail = "As many requests as may be answered at a time are being answered. Try again soon."
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
