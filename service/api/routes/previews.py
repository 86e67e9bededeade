"""Previews: what a plan would make, tried on a public stand-in before anything is held."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy.orm import Session, undefer
from sqlalchemy.orm.interfaces import ORMOption

from obscura.wire.job_schemas import FINAL_STATES, PreviewRecord, PreviewRequest
from obscura.wire.schemas import Identifier
from privacy.plans.registry import plan_from_json
from service import jobs
from service.api.conditional import answer, answer_bytes
from service.api.deps import PROBLEMS, READ, IdempotencyKey, Running, Trainer
from service.api.problems import JobNotSucceeded, Pending
from service.api.routes.jobs import plan_beforehand
from service.db.job_tables import Job, Preview
from service.db.session import transaction
from service.disk import require_room
from service.errors import NotFound
from service.extractors import require_extractor
from service.views import jobs as views

router = APIRouter(prefix="/v1/previews", tags=["plans"], responses=PROBLEMS)
PreviewId = Annotated[Identifier, Path()]
_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {}}},
    304: {"description": "The client has it."},
    409: {"description": "Pending (with Retry-After), or the preview failed."},
}


@router.post("", status_code=202, response_model=PreviewRecord, summary="Preview a training")
def create_preview(
    service: Running, principal: Trainer, request: Request, key: IdempotencyKey, body: PreviewRequest
) -> Response:
    """Carry out a plan on public images that have what was declared. It costs nothing and reads nothing private.

    The account need not have the budget, and the dataset's content need not have arrived.
    """
    require_room(service.settings)
    plan_beforehand(service, body.dataset_id, body.recipe, [jobs.Trial(body.epsilon, body.options)])
    with transaction(service.factory) as session:
        job = jobs.submit_preview(
            session, principal=principal.id, idempotency_key=key, now=service.clock(), **body.model_dump()
        )
        require_extractor(service.settings.data_dir, plan_from_json(job.plan))
        record = views.preview(jobs.preview_of(session, job.id), job)
    service.ring()
    return answer(request, record, status_code=202, headers={"Location": f"/v1/previews/{record.id}"})


@router.get("/{preview_id}", dependencies=[READ], response_model=PreviewRecord, summary="Read a preview")
def read_preview(service: Running, request: Request, preview_id: PreviewId) -> Response:
    """Read a preview: its state, and its forecast once it has ended."""
    with transaction(service.factory, read_only=True) as session:
        record = views.preview(*_find(session, preview_id))
    headers = {} if record.state in FINAL_STATES else {"Retry-After": "2"}
    return answer(request, record, headers=headers)


@router.get("/{preview_id}/grid.png", dependencies=[READ], response_class=Response, responses=_PICTURE)
def read_preview_grid(service: Running, request: Request, preview_id: PreviewId) -> Response:
    """Read a picture of what the generator drew of the stand-in, a class in each row."""
    with transaction(service.factory, read_only=True) as session:
        preview, job = _find(session, preview_id, undefer(Preview.grid))
        grid = preview.grid
    if job.state.value not in FINAL_STATES:
        raise Pending(f"Preview {preview_id} is {job.state.value}. Ask again soon, or follow job {job.id}.")
    if grid is None and preview.results is not None:
        raise NotFound("A preview of a classifier has no picture.", preview_id=preview_id)
    if grid is None:
        raise JobNotSucceeded(f"Preview {preview_id} has no picture: its job {job.state.value}. Ask for a new one.")
    return answer_bytes(request, grid, "image/png")


def _find(session: Session, preview_id: str, *options: ORMOption) -> tuple[Preview, Job]:
    preview = session.get(Preview, preview_id, options=options)
    if preview is None:
        raise NotFound("There is no such preview.", preview_id=preview_id)
    return preview, jobs.get_job(session, preview.job_id)
