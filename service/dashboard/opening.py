"""Opening an account, and bringing images: the forms, and an upload's body from a form or from the page's script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy import select

from obscura.wire.schemas import AccountRequest, DatasetRequest, Identifier
from privacy.errors import PrivacyError
from service import ledger
from service.api.routes.datasets import put_content
from service.api.uploading import Body
from service.auth import Scope
from service.dashboard import queries
from service.dashboard.access import (
    Admin,
    Dashboard,
    Form,
    Reader,
    Running,
    Uploader,
    find_viewer,
    require_acting,
    require_same_origin,
)
from service.dashboard.forms import FieldsRefused, do_once, fresh_once, once_of, problems_of, read_body
from service.dashboard.multipart import FileForm
from service.dashboard.pages import PageRoute, SignInNeeded, page, wants_problem
from service.datasets import receiving, states
from service.datasets.reading import Sent, UploadRefused
from service.db.dataset_tables import Dataset
from service.db.session import find, transaction
from service.errors import ObscuraError
from service.ingest.formats import FORMATS

PUBLIC = "public"  # chosen in the place of an account
router = APIRouter(route_class=PageRoute, dependencies=[Depends(find_viewer)])


@router.get("/accounts/new")
def new_account(request: Request) -> HTMLResponse:
    """Show the form that opens an account."""
    return _form(request, "account_new.html")


@router.post("/accounts")
def open_account(request: Request, dashboard: Running, admin: Admin, form: Form) -> Response:
    """Open an account, or show the form again with what is wrong at its fields."""
    try:
        once = once_of(form)
        terms = {name: form.get(name, "").strip() for name in AccountRequest.model_fields}
        body = read_body(AccountRequest, terms).model_dump()
        now = dashboard.clock()
        with transaction(dashboard.factory) as session:
            account_id = do_once(
                session, admin.id, once, body, lambda: ledger.open_account(session, **body, now=now).id, now
            )
    except (ObscuraError, PrivacyError) as error:
        return _form(request, "account_new.html", error, form)
    return RedirectResponse(f"/accounts/{account_id}", status_code=303)


@router.get("/datasets/new")
def new_dataset(
    request: Request, dashboard: Running, account: Annotated[str, Query(max_length=64)] = ""
) -> HTMLResponse:
    """Show the form that declares a dataset; the page's script sends the images with it."""
    return _dataset_form(request, dashboard, {"account_id": account})


@router.post("/datasets")
def declare(request: Request, dashboard: Running, uploader: Uploader, form: Form) -> Response:
    """Declare a dataset, and lead to its page, which takes the images."""
    try:
        once = once_of(form)
        fields: dict[str, Any] = {name: form.get(name, "").strip() for name in DatasetRequest.model_fields}
        fields |= _whose(fields["account_id"])
        fields["classes"] = [name.strip() for name in re.split(r"[,\n]", form.get("classes", "")) if name.strip()]
        fields["channels"] = int(fields["channels"]) if fields["channels"].isdecimal() else None
        body = read_body(DatasetRequest, fields).model_dump()
        now = dashboard.clock()
        with transaction(dashboard.factory) as session:
            dataset_id = do_once(
                session,
                uploader.id,
                once,
                body,
                lambda: states.declare(session, dashboard.settings, **body, now=now).id,
                now,
            )
    except (ObscuraError, PrivacyError) as error:
        if wants_problem(request):
            raise
        return _dataset_form(request, dashboard, form, error)
    return RedirectResponse(f"/datasets/{dataset_id}", status_code=303)


@router.put("/datasets/{dataset_id}/content")
def put(
    request: Request,
    dashboard: Running,
    viewer: Reader,
    dataset_id: Identifier,
    format: str,
    token: Annotated[str, Header(alias="X-Form-Token", max_length=64)] = "",
) -> Response:
    """Take the images as the body, from the page's script: as the API does."""
    require_same_origin(request)
    uploader = require_acting(viewer, token, Scope.DATA)
    return put_content(dashboard.service, request, uploader, dataset_id, format)  # type: ignore[arg-type]  # refused


@router.post("/datasets/{dataset_id}/content")
def post(request: Request, dashboard: Running, viewer: Reader, dataset_id: str) -> Response:
    """Take the images as a file in a form, which needs no script."""
    require_same_origin(request)
    if viewer.principal is None:
        raise SignInNeeded("Sign in with an API key to do this.")
    body = Body(request, dashboard.service.uploads.limits)
    try:
        form = FileForm(request.headers.get("content-type", ""), body.blocks())
        uploader = require_acting(viewer, form.fields.get("token", ""), Scope.DATA)
        with dashboard.service.uploads.taken(uploader.id):
            sent = Sent(form.file(), form.fields.get("format", ""))
            receiving.receive(dashboard.settings, dashboard.factory, dataset_id, sent, clock=dashboard.clock)
    except UploadRefused as error:
        body.drain()
        return _refused_upload(request, dashboard, dataset_id, error)
    except BaseException:
        body.drain()
        raise
    return RedirectResponse(f"/datasets/{dataset_id}", status_code=303)


def _whose(chosen: str) -> dict[str, str | None]:
    """Read whose images are declared: nobody's is a choice, too, and none is made for anybody.

    Raises:
        FieldsRefused: none was made.
    """
    if not chosen:
        raise FieldsRefused({"account_id": "Choose whose images these are."})
    public = chosen == PUBLIC
    return {"account_id": None if public else chosen, "visibility": "public" if public else "private"}


def _refused_upload(request: Request, dashboard: Dashboard, dataset_id: str, error: ObscuraError) -> Response:
    with transaction(dashboard.factory, read_only=True) as session:
        dataset = find(session, Dataset, dataset_id)
    return page(
        request, "upload_refused.html", status_code=422, dataset=dataset, message=error.message, formats=FORMATS
    )


def _dataset_form(
    request: Request,
    dashboard: Dashboard,
    values: Mapping[str, str],
    error: ObscuraError | PrivacyError | None = None,
) -> HTMLResponse:
    with transaction(dashboard.factory, read_only=True) as session:
        accounts = session.execute(select(*queries.ACCOUNT_CHOICES).limit(queries.ROWS_MAX)).all()
    return _form(request, "dataset_new.html", error, values, accounts=accounts, formats=FORMATS)


def _form(
    request: Request,
    template: str,
    error: ObscuraError | PrivacyError | None = None,
    values: Mapping[str, str] | None = None,
    **more: Any,
) -> HTMLResponse:
    """Show a form, empty or as it was sent, with what is wrong with it."""
    fields, message = problems_of(error) if error is not None else ({}, "")
    status = 200 if error is None else 422
    return page(
        request,
        template,
        status_code=status,
        values=values or {},
        wrong=fields,
        message=message,
        once=fresh_once(),
        **more,
    )
