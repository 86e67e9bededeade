"""Requests from browsers: the session cookie, and the check that a request comes from a page of this service."""

from __future__ import annotations

import hmac

from fastapi import Request

from service.errors import Forbidden

COOKIE = "obscura_session"  # over plain HTTP; see `cookie_name`
FORM_TOKEN = "X-Form-Token"  # request header of our scripts, with the session's form token


def require_same_origin(request: Request) -> None:
    """Raise Forbidden if another site sent the request, by Origin or Sec-Fetch-Site.

    Our origin is that of `Settings.public_url`; if it is empty, the requested host with any scheme.
    """
    origin = request.headers.get("origin")  # a scheme, "://", a host; or "null"
    ours = request.app.state.settings.public_url
    foreign = origin is not None and (
        origin != ours if ours else origin.partition("://")[2] != request.headers.get("host")
    )
    if foreign or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("This request was sent from another site.")


def require_token(token: str, expected: str) -> None:
    """Raise Forbidden unless a request has its session's form token."""
    if not hmac.compare_digest(token.encode(), expected.encode()):
        raise Forbidden("This page is from an earlier session. Reload it and try again.")


def is_secure(request: Request) -> bool:
    """Return whether browsers use HTTPS. If so, the session cookie is marked secure."""
    public_url: str = request.app.state.settings.public_url
    return public_url.startswith("https:") or request.url.scheme == "https"


def cookie_name(request: Request) -> str:
    """Return the name of the session cookie. Browsers accept `__Host-` only from this host, over HTTPS."""
    return f"__Host-{COOKIE}" if is_secure(request) else COOKIE
