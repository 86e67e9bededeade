"""Render pages from templates, with their headers and errors, and serve the documentation site."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache, lru_cache
from inspect import isawaitable
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import jinja2
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from jinja2.filters import do_mark_safe
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.schemas import minutes_between
from obscura.wire.wording import ADJACENCIES, EARLY_ENDS, odds_sentence, show_duration, show_silence, show_time
from obscura.wire.words import Outcome
from privacy.errors import PrivacyError
from service import wording
from service.api.problems import MEDIA_TYPE as PROBLEM
from service.api.problems import SECURITY_HEADERS, STATUSES, TITLES, answer_error, meanings, problem_response
from service.errors import LedgerCorruption, ObscuraError, Unauthorized
from service.jobs import kinds

_HERE = Path(__file__).parent
CONTENT_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Swagger UI has inline images in its styles.
REFERENCE_POLICY = CONTENT_POLICY.replace("img-src 'self'", "img-src 'self' data:")
# With "no-referrer", browsers would send forms with "Origin: null", so the origin could not be checked.
HEADERS = SECURITY_HEADERS | {"Content-Security-Policy": CONTENT_POLICY, "Referrer-Policy": "same-origin"}
SITE = _HERE.parent / "site"
HASHES_FILE = "script-hashes.txt"  # of the inline scripts, written by the build


class SignInNeeded(Unauthorized):
    """The viewer is not signed in; redirect to the sign-in form."""


class AccountInDoubt(LedgerCorruption):
    """The page shows one account, and the account's log contradicts its amounts."""


class PageRoute(APIRoute):
    """A route that adds security headers to its responses and renders errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                response = await handler(request)
            except (ObscuraError, PrivacyError, RequestValidationError) as error:
                if PROBLEM in request.headers.get("accept", ""):  # as the pages' own scripts do
                    raise
                response = _answer(request, error)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return handle


def _answer(request: Request, error: ObscuraError | PrivacyError | RequestValidationError) -> Response:
    if isinstance(error, SignInNeeded):
        request.state.outcome = Outcome.REFUSED
        return RedirectResponse(f"/login?next={quote(request.scope['path'])}", status_code=303)
    if isinstance(error, RequestValidationError):
        problem = problem_response(request, "invalid_input", "A value of the form is missing or out of range.")
        return _error_page(request, problem)
    message = error.message if isinstance(error, AccountInDoubt) else ""
    return _error_page(request, answer_error(request, error), message)


def show_errors_as_pages(app: FastAPI, find_viewer: Callable[[Request], Awaitable[object]]) -> None:
    """Show browsers an error page for unknown addresses and unexpected errors, except below the API's paths.

    `find_viewer` sets `request.state.viewer` for signed-in users, so that the page has their menu.
    """

    def show(otherwise: Callable[[Request, Exception], Any]) -> Callable[[Request, Exception], Awaitable[Response]]:
        async def answer(request: Request, error: Exception) -> Response:
            problem = otherwise(request, error)
            problem = await problem if isawaitable(problem) else problem
            if request.scope["path"].startswith("/v1/") or "text/html" not in request.headers.get("accept", ""):
                return cast(Response, problem)
            with suppress(ObscuraError, SQLAlchemyError):
                await find_viewer(request)
            return _error_page(request, problem, _UNMATCHED.get(problem.status_code, ""))

        return answer

    for kind in (HTTPException, OperationalError, Exception):
        app.add_exception_handler(kind, show(app.exception_handlers[kind]))


_UNMATCHED = {
    404: "There is no page at this address.",
    405: "This page does not accept this kind of request.",
}


def page(request: Request, template: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    values.setdefault("viewer", getattr(request.state, "viewer", None))
    text = _templates().get_template(template).render(path=request.scope["path"], **values)
    return HTMLResponse(text, status_code=status_code)


def _error_page(request: Request, problem: Response, message: str = "") -> HTMLResponse:
    facts, status = json.loads(bytes(problem.body)), problem.status_code
    values = {"title": TITLES.get(facts["code"], "Invalid request"), "message": message or facts["detail"]}
    values |= {"code": facts["code"] if facts["code"] in STATUSES else "", "status": status}
    values["request_id"] = request.scope.get("obscura.request_id")
    response = page(request, "error.html", status_code=status, failed=True, **values)
    kept = {name: value for name, value in problem.headers.items() if name in ("retry-after", "x-request-id")}
    response.headers.update(kept | HEADERS)
    return response


@lru_cache(maxsize=4096)
def time_element(at: datetime) -> str:
    return do_mark_safe(f'<time datetime="{at.isoformat(timespec="minutes")}">{show_time(at)}</time>')


@cache
def _templates() -> jinja2.Environment:
    environment = wording.open_templates(_HERE / "templates", kinds=Path(kinds.__file__).parent)
    static_files = b"".join(path.read_bytes() for path in sorted((_HERE / "static").iterdir()))
    environment.globals |= {
        "adjacencies": ADJACENCIES,
        "asset_version": hashlib.sha256(static_files).hexdigest()[:12],  # in URLs, so that browsers cache them forever
        "early_words": EARLY_ENDS,
        "fragment": lambda kind: environment.select_template([f"kinds/{kind}.html", "_kind.html"]),
        "minutes_between": minutes_between,
        "odds": odds_sentence,
        "silence": show_silence,
        "time_element": time_element,
        "units": UNIT_WORDS,
        "wording": wording,
    }
    environment.filters["shell"] = shlex.quote
    environment.filters["seconds"] = lambda seconds: show_duration(timedelta(seconds=seconds))
    return environment


class Documentation(StaticFiles):
    """The documentation site at `/docs`, built by `make docs`. It is public, and loads nothing from other sites.

    If the site was not built, every path gets a page that says how to build it, with status 404. The page of the
    error reference then lists the codes.
    """

    def __init__(self, site: Path = SITE) -> None:
        super().__init__(directory=site, html=True, check_dir=False)
        self._is_built = (site / "index.html").is_file()
        hashes = site / HASHES_FILE
        scripts = hashes.read_text("ascii").split() if hashes.is_file() else []
        allowed = " ".join(["script-src 'self'", *(f"'{each}'" for each in scripts)])
        policy = CONTENT_POLICY.replace("script-src 'self'", allowed)
        policy = f"{policy}; font-src 'self'; worker-src 'self'"
        # Browsers cache the public pages, and revalidate them by ETag.
        self._headers = HEADERS | {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}

    async def check_config(self) -> None:
        """Accept a missing folder."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if self._is_built:
            return await super().get_response(path, scope)
        codes = meanings() if path == "reference/errors" else {}  # the page is generated, so it has no file
        source = "" if codes else f"docs/{'index' if path == '.' else path}.md"
        response = page(
            Request(scope), "documentation.html", status_code=404, source=source, codes=codes, titles=TITLES
        )
        response.headers.update(HEADERS)
        return response

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(self._headers)
        return response
