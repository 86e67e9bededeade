"""The server-rendered dashboard, readable without JavaScript.

`mount(app)` adds it to an application. `pages.py` renders, and every other module has the pages of some resources.
Forms call the API, except for sign-in, a person's own keys, and uploads. Pages never show private data.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool

from service.api.deps import running_service, signed_in_by_cookie
from service.dashboard import access, accounts, admin, datasets, jobs, releases, sign_in
from service.dashboard.pages import Documentation, show_errors_as_pages

PARTS = tuple(part.router for part in (accounts, jobs, datasets, releases, admin, sign_in))


def mount(app: FastAPI) -> None:
    """Add the dashboard at `/` to an application whose state has the `service`."""
    app.state.links = sign_in.SignInLinks()
    for part in PARTS:
        app.include_router(part, include_in_schema=False)
    app.mount("/docs", Documentation())
    show_errors_as_pages(app, _find_viewer)


async def _find_viewer(request: Request) -> None:
    service = await running_service(request)
    await run_in_threadpool(
        lambda: access.find_viewer(request, service, signed_in_by_cookie(service, request)),
    )
