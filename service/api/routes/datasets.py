"""Datasets: declare public facts, then upload the images."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from obscura.wire.formats import UploadFit, UploadFormat
from obscura.wire.schemas import DatasetRecord, DatasetRequest, Identifier, KeyCheck, Page
from obscura.wire.words import DatasetState
from service.api.answers import ApiRoute, newest_page
from service.api.deps import DATA, READ, OfAccount, Paging, Running, Uploader
from service.api.middleware import LARGE_BODY_BYTES_MAX, body_limit
from service.api.uploading import content_length, take_body
from service.datasets import deletion, receiving, states
from service.datasets.reading import Sent
from service.datasets.vault import DatasetContext
from service.db.dataset_tables import Dataset
from service.db.session import transaction
from service.identity.access import find
from service.ingest.request import titles
from service.views.releases import dataset_record

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=ApiRoute)
DatasetId = Annotated[Identifier, Path(description="The dataset.")]

_RAW_BODY = {
    "requestBody": {
        "required": True,
        "description": "The file itself; not a form.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("", dependencies=[DATA], status_code=201, summary="Declare a dataset")
@body_limit(LARGE_BODY_BYTES_MAX)
def declare_dataset(service: Running, response: Response, body: DatasetRequest) -> DatasetRecord:
    """Declare a dataset. The declaration is public: it appears in plans, privacy cards and reports."""
    with transaction(service.factory) as session:
        dataset = states.declare(session, service.settings, body, now=service.clock())
        record = dataset_record(dataset)
    response.headers["Location"] = f"/v1/datasets/{record.id}"
    return record


@router.put("/{dataset_id}/content", summary="Upload a dataset's content", openapi_extra=_RAW_BODY)
@body_limit(None)
def put_content(
    service: Running,
    request: Request,
    caller: Uploader,
    dataset_id: DatasetId,
    format: Annotated[UploadFormat, Query(description=f"{titles()}.")],
    fit: Annotated[
        UploadFit,
        Query(
            description="How images of a ZIP get the declared size and colour. `exact` rejects other images. `crop` "
            "fills the size and crops the rest; `pad` shows the whole image on white. Both turn images upright."
        ),
    ] = "exact",
    subjects_key_check: Annotated[
        KeyCheck | None,
        Query(description="Check value of the key that derives subject ids; the same for all uploads to an account."),
    ] = None,
) -> DatasetRecord:
    """Upload the content as the raw body. A confined process validates it before the response.

    A rejected upload changes nothing: the dataset remains declared, and the response names the broken rule.
    """
    context = DatasetContext(service.settings, service.factory, service.clock)
    with take_body(request, service.uploads, caller) as body:
        sent = Sent(body.blocks(), format, content_length(request.headers), subjects_key_check, fit)
        return dataset_record(receiving.receive(context, dataset_id, sent, by=caller.id))


@router.get("", dependencies=[READ], summary="List datasets")
def list_datasets(
    service: Running,
    page: Paging,
    account_id: OfAccount = None,
    state: Annotated[DatasetState | None, Query(description="Only datasets in this state.")] = None,
) -> Page[DatasetRecord]:
    """List datasets, newest first, optionally of one account or state."""
    return newest_page(
        service, page, Dataset, lambda _, rows: list(map(dataset_record, rows)), account_id=account_id, state=state
    )


@router.get("/{dataset_id}", dependencies=[READ], summary="Read a dataset")
def read_dataset(service: Running, dataset_id: DatasetId) -> DatasetRecord:
    """Return a dataset's declaration and state."""
    with transaction(service.factory, read_only=True) as session:
        return dataset_record(find(session, Dataset, dataset_id))


@router.delete("/{dataset_id}", dependencies=[DATA], summary="Delete a dataset's images forever")
def delete_dataset(
    service: Running,
    dataset_id: DatasetId,
    cancel_jobs: Annotated[bool, Query(description="Cancel trainings that need the dataset, instead of 409.")] = False,
) -> DatasetRecord:
    """Delete a dataset. Destroy the keys of its images and checkpoints, so that no copy is readable; then remove files.

    Spent budget stays spent; releases, entries and receipts remain. 409 if a training that needs the dataset is queued
    or running, unless `cancel_jobs` is set: then the state is `deleting` until the training process has stopped. A
    dataset that no job has used is erased, with its name and class names, and no longer listed. Idempotent.
    """
    dataset = deletion.delete(
        service.settings, service.factory, dataset_id, cancel_jobs=cancel_jobs, now=service.clock()
    )
    return dataset_record(dataset)
