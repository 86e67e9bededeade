"""The server-rendered dashboard, readable without JavaScript.

`mount(app)` adds it to an application. `pages.py` renders, and every other module has the pages of some resources.
Forms call the API, except for sign-in, a person's own keys, and uploads. Pages never show private data.
"""

from __future__ import annotations

from fastapi import FastAPI

from service.dashboard import accounts, admin, datasets, jobs, releases, sign_in
from service.dashboard.pages import Documentation, answer_unknown_with_pages

PARTS = tuple(part.router for part in (accounts, jobs, datasets, releases, admin, sign_in))


def mount(app: FastAPI) -> None:
    """Add the dashboard at `/` to an application whose state has the `service`."""
    app.state.links = sign_in.SignInLinks()
    for part in PARTS:
        app.include_router(part, include_in_schema=False)
    app.mount("/docs", Documentation())
    answer_unknown_with_pages(app)
