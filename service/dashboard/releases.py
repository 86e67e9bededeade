"""Pages of releases, and their files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from obscura.wire import formats
from obscura.wire.schemas import Identifier
from service import jobs, reports, weights
from service.api.deps import Running, Service
from service.api.routes.releases import read_content
from service.dashboard.access import find_viewer
from service.dashboard.forms import Filters
from service.dashboard.pages import REPORT_POLICY, PageRoute, page
from service.db.job_tables import Release
from service.db.session import transaction
from service.errors import InvalidInput, NotFound
from service.identity import projects
from service.storage.interface import key_of
from service.views import releases as views
from service.views.datasets import evaluable_like
from service.views.sweeps import differing

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
RELEASES_A_PAGE = 30
COMPARED_MAX = 4  # side by side
PICKED_MAX = RELEASES_A_PAGE
# Files of a release that are served by name; no others are.
DOWNLOADS = ("report.json", *formats.DOWNLOADS, *formats.MADE)


@router.get("/releases")
def release_list(request: Request, service: Running, filters: Annotated[Filters, Depends()]) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        narrowed = filters.conditions(session, Release, ("q", "account"))
        shown, older_than = views.views(session, *narrowed, limit=RELEASES_A_PAGE, before=filters.before)
        values = filters.shown(session, "/releases")
    return page(request, "releases.html", **values, releases=shown, older_than=older_than)


@router.get("/compare")
def compare(
    request: Request,
    service: Running,
    release: Annotated[list[Identifier], Query(max_length=PICKED_MAX)] = [],  # noqa: B006  only read
) -> HTMLResponse:
    if not 1 <= len(release) <= COMPARED_MAX:
        raise InvalidInput(f"You ticked {len(release)} releases to compare. Go back and tick two to {COMPARED_MAX}.")
    with transaction(service.factory, read_only=True) as session:
        compared = [views.view(session, release_id) for release_id in dict.fromkeys(release)]
    measures = list(dict.fromkeys(name for one in compared for name in one.release.summary.get("accuracy", {})))
    options = differing([one.options for one in compared])
    return page(request, "compare.html", compared=compared, measures=measures, options=options)


@router.get("/releases/{release_id}")
def release(request: Request, service: Running, release_id: str) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        view = views.view(session, release_id)
        samples, evaluations = views.samples(session, release_id), views.evaluations(session, release_id)
        public = evaluable_like(session, view.dataset)
        shares = views.shares(session, jobs.shares(session, release_id))
        project = projects.names(session, [view.release.project_id])[view.release.project_id]
    present = set()
    for name in (*DOWNLOADS, "grid.png", "report.html"):
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
def grid(service: Running, release_id: str) -> FileResponse:
    kept = {"Cache-Control": "private, max-age=3600"}
    return FileResponse(_file(service, release_id, "grid.png"), media_type="image/png", headers=kept)


@router.get("/releases/{release_id}/report")
def report(service: Running, release_id: str) -> Response:
    """Serve the report under its own policy: it is self-contained and runs no script."""
    page = reports.read_report(service.storage, service.factory, release_id, reports.PAGE)
    return Response(page, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})


@router.get("/releases/{release_id}/receipt")
def receipt(service: Running, release_id: str) -> JSONResponse:
    with transaction(service.factory, read_only=True) as session:
        row = jobs.get_own_release(session, release_id)
    attachment = f'attachment; filename="{row.id}-receipt.json"'
    return JSONResponse(row.receipt, headers={"Content-Disposition": attachment})


@router.get("/releases/{release_id}/files/{name}")
def release_file(service: Running, release_id: str, name: str) -> Response:
    if name not in DOWNLOADS:
        raise NotFound("There is no such file.")
    # Files of a generator keep their names, because its program looks for them.
    shown = name if name in formats.MADE or name.startswith("generator.") else f"{release_id}-{name}"
    storage, attachment = service.storage, {"Content-Disposition": f'attachment; filename="{shown}"'}
    if name == reports.DATA:
        data = reports.read_report(storage, service.factory, release_id, name)
        return Response(data, media_type="application/json", headers=attachment)
    if name in formats.MADE:
        made = weights.read_made(storage, service.factory, release_id, name)
        return Response(made, media_type="text/plain", headers=attachment)
    path = _file(service, release_id, name)
    return FileResponse(path, media_type="application/octet-stream", headers=attachment)


router.get("/samples/{sample_id}/content")(read_content)


def _file(service: Service, release_id: str, name: str) -> Path:
    with transaction(service.factory, read_only=True) as session:
        jobs.get_release(session, release_id)
    return service.storage.open(key_of(release_id), name)
