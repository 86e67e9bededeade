"""The server-rendered dashboard: budgets, jobs and releases, readable without JavaScript.

`mount(app)` adds it to an application whose state holds `settings` and `factory`.
"""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

from service.dashboard import accounts, admin, data, jobs, sign_in
from service.dashboard.access import Dashboard, Doorbell

__all__ = ["PARTS", "mount", "router"]

PARTS = tuple(module.router for module in (accounts, jobs, data, admin, sign_in))
router = APIRouter(include_in_schema=False)
for part in PARTS:
    router.include_router(part)


def mount(app: FastAPI) -> None:
    """Add the dashboard at `/`.

    Args:
        app: Its state holds `settings` and `factory`. When it holds `service`, the clock and the doorbell are that
            service's.
    """
    service: Doorbell | None = getattr(app.state, "service", None)
    app.state.dashboard = Dashboard.of(app.state.settings, app.state.factory, service)
    app.include_router(router)
