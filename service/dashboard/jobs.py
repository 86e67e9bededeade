"""Pages about jobs and sweeps, and the forms that cancel them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from service import jobs
from service.dashboard import job_queries
from service.dashboard.access import Form, Running, find_trainer, find_viewer
from service.dashboard.pages import PageRoute, page
from service.db.session import transaction

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])


@router.get("/jobs")
def job_list(
    request: Request, dashboard: Running, before: Annotated[str | None, Query(max_length=64)] = None
) -> HTMLResponse:
    """Show the jobs under way and the latest ones, or those that ended before one."""
    now = dashboard.clock()
    with transaction(dashboard.factory, read_only=True) as session:
        active = job_queries.list_active_jobs(session, now) if before is None else []
        sweeps = job_queries.list_sweeps(session) if before is None else []
        ended, older_than = job_queries.list_ended_jobs(session, now, before=before)
    return page(
        request,
        "jobs.html",
        jobs=[*active, *ended],
        sweeps=sweeps,
        before=before,
        older_than=older_than,
    )


@router.get("/jobs/{job_id}")
@router.get("/jobs/{job_id}/part")
def job(request: Request, dashboard: Running, job_id: str) -> HTMLResponse:
    """Show one job: its plan and price, how far it is, and what it made; or only the part that is kept fresh."""
    with transaction(dashboard.factory, read_only=True) as session:
        view, plan = job_queries.read_job(session, job_id, dashboard.clock())
    return page(request, _template(request, "job.html"), view=view, plan=plan)


@router.post("/jobs/{job_id}/cancel", dependencies=[Depends(find_trainer)])
def cancel_job(dashboard: Running, form: Form, job_id: str) -> RedirectResponse:
    """Ask a job to end. What it has charged stays spent; `discard` says that nothing of it is published."""
    dashboard.do(jobs.request_cancel, job_id=job_id, now=dashboard.clock(), discard=form.get("discard") == "yes")
    return RedirectResponse(f"/jobs/{job_id}", status_code=303)


@router.get("/sweeps/{sweep_id}")
@router.get("/sweeps/{sweep_id}/part")
def sweep(request: Request, dashboard: Running, sweep_id: str) -> HTMLResponse:
    """Show one sweep: its trials, what they cost together, which is best on public data; or only the trials again."""
    with transaction(dashboard.factory, read_only=True) as session:
        view = job_queries.read_sweep(session, sweep_id, dashboard.clock())
    return page(request, _template(request, "sweep.html"), view=view)


@router.post("/sweeps/{sweep_id}/cancel", dependencies=[Depends(find_trainer)])
def cancel_sweep(dashboard: Running, sweep_id: str) -> RedirectResponse:
    """End every trial and evaluation that has not ended. What is paid for is published."""
    dashboard.do(jobs.cancel_sweep, sweep_id=sweep_id, now=dashboard.clock())
    return RedirectResponse(f"/sweeps/{sweep_id}", status_code=303)


def _template(request: Request, whole: str) -> str:
    """Name the template of a page, or of the part of it that the script asks for again."""
    return f"_{whole}" if request.scope["path"].endswith("/part") else whole
