"""Pages of jobs and sweeps."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse

from service import jobs
from service.api.deps import Running, signed_in_by_cookie
from service.api.events import Snapshot
from service.api.routes.jobs import stream_events
from service.dashboard.access import Reader, find_viewer
from service.dashboard.charts import sweep_chart
from service.dashboard.forms import RECIPE_CHOICES, STATES, Filtered
from service.dashboard.pages import PageRoute, page
from service.db.job_tables import Job
from service.db.session import transaction
from service.errors import Unauthorized
from service.views import jobs as views
from service.views import sweeps

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
JOBS_A_PAGE = 25


@router.get("/jobs")
def job_list(request: Request, service: Running, filters: Filtered) -> HTMLResponse:
    now = service.clock()
    first = filters.before is None
    with transaction(service.factory, read_only=True) as session:
        narrowed = filters.conditions(session, Job, ("state", "account", "recipe"))
        sweep_rows = sweeps.newest_rows(session) if first and not narrowed else []
        listed, older_than = views.page(session, now, *narrowed, limit=JOBS_A_PAGE, before=filters.before)
        values = filters.template_values(session, "/jobs")
    values |= {"states": STATES[Job], "recipe_choices": RECIPE_CHOICES}
    return page(request, "jobs.html", **values, jobs=listed, sweeps=sweep_rows, older_than=older_than)


@router.get("/jobs/{job_id}")
@router.get("/jobs/{job_id}/part")
def job(request: Request, service: Running, job_id: str) -> HTMLResponse:
    """Show a job, or only the part that the script refreshes."""
    with transaction(service.factory, read_only=True) as session:
        view = views.view(session, job_id, service.clock())
    template = "_job.html" if request.scope["path"].endswith("/part") else "job.html"
    return page(request, template, view=view, plan=view.plan)


@router.get("/jobs/{job_id}/events")
def follow_job(request: Request, service: Running, viewer: Reader, job_id: str) -> Response:
    """Stream events to the page's script, like the API."""

    def read() -> Snapshot | None:
        try:
            if viewer.principal is not None and signed_in_by_cookie(service, request) is None:
                return None
        except Unauthorized:  # the provider no longer confirms the person, or does not respond
            return None
        with transaction(service.factory, read_only=True) as session:
            job = jobs.get_job(session, job_id)
            return Snapshot(job.progress_version, views.event(session, job))

    return stream_events(service, viewer.principal, read, request.headers.get("last-event-id"))


@router.get("/sweeps/{sweep_id}")
@router.get("/sweeps/{sweep_id}/part")
def sweep(request: Request, service: Running, sweep_id: str) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        view = sweeps.view(session, sweep_id, service.clock())
    template = "_sweep.html" if request.scope["path"].endswith("/part") else "sweep.html"
    return page(request, template, view=view, chart=sweep_chart(view.sweep, view.classes))
