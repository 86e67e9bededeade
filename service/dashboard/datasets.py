"""Pages about datasets, and the route that the upload page's script uses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import or_, select
from sqlalchemy.exc import SQLAlchemyError

from service.api import deps, middleware, uploading
from service.api.deps import Running
from service.dashboard.access import Reader, find_viewer
from service.dashboard.forms import STATES, Filtered, read_declaration
from service.dashboard.pages import PageRoute, page
from service.dashboard.releases import tradeoff
from service.datasets import deletion, reading, receiving, states, vault
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.ledger_tables import Account
from service.db.session import transaction
from service.errors import InvalidInput, ObscuraError
from service.identity.access import Scope, find, visible
from service.ingest.request import FORMATS
from service.logs import get_logger
from service.views import ROWS_MAX, jobs, newest, releases

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
DATASETS_A_PAGE = 30
RECENT_JOBS = 6
FIELDS_BYTES_MAX = 16 * 1024
_FIELDS = TypeAdapter(dict[str, str])


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
    upload_max = service.settings.upload_bytes_max
    return page(request, "dataset_new.html", account_id=account, accounts=accounts, upload_max=upload_max)


@router.post("/datasets/new")
@middleware.body_limit(None)
def declare_and_upload(request: Request, service: Running, viewer: Reader) -> Response:
    """Declare a dataset and receive its file. Atomic. The body is one line of JSON, then the file."""
    deps.require_same_origin(request)
    caller = viewer.require(Scope.DATA)
    deps.require_token(request.headers.get(deps.FORM_TOKEN, ""), viewer.form_token)
    settings, announced = service.settings, uploading.content_length(request.headers)
    with uploading.take_body(request, service.uploads, caller) as body:
        fields, line_bytes, blocks = _read_fields(body.blocks())
        with transaction(service.factory) as session:
            dataset_id = states.declare(session, settings, read_declaration(fields), now=service.clock()).id
        try:
            context = vault.DatasetContext(settings, service.factory, service.clock)
            file_bytes = None if announced is None else announced - line_bytes
            sent = reading.Sent(blocks, fields.get("format", ""), file_bytes)
            received = receiving.receive(context, dataset_id, sent, by=caller.id)
        except BaseException:
            try:
                deletion.delete(settings, service.factory, dataset_id, cancel_jobs=True, now=service.clock())
            except (ObscuraError, SQLAlchemyError, OSError) as error:
                name = type(error).__name__
                get_logger(__name__).error("declaration_not_removed", dataset_id=dataset_id, error=name)
            raise
    return JSONResponse(releases.dataset_record(received).model_dump(mode="json"), status_code=201)


@router.get("/datasets/{dataset_id}")
def dataset(request: Request, service: Running, dataset_id: str) -> HTMLResponse:
    using = or_(Job.dataset_id == dataset_id, Job.evaluation_dataset_id == dataset_id)
    with transaction(service.factory, read_only=True) as session:
        row = find(session, Dataset, dataset_id)
        values: dict[str, Any] = {
            "dataset": releases.dataset_record(row),
            "account": None if row.account_id is None else find(session, Account, row.account_id),
            "jobs": jobs.page(session, service.clock(), using, limit=RECENT_JOBS, in_total=True)[0],
            "needing": deletion.jobs_needing(session, dataset_id),
            "formats": FORMATS,
            "upload_max": service.settings.upload_bytes_max,
        }
        values |= tradeoff(session, values["dataset"])
    return page(request, "dataset.html", **values)


def _read_fields(blocks: Iterator[bytes]) -> tuple[dict[str, str], int, Iterator[bytes]]:
    """Return the fields in the first line of an upload, the length of this line, and the rest of the upload."""
    head = b""
    for block in blocks:
        head += block
        line, newline, rest = head.partition(b"\n")
        if len(line) > FIELDS_BYTES_MAX:
            break
        if newline:
            try:
                return _FIELDS.validate_json(line), len(line) + 1, chain([rest], blocks)
            except ValidationError:
                message = "The first line of the upload must be a JSON object whose values are strings."
                raise InvalidInput(message) from None
    raise InvalidInput(f"An upload must start with a line of JSON of at most {FIELDS_BYTES_MAX:,} bytes.")
