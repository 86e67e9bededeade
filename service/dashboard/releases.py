"""Pages of releases, and their files."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from obscura.wire import formats
from obscura.wire.schemas import Identifier
from service import jobs, reports
from service.api.deps import Running
from service.api.routes import releases as api
from service.dashboard.access import find_viewer
from service.dashboard.forms import Filtered
from service.dashboard.pages import PageRoute, page
from service.db.job_tables import Release
from service.db.session import transaction
from service.errors import InvalidInput, NotFound
from service.identity import projects
from service.storage.interface import key_of
from service.views import releases as views
from service.views import sweeps

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
RELEASES_A_PAGE = 30
COMPARED_MAX = 4  # side by side
# Files of a release that are listed by name.
DOWNLOADS = ("report.json", *formats.DOWNLOADS, *formats.MADE)


@router.get("/releases")
def release_list(request: Request, service: Running, filters: Filtered) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        narrowed = filters.conditions(session, Release, ("q", "account"))
        shown, older_than = views.views(session, *narrowed, limit=RELEASES_A_PAGE, before=filters.before)
        values = filters.template_values(session, "/releases")
    return page(request, "releases.html", **values, releases=shown, older_than=older_than)


@router.get("/compare")
def compare(
    request: Request,
    service: Running,
    release: Annotated[list[Identifier], Query(max_length=RELEASES_A_PAGE)] = [],  # noqa: B006  only read
) -> HTMLResponse:
    if not 1 <= len(release) <= COMPARED_MAX:
        raise InvalidInput(f"You ticked {len(release)} releases to compare. Go back and tick two to {COMPARED_MAX}.")
    with transaction(service.factory, read_only=True) as session:
        compared = [views.view(session, release_id) for release_id in dict.fromkeys(release)]
    measures = list(dict.fromkeys(name for one in compared for name in one.release.summary.get("accuracy", {})))
    options = sweeps.differing([one.options for one in compared])
    return page(request, "compare.html", compared=compared, measures=measures, options=options)


@router.get("/releases/{release_id}")
def release(request: Request, service: Running, release_id: str) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        view = views.view(session, release_id)
        samples, evaluations = views.samples(session, release_id), views.evaluations(session, release_id)
        public = views.evaluable_like(session, view.dataset)
        shares = views.shares(session, jobs.shares(session, release_id))
        project = projects.names(session, [view.release.project_id])[view.release.project_id]
    present = set()
    for name in (*DOWNLOADS, "grid.png"):
        with suppress(NotFound):
            service.storage.open(key_of(release_id), name)
            present.add(name)
    if "generator.json" in present:
        present |= set(formats.MADE)
    return page(
        request,
        "release.html",
        view=view,
        samples=samples,
        evaluations=evaluations,
        public=public,
        shares=shares,
        project=project,
        present=present,
        downloads=[name for name in DOWNLOADS if name in present],
        packings=formats.PACKINGS,
        samples_max=service.settings.samples_max,
        url=str(request.base_url).rstrip("/"),
    )


@router.get("/releases/{release_id}/grid.png")
def grid(service: Running, request: Request, release_id: str) -> Response:
    """Serve the grid of a release, which never changes, so that browsers can cache it."""
    response = api.read_grid(service, request, release_id)
    response.headers["Cache-Control"] = "private, max-age=3600"
    return response


@router.get("/releases/{release_id}/report")
def report(service: Running, request: Request, release_id: str) -> Response:
    """Serve the report in a sandbox, because its origin has access to the session cookie."""
    response = api.read_report_page(service, request, release_id)
    response.headers["Content-Security-Policy"] = f"{api.REPORT_POLICY}; sandbox"
    return response


@router.get("/releases/{release_id}/receipt")
def receipt(service: Running, release_id: str) -> Response:
    return _attached(api.read_receipt(service, release_id), f"{release_id}-receipt.json")


@router.get("/releases/{release_id}/files/{name}")
def release_file(service: Running, request: Request, release_id: str, name: str) -> Response:
    is_data = name == reports.DATA
    file = api.read_report_data(service, release_id) if is_data else api.read_file(service, request, release_id, name)
    # Do not rename files of a generator: its program opens them by name.
    return _attached(file, name if name in formats.MADE or name.startswith("generator.") else f"{release_id}-{name}")


router.get("/samples/{sample_id}/content")(api.read_content)


def _attached(response: Response, name: str) -> Response:
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
