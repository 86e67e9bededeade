"""The page about a dataset, and the form that deletes its images."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from service import ledger
from service.dashboard import job_queries, wording
from service.dashboard.access import Form, Running, find_uploader, find_viewer
from service.dashboard.pages import PageRoute, page
from service.datasets import deletion, states
from service.db.session import transaction
from service.errors import InvalidInput

router = APIRouter(prefix="/datasets", route_class=PageRoute, dependencies=[Depends(find_viewer)])


@router.get("/{dataset_id}")
def dataset(request: Request, dashboard: Running, dataset_id: str) -> HTMLResponse:
    """Show what was declared about a dataset, its jobs, and what deleting it would do."""
    now = dashboard.clock()
    with transaction(dashboard.factory, read_only=True) as session:
        row = states.find(session, dataset_id)
        values: dict[str, Any] = {
            "dataset": row,
            "account": None if row.account_id is None else ledger.get_account(session, row.account_id),
            "jobs": job_queries.list_jobs(session, now, limit=job_queries.RECENT_JOBS, dataset_id=dataset_id),
            "needing": deletion.jobs_needing(session, dataset_id),
        }
    return page(request, "dataset.html", **values, state_words=wording.JOB_STATES, units=wording.UNITS)


@router.post("/{dataset_id}/delete", dependencies=[Depends(find_uploader)])
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
