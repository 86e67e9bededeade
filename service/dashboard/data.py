"""Pages about datasets and releases, and the forms that delete images, draw new ones, and evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from sqlalchemy import select

from obscura.wire import formats
from obscura.wire.words import DatasetState
from service import jobs, reports, weights
from service.api.ordering import order
from service.auth import Principal
from service.dashboard import job_queries, queries, release_queries
from service.dashboard.access import Dashboard, Form, Running, Trainer, find_uploader, find_viewer
from service.dashboard.filters import DATASET_STATES, Filters, account_choices
from service.dashboard.pages import REPORT_POLICY, PageRoute, page
from service.datasets import deletion
from service.db.dataset_tables import Dataset
from service.db.job_tables import Release
from service.db.ledger_tables import AccountRow
from service.db.session import find, transaction
from service.errors import InvalidInput, NotFound
from service.ingest.formats import FORMATS
from service.jobs.kinds import KINDS
from service.storage.interface import key_of

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])


@router.get("/datasets")
def dataset_list(
    request: Request,
    dashboard: Running,
    filters: Annotated[Filters, Depends()],
    before: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """Show the datasets, newest first, narrowed to what was asked for."""
    limit = release_queries.RELEASES_A_PAGE
    narrowed = filters.conditions(Dataset, ("q", "state", "account"), states=list(DatasetState))
    with transaction(dashboard.factory, read_only=True) as session:
        query = select(Dataset).where(*narrowed, *job_queries.older_than(session, Dataset, before))
        newest = query.order_by(Dataset.created_at.desc(), Dataset.id.desc()).limit(limit + 1)
        rows = session.scalars(newest).all()
        accounts = account_choices(session)
    return page(
        request,
        "datasets.html",
        datasets=rows[:limit],
        filters=asdict(filters),
        list_path=filters.address("/datasets"),
        account_choices=accounts,
        states=DATASET_STATES,
        before=before,
        older_than=rows[limit - 1].id if len(rows) > limit else None,
    )


@router.get("/datasets/{dataset_id}")
def dataset(request: Request, dashboard: Running, dataset_id: str) -> HTMLResponse:
    """Show what was declared about a dataset, its jobs, and what deleting it would do."""
    now = dashboard.clock()
    with transaction(dashboard.factory, read_only=True) as session:
        row = find(session, Dataset, dataset_id)
        values: dict[str, Any] = {
            "dataset": row,
            "account": None if row.account_id is None else session.get_one(AccountRow, row.account_id),
            "jobs": job_queries.list_jobs(session, now, limit=job_queries.RECENT_JOBS, dataset_id=dataset_id),
            "needing": deletion.jobs_needing(session, dataset_id),
            "formats": FORMATS,
        }
    return page(request, "dataset.html", **values)


@router.post("/datasets/{dataset_id}/delete", dependencies=[Depends(find_uploader)])
def delete(dashboard: Running, form: Form, dataset_id: str) -> RedirectResponse:
    """Destroy the key of the images, and then the files. What was spent stays spent."""
    if form.get("sure") != "yes":
        raise InvalidInput("Confirm that the images are to be destroyed for ever.")
    deletion.delete(
        dashboard.settings,
        dashboard.factory,
        dataset_id,
        cancel_jobs=form.get("cancel_jobs") == "yes",
        now=dashboard.clock(),
    )
    return RedirectResponse(f"/datasets/{dataset_id}", status_code=303)


# The files of a release that may be fetched by name; the rest of its folder is not served.
DOWNLOADS = ("report.json", *formats.DOWNLOADS, *formats.MADE)
_KEPT = {"Cache-Control": "private, max-age=3600"}


@router.get("/releases")
def release_list(
    request: Request,
    dashboard: Running,
    filters: Annotated[Filters, Depends()],
    before: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """Show the releases with their sample grids, newest first, narrowed to what was asked for."""
    limit = release_queries.RELEASES_A_PAGE
    narrowed = filters.conditions(Release, ("q", "account"))
    with transaction(dashboard.factory, read_only=True) as session:
        rows = release_queries.list_releases(session, *narrowed, limit=limit + 1, before=before)
        accounts = account_choices(session)
    older_than = rows[limit - 1].release.id if len(rows) > limit else None
    return page(
        request,
        "releases.html",
        releases=rows[:limit],
        filters=asdict(filters),
        list_path=filters.address("/releases"),
        account_choices=accounts,
        before=before,
        older_than=older_than,
    )


@router.get("/releases/{release_id}")
def release(request: Request, dashboard: Running, release_id: str) -> HTMLResponse:
    """Show one release: guarantee first, then what it looks like, what it is good for, and its files."""
    with transaction(dashboard.factory, read_only=True) as session:
        view = release_queries.read_release(session, release_id)
        row = view.release
        samples = release_queries.list_samples(session, release_id)
        evaluations = release_queries.list_evaluations(session, release_id)
        public = release_queries.datasets_like(session, row.dataset)
        hold_id = row.job.hold_id
        payers, holds = queries.read_payers(session, [row.account_id], [] if hold_id is None else [hold_id])
    payer, hold = payers[row.account_id], next(iter(holds.values()), None)
    present = {name for name in (*DOWNLOADS, "grid.png", "report.html") if _exists(dashboard, row.id, name)}
    if "generator.json" in present:
        present |= set(formats.MADE)
    return page(
        request,
        "release.html",
        release=row,
        summary=view.summary,
        payer=payer,
        used_share=None if hold is None else hold.captured_nano / payer.account.promised_nano,
        samples=samples,
        evaluations=evaluations,
        public=public,
        present=present,
        downloads=[name for name in DOWNLOADS if name in present],
        packings=formats.PACKINGS,
        samples_max=dashboard.settings.samples_max,
        chance=1 / len(row.dataset.classes),
        url=str(request.base_url).rstrip("/"),
    )


@router.get("/releases/{release_id}/grid.png")
def grid(dashboard: Running, release_id: str) -> FileResponse:
    """Serve the picture of sampled images."""
    path = _file(dashboard, release_id, "grid.png")
    return FileResponse(path, media_type="image/png", headers=_KEPT)


@router.get("/releases/{release_id}/report")
def report(dashboard: Running, release_id: str) -> Response:
    """Serve the report under a policy of its own: it is one file with its style in it, and runs nothing."""
    page = reports.read_report(dashboard.service.storage, dashboard.factory, release_id, reports.PAGE)
    return Response(page, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})


@router.get("/releases/{release_id}/receipt")
def receipt(dashboard: Running, release_id: str) -> JSONResponse:
    """Serve the signed receipt as a download: whoever keeps it can prove what was paid."""
    with transaction(dashboard.factory, read_only=True) as session:
        row = jobs.get_release(session, release_id)
    attachment = f'attachment; filename="{row.id}-receipt.json"'
    return JSONResponse(row.receipt, headers={"Content-Disposition": attachment})


@router.get("/releases/{release_id}/files/{name}")
def release_file(dashboard: Running, release_id: str, name: str) -> Response:
    """Serve one of the release's files as a download; the report's data with what was measured since."""
    if name not in DOWNLOADS:
        raise NotFound("There is no such file.")
    if name == reports.DATA:
        data = reports.read_report(dashboard.service.storage, dashboard.factory, release_id, name)
        attachment = f'attachment; filename="{release_id}-{name}"'
        return Response(data, media_type="application/json", headers={"Content-Disposition": attachment})
    if name in formats.MADE:
        made = weights.read_made(dashboard.service.storage, dashboard.factory, release_id, name)
        attachment = f'attachment; filename="{name}"'
        return Response(made, media_type="text/plain", headers={"Content-Disposition": attachment})
    path = _file(dashboard, release_id, name)
    # The files of a generator keep their names: its program looks for them by these.
    alone = name if name.startswith("generator.") else f"{release_id}-{name}"
    return FileResponse(path, filename=alone, media_type="application/octet-stream")


@router.post("/releases/{release_id}/samples")
def draw(dashboard: Running, trainer: Trainer, form: Form, release_id: str) -> RedirectResponse:
    """Draw images from a release. It costs nothing, however often."""
    fields: dict[str, Any] = {"release_id": release_id, "classes": None, "format": form.get("format", "")}
    fields |= {name: _whole(form, name) for name in ("count", "seed")}
    return _ordered(dashboard, trainer, form, "sample", fields)


@router.post("/releases/{release_id}/evaluations")
def evaluate(dashboard: Running, trainer: Trainer, form: Form, release_id: str) -> RedirectResponse:
    """Measure a release on a public dataset. It costs nothing, however often."""
    fields: dict[str, Any] = {"release_id": release_id, "dataset_id": form.get("dataset", "")}
    fields |= {name: _whole(form, name) if form.get(name) else None for name in ("samples", "seed")}
    return _ordered(dashboard, trainer, form, "evaluate", fields)


@router.get("/samples/{sample_id}/content")
def sample_content(dashboard: Running, sample_id: str) -> FileResponse:
    """Serve a finished drawing as a download."""
    with transaction(dashboard.factory, read_only=True) as session:
        sample = release_queries.read_sample(session, sample_id)
    assert sample.path is not None
    path = dashboard.service.storage.open(key_of(sample.id), sample.path.rpartition("/")[2])
    return FileResponse(path, filename=f"{sample.id}{path.suffix}", media_type="application/octet-stream")


def _ordered(
    dashboard: Dashboard, trainer: Principal, form: Mapping[str, str], kind: str, fields: Mapping[str, Any]
) -> RedirectResponse:
    job_id = order(dashboard.service, trainer.id, form.get("once") or None, KINDS[kind], fields, lambda _, job: job.id)
    return RedirectResponse(f"/jobs/{job_id}", status_code=303)


def _file(dashboard: Dashboard, release_id: str, name: str) -> Path:
    """Find a file of a release that is published: a folder alone is not enough.

    Raises:
        NotFound: There is no such release, or it has no such file.
    """
    with transaction(dashboard.factory, read_only=True) as session:
        jobs.get_release(session, release_id)
    return dashboard.service.storage.open(key_of(release_id), name)


def _exists(dashboard: Dashboard, release_id: str, name: str) -> bool:
    try:
        dashboard.service.storage.open(key_of(release_id), name)
    except NotFound:
        return False
    return True


def _whole(form: dict[str, str], field: str) -> int:
    text = form.get(field, "").strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise InvalidInput(f"The {field} must be a whole number, at least 0.")
    return int(text)
