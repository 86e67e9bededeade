"""Samples: sets of synthetic images to download."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy.orm import Session

from service import artifacts, jobs
from service.api import release_views
from service.api.conditional import answer, send_file
from service.api.deps import PROBLEMS, READ, Running
from service.api.problems import JobNotSucceeded, Pending
from service.api.release_schemas import SampleRecord
from service.api.schemas import FINAL_STATES, Identifier
from service.db.job_tables import Job, Sample
from service.db.session import transaction
from service.db.words import SampleFormat
from service.errors import NotFound

router = APIRouter(prefix="/v1/samples", tags=["samples"], responses=PROBLEMS)
SampleId = Annotated[Identifier, Path()]

MEDIA_TYPES = {
    SampleFormat.IMAGEFOLDER: ("application/zip", "zip"),
    SampleFormat.NPZ: ("application/octet-stream", "npz"),
}
_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole content.", "content": {"application/zip": {}, "application/octet-stream": {}}},
    206: {"description": "The range asked for."},
    304: {"description": "The client has it."},
    409: {"description": "Pending (with Retry-After), or the sampling failed."},
    416: {"description": "The range lies outside the content."},
}


@router.get("/{sample_id}", dependencies=[READ], response_model=SampleRecord, summary="Read a sample")
def read_sample(service: Running, request: Request, sample_id: SampleId) -> Response:
    """Read a sample: its state, and its SHA-256 and size once it is there."""
    with transaction(service.factory, read_only=True) as session:
        record = release_views.sample(*_find(session, sample_id))
    headers = {} if record.state in FINAL_STATES else {"Retry-After": "2"}
    return answer(request, record, headers=headers)


@router.get(
    "/{sample_id}/content",
    dependencies=[READ],
    response_class=Response,
    responses=_CONTENT,
    summary="Download a sample",
)
def read_content(service: Running, request: Request, sample_id: SampleId) -> Response:
    """Download the images, whole or by range. The ETag is the content's SHA-256."""
    with transaction(service.factory, read_only=True) as session:
        sample, job = _find(session, sample_id)
    if job.state.value not in FINAL_STATES:
        raise Pending(f"Sample {sample_id} is {job.state.value}. Ask again soon, or follow job {job.id}.")
    if sample.sha256 is None or sample.path is None:
        raise JobNotSucceeded(f"Sample {sample_id} has no content: its job {job.state.value}. Draw a new one.")
    media_type, suffix = MEDIA_TYPES[sample.format]
    path = artifacts.find_file(service.settings.data_dir, sample.id, sample.path.rpartition("/")[2])
    return send_file(request, path, sha256=sample.sha256, media_type=media_type, filename=f"{sample.id}.{suffix}")


def _find(session: Session, sample_id: str) -> tuple[Sample, Job]:
    sample = session.get(Sample, sample_id)
    if sample is None:
        raise NotFound("There is no such sample.", sample_id=sample_id)
    return sample, jobs.get_job(session, sample.job_id)
