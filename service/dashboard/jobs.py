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
def job(request: Request, dashboard: Running, job_id: str) -> HTMLResponse:
    """Show one job: its plan and price, how far it is, and what it made."""
    return _job_page(request, dashboard, job_id, "job.html")


@router.get("/jobs/{job_id}/part")
def job_part(request: Request, dashboard: Running, job_id: str) -> HTMLResponse:
    """Render the state of a job again, for the script that keeps it fresh."""
    return _job_page(request, dashboard, job_id, "_job.html")


@router.post("/jobs/{job_id}/cancel", dependencies=[Depends(find_trainer)])
def cancel_job(dashboard: Running, form: Form, job_id: str) -> RedirectResponse:
    """Ask a job to end. What it has charged stays spent; `discard` says that nothing of it is published."""
    dashboard.do(jobs.request_cancel, job_id=job_id, now=dashboard.clock(), discard=form.get("discard") == "yes")
    return RedirectResponse(f"/jobs/{job_id}", status_code=303)


def _job_page(request: Request, dashboard: Running, job_id: str, template: str) -> HTMLResponse:
    with transaction(dashboard.factory, read_only=True) as session:
        view, plan = job_queries.read_job(session, job_id, dashboard.clock())
    return page(
        request,
        template,
        view=view,
        plan=plan,
    )


@router.get("/sweeps/{sweep_id}")
def sweep(request: Request, dashboard: Running, sweep_id: str) -> HTMLResponse:
    """Show one sweep: its trials, what they cost together, and which is best on public data."""
    return _sweep_page(request, dashboard, sweep_id, "sweep.html")


@router.get("/sweeps/{sweep_id}/part")
def sweep_part(request: Request, dashboard: Running, sweep_id: str) -> HTMLResponse:
    """Render the trials again, for the script that keeps them fresh."""
    return _sweep_page(request, dashboard, sweep_id, "_sweep.html")


@router.post("/sweeps/{sweep_id}/cancel", dependencies=[Depends(find_trainer)])
def cancel_sweep(dashboard: Running, sweep_id: str) -> RedirectResponse:
    """End every trial and evaluation that has not ended. What is paid for is published."""
    dashboard.do(jobs.cancel_sweep, sweep_id=sweep_id, now=dashboard.clock())
    return RedirectResponse(f"/sweeps/{sweep_id}", status_code=303)


def _sweep_page(request: Request, dashboard: Running, sweep_id: str, template: str) -> HTMLResponse:
    with transaction(dashboard.factory, read_only=True) as session:
        view = job_queries.read_sweep(session, sweep_id, dashboard.clock())
    return page(request, template, view=view)
