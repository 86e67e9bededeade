"""Pages about datasets, and the route by which the page's script declares and uploads one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import or_, select
from sqlalchemy.exc import SQLAlchemyError

from obscura.wire.meanings import identifiers_in, is_part, why_personal
from obscura.wire.schemas import DatasetRequest
from obscura.wire.words import DatasetState
from service.api.browser import FORM_TOKEN, require_same_origin, require_token
from service.api.deps import Running
from service.api.middleware import body_limit
from service.api.uploading import Body, content_length
from service.dashboard.access import Reader, find_viewer
from service.dashboard.forms import DATASET_STATES, FieldsRefused, Filtered, read_body
from service.dashboard.pages import PageRoute, page
from service.datasets import deletion, receiving, states
from service.datasets.reading import Sent
from service.datasets.vault import DatasetContext
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.ledger_tables import Account
from service.db.session import transaction
from service.errors import InvalidInput, ObscuraError
from service.identity.access import Scope, find, visible
from service.ingest.formats import FORMATS
from service.logs import get_logger
from service.views import jobs
from service.views.datasets import dataset as dataset_view
from service.views.rows import ROWS_MAX, newest

router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])
DATASETS_A_PAGE = 30
RECENT_JOBS = 6
NAMES_SHOWN_MAX = 5
PUBLIC = "public"  # the choice for public datasets, instead of an account
FIELDS_BYTES_MAX = 16 * 1024
_FIELDS = TypeAdapter(dict[str, str])


@router.get("/datasets")
def dataset_list(request: Request, service: Running, filters: Filtered) -> HTMLResponse:
    with transaction(service.factory, read_only=True) as session:
        narrowed = filters.conditions(session, Dataset, ("q", "state", "account"), states=list(DatasetState))
        rows, older_than = newest(session, Dataset, *narrowed, limit=DATASETS_A_PAGE, before=filters.before)
        values = filters.shown(session, "/datasets") | {"datasets": [dataset_view(row) for row in rows]}
    return page(request, "datasets.html", **values, states=DATASET_STATES, older_than=older_than)


@router.get("/datasets/new")
def new_dataset(request: Request, service: Running, account: Annotated[str, Query(max_length=64)] = "") -> HTMLResponse:
    """Show the form that declares a dataset; the page's script sends it with the images."""
    with transaction(service.factory, read_only=True) as session:
        choices = visible(session, Account, select(Account.id, Account.name, Account.unit))
        accounts = session.execute(choices.where(~Account.closed).limit(ROWS_MAX)).all()
    upload_max = service.settings.upload_bytes_max
    return page(request, "dataset_new.html", account_id=account, accounts=accounts, upload_max=upload_max)


@router.post("/datasets/new")
@body_limit(None)
def declare_and_upload(request: Request, service: Running, viewer: Reader) -> Response:
    """Declare a dataset and receive its file. Atomic. The body is one line of JSON, then the file."""
    require_same_origin(request)
    caller = viewer.require(Scope.DATA)
    require_token(request.headers.get(FORM_TOKEN, ""), viewer.form_token)
    settings, body = service.settings, Body(request, service.uploads.limits)
    with service.uploads.taken(caller.id, caller.project_id):
        try:
            line, blocks = _first_line(body.blocks())
            announced = content_length(request.headers)
            file_bytes = None if announced is None else announced - len(line) - 1
            fields = _read_fields(line)
            with transaction(service.factory) as session:
                dataset_id = states.declare(session, settings, _declaration(fields), now=service.clock()).id
            try:
                context = DatasetContext(settings, service.factory, service.clock)
                sent = Sent(blocks, fields.get("format", ""), file_bytes)
                received = receiving.receive(context, dataset_id, sent, by=caller.id)
            except BaseException:
                try:
                    deletion.delete(settings, service.factory, dataset_id, cancel_jobs=True, now=service.clock())
                except (ObscuraError, SQLAlchemyError, OSError) as error:
                    name = type(error).__name__
                    get_logger(__name__).error("declaration_not_removed", dataset_id=dataset_id, error=name)
                raise
        except BaseException:
            body.drain()
            raise
    return JSONResponse(dataset_view(received).model_dump(mode="json"), status_code=201)


@router.get("/datasets/{dataset_id}")
def dataset(request: Request, service: Running, dataset_id: str) -> HTMLResponse:
    using = or_(Job.dataset_id == dataset_id, Job.evaluation_dataset_id == dataset_id)
    with transaction(service.factory, read_only=True) as session:
        row = find(session, Dataset, dataset_id)
        values: dict[str, Any] = {
            "dataset": dataset_view(row),
            "account": None if row.account_id is None else find(session, Account, row.account_id),
            "jobs": jobs.recent(session, service.clock(), using, limit=RECENT_JOBS),
            "needing": deletion.jobs_needing(session, dataset_id),
            "formats": FORMATS,
            "upload_max": service.settings.upload_bytes_max,
        }
    return page(request, "dataset.html", **values)


def _first_line(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    head = b""
    for block in blocks:
        head += block
        line, newline, rest = head.partition(b"\n")
        if len(line) > FIELDS_BYTES_MAX:
            break
        if newline:
            return line, chain([rest], blocks)
    raise InvalidInput(f"An upload starts with one line of JSON of at most {FIELDS_BYTES_MAX:,} bytes.")


def _read_fields(line: bytes) -> dict[str, str]:
    try:
        return _FIELDS.validate_json(line)
    except ValidationError:
        raise InvalidInput("The first line of the upload must be a JSON object whose values are texts.") from None


def _declaration(form: Mapping[str, str]) -> DatasetRequest:
    fields: dict[str, Any] = {name: form.get(name, "").strip() for name in DatasetRequest.model_fields}
    if not fields["account_id"]:
        raise FieldsRefused({"account_id": "Choose whose images these are."})
    public = fields["account_id"] == PUBLIC
    fields |= {"visibility": "public", "account_id": None} if public else {"visibility": "private"}
    classes = [name.strip() for name in re.split(r"[,\n]", form.get("classes", "")) if name.strip()]
    fields["classes"] = classes
    fields["channels"] = int(fields["channels"]) if fields["channels"].isdecimal() else None
    if form.get("stated") != "yes":
        people = [name for name in classes if why_personal(name)] or identifiers_in(classes, few=False)
        odd = people or [name for name in classes if is_part(name)]
        if odd:
            like = "people" if people else "parts of a collection"
            raise FieldsRefused(
                {
                    "classes": f"These look like {like}: {', '.join(odd[:NAMES_SHOWN_MAX])}. Names of classes become "
                    "public forever. Rename the folders; or, if these are the classes, say so with the box below."
                }
            )
    return read_body(DatasetRequest, fields)
