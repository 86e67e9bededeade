"""Pages about jobs and sweeps, and the forms that cancel them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from obscura.wire.words import JobState
from service import jobs
from service.api.events import Snapshot
from service.api.routes.jobs import stream_events
from service.dashboard.access import Form, Reader, Running, find_trainer, find_viewer, still_signed_in
from service.dashboard.charts import sweep_chart
from service.dashboard.filters import JOB_STATE_CHOICES, RECIPE_CHOICES, Filters
from service.dashboard.pages import PageRoute, page
from service.db.job_tables import Job
from service.db.session import transaction
from service.views import jobs as views
from service.views import sweeps

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
JOBS_A_PAGE = 25


@router.get("/jobs")
def job_list(
    request: Request,
    dashboard: Running,
    filters: Annotated[Filters, Depends()],
) -> HTMLResponse:
    """Show the jobs under way and the latest ones, or those that ended before one; narrowed to what was asked for."""
    now = dashboard.clock()
    first = filters.before is None
    with transaction(dashboard.factory, read_only=True) as session:
        narrowed = filters.conditions(session, Job, ("state", "account", "recipe"), states=list(JobState))
        searches = sweeps.newest_rows(session) if first and not narrowed else []
        listed, older_than = views.page(session, now, *narrowed, limit=JOBS_A_PAGE, before=filters.before)
        shown = filters.shown(session, "/jobs")
    return page(
        request,
        "jobs.html",
        **shown,
        states=JOB_STATE_CHOICES,
        recipe_choices=RECIPE_CHOICES,
        jobs=listed,
        sweeps=searches,
        older_than=older_than,
    )


@router.get("/jobs/{job_id}")
@router.get("/jobs/{job_id}/part")
def job(request: Request, dashboard: Running, job_id: str) -> HTMLResponse:
    """Show one job: its plan and price, how far it is, and what it made; or only the part that is kept fresh."""
    with transaction(dashboard.factory, read_only=True) as session:
        view, plan = views.view(session, job_id, dashboard.clock())
    return page(request, _template(request, "job.html"), view=view, plan=plan)


@router.get("/jobs/{job_id}/events")
def follow_job(request: Request, dashboard: Running, viewer: Reader, job_id: str) -> Response:
    """Tell the page's script when there is something new to show of a job, as the API's event stream does."""

    def read() -> Snapshot | None:
        if viewer.principal is not None and not still_signed_in(request, dashboard):
            return None
        with transaction(dashboard.factory, read_only=True) as session:
            job = jobs.get_job(session, job_id)
            return Snapshot(job.progress_version, views.event(session, job))

    return stream_events(dashboard.service, viewer.principal, read, request.headers.get("last-event-id"))


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
        view = sweeps.view(session, sweep_id, dashboard.clock())
    chart = sweep_chart(view.sweep, view.classes)
    return page(request, _template(request, "sweep.html"), view=view, chart=chart)


@router.post("/sweeps/{sweep_id}/cancel", dependencies=[Depends(find_trainer)])
def cancel_sweep(dashboard: Running, sweep_id: str) -> RedirectResponse:
    """End every trial and evaluation that has not ended. What is paid for is published."""
    dashboard.do(jobs.cancel_sweep, sweep_id=sweep_id, now=dashboard.clock())
    return RedirectResponse(f"/sweeps/{sweep_id}", status_code=303)


def _template(request: Request, whole: str) -> str:
    """Name the template of a page, or of the part of it that the script asks for again."""
    return f"_{whole}" if request.scope["path"].endswith("/part") else whole
