"""Pages about sweeps, and the form that cancels one."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from service import jobs
from service.dashboard import job_queries, wording
from service.dashboard.access import Running, find_trainer, find_viewer
from service.dashboard.pages import PageRoute, page
from service.db.session import transaction

router = APIRouter(prefix="/sweeps", route_class=PageRoute, dependencies=[Depends(find_viewer)])


@router.get("/{sweep_id}")
def sweep(request: Request, dashboard: Running, sweep_id: str) -> HTMLResponse:
    """Show one sweep: its trials, what they cost together, and which is best on public data."""
    return _sweep_page(request, dashboard, sweep_id, "sweep.html")


@router.get("/{sweep_id}/part")
def sweep_part(request: Request, dashboard: Running, sweep_id: str) -> HTMLResponse:
    """Render the trials again, for the script that keeps them fresh."""
    return _sweep_page(request, dashboard, sweep_id, "_sweep.html")


@router.post("/{sweep_id}/cancel", dependencies=[Depends(find_trainer)])
def cancel(dashboard: Running, sweep_id: str) -> RedirectResponse:
    """End every trial and evaluation that has not ended. What is paid for is published."""
    with transaction(dashboard.factory) as session:
        jobs.cancel_sweep(session, sweep_id=sweep_id, now=dashboard.clock())
    return RedirectResponse(f"/sweeps/{sweep_id}", status_code=303)


def _sweep_page(request: Request, dashboard: Running, sweep_id: str, template: str) -> HTMLResponse:
    with transaction(dashboard.factory, read_only=True) as session:
        view = job_queries.read_sweep(session, sweep_id, dashboard.clock())
    return page(request, template, view=view, state_words=wording.JOB_STATES)
