"""Pages of releases, their files, and the forms that generate, evaluate and share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse

from obscura.wire import formats
from obscura.wire.class_shares import AS_STATED, read_class_shares
from obscura.wire.release_schemas import EvaluationRequest, SampleRequest, ShareRequest
from obscura.wire.schemas import Identifier
from service import jobs, reports, weights
from service.api.deps import Running, Service
from service.api.routes.orders import order
from service.api.routes.releases import read_content
from service.dashboard.access import Admin, Form, Trainer, find_viewer
from service.dashboard.forms import Filters, read_fields
from service.dashboard.pages import REPORT_POLICY, PageRoute, page
from service.db.job_tables import Release
from service.db.session import transaction
from service.errors import InvalidInput, NotFound
from service.identity import projects
from service.identity.access import Principal
from service.jobs.kinds import KINDS
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
def release_list(
    request: Request,
    service: Running,
    filters: Annotated[Filters, Depends()],
) -> HTMLResponse:
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


@router.post("/releases/{release_id}/samples")
def draw(service: Running, trainer: Trainer, form: Form, release_id: str) -> RedirectResponse:
    stated = form.get("proportions", "").strip()
    proportions: Mapping[str, float] | str | None = stated or None
    if stated and stated != AS_STATED:
        with transaction(service.factory, read_only=True) as session:
            classes = jobs.trained_on(session, jobs.get_release(session, release_id)).classes
        try:
            proportions = read_class_shares(stated, classes, every=False)
        except ValueError as error:
            raise InvalidInput(f"These proportions cannot be read: {error}.") from None
    fields = read_fields(SampleRequest, form, proportions=proportions, classes=None) | {"release_id": release_id}
    return _ordered(service, trainer, form, "sample", fields)


@router.post("/releases/{release_id}/evaluations")
def evaluate(service: Running, trainer: Trainer, form: Form, release_id: str) -> RedirectResponse:
    fields = read_fields(EvaluationRequest, form, dataset_id=form.get("dataset")) | {"release_id": release_id}
    return _ordered(service, trainer, form, "evaluate", fields)


@router.post("/releases/{release_id}/shares")
def ask_share(service: Running, admin: Admin, form: Form, release_id: str) -> RedirectResponse:
    other = None if form.get("everybody") else form.get("project", "").strip()
    if other == "":
        raise InvalidInput("Name the project by its id, or choose all projects.")
    share = read_fields(ShareRequest, form, project_id=other)
    service.do(jobs.ask_share, release_id=release_id, **share, asked_with=admin.id, now=service.clock())
    return RedirectResponse("/decisions", status_code=303)


@router.post("/releases/{release_id}/shares/{share_id}/end")
def end_share(service: Running, _admin: Admin, release_id: str, share_id: str) -> RedirectResponse:
    service.do(jobs.end_share, release_id=release_id, share_id=share_id, now=service.clock())
    return RedirectResponse(f"/releases/{release_id}", status_code=303)


router.get("/samples/{sample_id}/content")(read_content)


def _ordered(
    service: Service, trainer: Principal, form: Mapping[str, str], kind: str, fields: Mapping[str, Any]
) -> RedirectResponse:
    job_id = order(service, trainer.id, form.get("once") or None, KINDS[kind], fields, lambda _, job: job.id)
    return RedirectResponse(f"/jobs/{job_id}", status_code=303)


def _file(service: Service, release_id: str, name: str) -> Path:
    with transaction(service.factory, read_only=True) as session:
        jobs.get_release(session, release_id)
    return service.storage.open(key_of(release_id), name)
