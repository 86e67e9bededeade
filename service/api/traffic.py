"""Middleware that counts answers for the metrics and, if enabled, writes the access log.

Routes are named by template (`/v1/jobs/{job_id}`), callers by key id. Paths and queries, which hold identifiers and
names, are never recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.logs import get_logger

Count = Callable[[str, str, int, float], None]
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NOT_ANSWERED = 499  # the client went away before an answer began


class Traffic:
    """Records each answer once it has ended.

    Args:
        count: Takes method, route, status, and seconds until the answer started.
        logged: Whether to write the access log.
    """

    def __init__(self, app: ASGIApp, *, count: Count, logged: bool) -> None:
        self.app, self._count, self._logged = app, count, logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
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
            self._note(scope, status, seconds)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = method_of(scope), route_of(scope)
        self._count(method, route, status, seconds)
        if self._logged:
            known = scope.get("state", {}).get("known")
            key_id = known and known.id
            get_logger(__name__).info("request", method=method, route=route, status=status, key_id=key_id)


def method_of(scope: Scope) -> str:
    """Return the HTTP method, or "other"."""
    return scope["method"] if scope["method"] in _METHODS else "other"


def route_of(scope: Scope) -> str:
    """Return the template of the matched route, or "other"."""
    route: Any = scope.get("route")
    return str(getattr(route, "path", "other"))
