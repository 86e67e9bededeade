"""Pages about datasets, and the routes by which their script uploads images in parts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import or_, select

from obscura import image_types
from obscura.wire.formats import UploadFit, UploadFormat
from obscura.wire.schemas import DatasetRecord
from service import disk
from service.api import deps, middleware, uploading
from service.api.deps import Running, Service
from service.dashboard.access import Reader, find_viewer
from service.dashboard.forms import STATES, Filtered, read_declaration
from service.dashboard.pages import PageRoute, page
from service.dashboard.releases import tradeoff
from service.datasets import deletion, parts, reading, receiving, vault
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.ledger_tables import Account
from service.db.session import transaction
from service.errors import InvalidInput, TooLarge
from service.identity.access import Principal, Scope, find, visible
from service.ingest.request import FORMATS, IngestLimits
from service.views import ROWS_MAX, jobs, newest, releases

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
DATASETS_A_PAGE = 30
RECENT_JOBS = 6


@router.get("/datasets")
def dataset_list(request: Request, service: Running, filters: Filtered) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        narrowed = filters.conditions(session, Dataset, ("q", "state", "account"))
        found, older_than = newest(session, Dataset, *narrowed, limit=DATASETS_A_PAGE, before=filters.before)
        values = filters.template_values(session, "/datasets") | {"datasets": list(map(releases.dataset_record, found))}
    return page(request, "datasets.html", **values, states=STATES[Dataset], older_than=older_than)


@router.get("/datasets/new")
def new_dataset(request: Request, service: Running, account: Annotated[str, Query(max_length=64)] = "") -> HTMLResponse:
    """Show the form that declares a dataset. The page's script sends the form with the images."""
    with transaction(service.factory, read_only=True) as session:
        choices = visible(session, Account, select(Account.id, Account.name, Account.unit))
        accounts = session.execute(choices.where(~Account.closed).limit(ROWS_MAX)).all()
    return page(request, "dataset_new.html", account_id=account, accounts=accounts, **_limits(service))


class UploadForm(BaseModel, extra="forbid"):
    """The form of an upload: the declaration's fields as text, and how to read the file."""

    upload: str = Field("", max_length=64)  # the secret that `begin_upload` has returned
    file_bytes: int = Field(0, ge=0)
    format: UploadFormat = "zip"
    fit: UploadFit = "crop"
    fields: dict[str, str] = {}


async def _read_form(request: Request) -> UploadForm:
    try:
        return UploadForm.model_validate_json(await request.body())
    except ValidationError:
        raise InvalidInput("The form of this upload is malformed. Reload the page and try again.") from None


def _find_sender(request: Request, viewer: Reader) -> Principal:
    """Return the caller, who may upload and has sent the request from one of our pages."""
    deps.require_same_origin(request)
    caller = viewer.signed_in(Scope.DATA)
    deps.require_token(request.headers.get(deps.FORM_TOKEN, ""), viewer.form_token)
    return caller


Sender = Annotated[Principal, Depends(_find_sender)]
Form = Annotated[UploadForm, Depends(_read_form)]
Secret = Annotated[str, Header(alias="X-Upload", max_length=64)]


@router.post(uploading.PARTS_PATH)
@middleware.body_limit(middleware.LARGE_BODY_BYTES_MAX)
def begin_upload(service: Running, caller: Sender, form: Form) -> dict[str, str]:
    """Begin an upload in parts: check the form, without the database, before anything is sent."""
    limit = service.settings.upload_bytes_max
    if form.fields:
        read_declaration(form.fields)
    if form.file_bytes > limit:
        raise TooLarge("This file", limit, form.file_bytes)
    disk.require_room(service.settings)
    return {"upload": parts.begin(service.settings, caller.id, caller.project_id)}


@router.put(uploading.PARTS_PATH)
@middleware.body_limit(None)
def put_part(
    request: Request, service: Running, caller: Sender, offset: Annotated[int, Query(ge=0)], upload: Secret
) -> dict[str, int]:
    """Receive a part. An empty one only returns how many bytes have been received."""
    settings = service.settings
    with (
        uploading.take_body(request, service.uploads, caller) as body,
        parts.opened(settings, upload, caller.id, caller.project_id) as sent,
    ):
        disk.require_room(settings)
        received = sent.append(offset, body.blocks(), bytes_max=settings.upload_bytes_max)
    return {"received": received}


@router.post("/datasets/{dataset_id}")
@middleware.body_limit(middleware.LARGE_BODY_BYTES_MAX)
def receive_upload(service: Running, caller: Sender, dataset_id: str, form: Form) -> DatasetRecord:
    """Receive the parts of an upload for a declared dataset; for "new", also declare it, atomically."""
    settings = service.settings
    if dataset_id != "new":  # before the parts, so that another project's dataset is answered like an unknown one
        with transaction(service.factory, read_only=True) as session:
            find(session, Dataset, dataset_id)
    declared = read_declaration(form.fields) if dataset_id == "new" else dataset_id
    context = vault.DatasetContext(settings, service.factory, service.clock)
    with (
        uploading.take_slot(service.uploads, caller),
        parts.opened(settings, form.upload, caller.id, caller.project_id) as upload,
    ):
        sent = reading.Sent(upload.blocks(), form.format, fit=form.fit)
        received = receiving.receive_parts(context, upload, sent, declared, by=caller.id)
    return releases.dataset_record(received)


@router.get("/datasets/{dataset_id}")
def dataset(request: Request, service: Running, dataset_id: str) -> HTMLResponse:
    using = or_(Job.dataset_id == dataset_id, Job.evaluation_dataset_id == dataset_id)
    with transaction(service.factory, read_only=True) as session:
        row = find(session, Dataset, dataset_id)
        values: dict[str, Any] = {
            "dataset": releases.dataset_record(row),
            "account": None if row.account_id is None else find(session, Account, row.account_id),
            "jobs": jobs.page(session, service.clock(), using, limit=RECENT_JOBS, in_total=True)[0],
            "needing": session.scalars(visible(session, Job).where(deletion.needs(dataset_id))).all(),
            "formats": FORMATS,
        }
        values |= tradeoff(session, values["dataset"])
    return page(request, "dataset.html", **values, **_limits(service))


def _limits(service: Service) -> dict[str, Any]:
    """Return the limits that the script of uploads checks: bytes, and suffixes of images."""
    suffixes = [suffix for kind in image_types.TYPES if kind.size is not None for suffix in kind.suffixes]
    entry_bytes, file_bytes = IngestLimits().entry_bytes_max, service.settings.upload_bytes_max
    return {"limits": {"file": file_bytes, "part": parts.PART_BYTES_MAX, "entry": entry_bytes, "suffixes": suffixes}}
