"""Errors as RFC 9457 problem documents. The only module that maps errors to HTTP statuses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from inspect import getdoc
from types import MappingProxyType
from typing import Any, ClassVar, get_args

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from sqlalchemy.exc import DataError, IntegrityError, OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from obscura.wire.schemas import FieldError, Problem
from privacy.errors import BudgetExceeded, InvalidParameter, PrivacyError
from service.api.openapi import describe
from service.db.job_tables import FailureCode
from service.db.session import is_duplicate
from service.errors import ObscuraError
from service.logs import get_logger
from service.wording import NEEDS_OPERATOR, NO_STORAGE

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "/docs/reference/errors/#"  # each code has a section in the documentation
RETRY_SECONDS = 2
ERRORS_MAX = 50  # in the response to an invalid request
POINTER_CHARACTERS_MAX = 300
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
}

# Error codes by status. A missing code is a bug, so it gives 500.
_BY_STATUS = {
    401: ("unauthorized",),
    403: ("forbidden",),
    404: ("not_found",),
    408: ("upload_stalled",),
    409: (
        *("account_closed", "account_frozen", "arming_stopped", "conflict", "hold_exhausted", "insufficient_budget"),
        *("job_failed", "pending", "quota_exceeded", "stale_attempt"),
    ),
    410: ("sample_removed", "upload_lost"),
    413: ("too_large",),
    415: ("unsupported_media_type",),
    416: ("range_not_satisfiable",),
    422: (
        *("address_refused", "idempotency_mismatch", "invalid_input", "invalid_parameter", "invalid_request"),
        *("large_delta", "upload_refused"),
    ),
    429: (
        *("too_many_requests", "too_many_streams_for_key", "too_many_streams_for_project", "too_many_wrong_keys"),
        *("too_many_uploads_for_key", "too_many_uploads_for_project"),
    ),
    500: ("internal", "upload_failed"),
    503: (
        *("audit_log_unavailable", "busy", "clock_refused", "database_unsuitable", "installation_locked"),
        *("ledger_corruption", "provider_unavailable", "storage_unavailable", "too_many_streams", "uploads_stopped"),
    ),
}
STATUSES = {code: status for status, codes in _BY_STATUS.items() for code in codes}
TITLES = {code: code.replace("_", " ").capitalize() for code in STATUSES} | {
    "arming_stopped": "Trainings are stopped",
    "conflict": "Not possible now",
    "forbidden": "Permission denied",
    "internal": "Internal error",
    "invalid_input": "Invalid request",
    "ledger_corruption": "The ledger needs an operator",
    "unauthorized": "Sign in, or send a valid key",
}
_NOT_SOON = {"database_unsuitable", "uploads_stopped"}  # retrying helps only after an operator has acted
RETRY_CODES = {code for code, status in STATUSES.items() if status in (429, 503)} - _NOT_SOON | {"pending"}
_RETRY_HEADERS = {code: {"Retry-After": str(RETRY_SECONDS)} for code in RETRY_CODES}
# The caller only learns that an operator must act.
OPERATOR_ONLY = {"ledger_corruption": NEEDS_OPERATOR, "storage_unavailable": NO_STORAGE}


class Pending(ObscuraError):
    """The content of a job is not ready yet."""


class JobNotSucceeded(ObscuraError):
    """The job ended without content."""

    code: ClassVar[str] = "job_failed"


class SampleRemoved(ObscuraError):
    """The files of the sample were removed after their retention period."""


class Busy(ObscuraError):
    """A bounded resource of this process is exhausted."""


class UploadStalled(ObscuraError):
    """The upload is too slow."""


class TooManyWrongKeys(ObscuraError):
    """The address has sent too many invalid keys. A valid key still works."""

    def __init__(self, message: str, seconds: float) -> None:
        wait = math.ceil(seconds)
        self.headers = {"Retry-After": str(wait)}
        super().__init__(
            f"{message} Too many invalid keys came from your address. Wait {wait} seconds, or send a valid key.",
            seconds=wait,
        )


class TooManyRequests(ObscuraError):
    """The key, project or address has reached its limit of requests per minute."""

    def __init__(self, policy: str, requests_max: int, seconds: int) -> None:
        self.headers = {"Retry-After": str(seconds)}
        whose = "Your address, without a key," if policy == "address" else f"This {policy}"
        super().__init__(
            f"{whose} has sent {requests_max} requests in a minute, which is the limit. Wait {seconds} seconds. To "
            "follow a job, read its events or send If-None-Match. The operator can raise the limit.",
            requests_max=requests_max,
            seconds=seconds,
        )


class RangeNotSatisfiable(ObscuraError):
    """The requested byte range is outside the content."""

    def __init__(self, size: int) -> None:
        self.headers = {"Content-Range": f"bytes */{size}"}
        super().__init__(f"The content has {size} bytes; request a range within them.", size=size)


def meanings() -> dict[str, str]:
    """Return the meaning of each error code, from the docstring of its class; empty if the code has no class."""
    classes = ObscuraError.__subclasses__()
    for each in classes:
        classes += each.__subclasses__()
    docs = {each.code: getdoc(each) or "" for each in classes if "code" in vars(each)}
    return {code: docs.get(code, "").split("\n\n")[0].replace("\n", " ") for code in sorted(STATUSES)}


def install(app: FastAPI) -> None:
    """Register the error handlers and describe problem documents in the OpenAPI document."""
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    for kind in (ObscuraError, PrivacyError, ClientDisconnect, OperationalError, IntegrityError, DataError, Exception):
        app.add_exception_handler(kind, answer_error)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        schemas = document["components"]["schemas"]
        if "Problem" not in schemas:
            schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas["Problem"] = schema
            describe(document)
            _list_errors(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to extend the document


def _list_errors(document: dict[str, Any]) -> None:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    document["components"]["responses"] = {
        f"Status{status}": {"description": f"`{'`, `'.join(codes)}`", "content": content}
        for status, codes in (_BY_STATUS | {400: ("invalid_request",)}).items()
    }
    for operations in document["paths"].values():
        for method, operation in operations.items():
            statuses = {429, 500, 503} | ({401, 403} if operation.get("security") else set())
            if "parameters" in operation:
                statuses |= {404, 422}
            if "requestBody" in operation:
                statuses |= {400, 404, 413, 415, 422}
            if method != "get":
                statuses.add(409)
            if method == "put":
                statuses.add(408)
            statuses |= {int(status) for status in operation["responses"] if int(status) >= 400}
            references = {status: f"#/components/responses/Status{status}" for status in sorted(statuses)}
            operation["responses"] |= {str(status): {"$ref": reference} for status, reference in references.items()}
    for unused in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(unused, None)


def problem_response(
    request: Request,
    code: str,
    detail: str,
    *,
    status: int | None = None,
    title: str | None = None,
    numbers: Mapping[str, Any] = MappingProxyType({}),
    errors: list[FieldError] | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    status = status or STATUSES.get(code, 500)
    problem = Problem(
        type=TYPE_PREFIX + code if code in STATUSES else "about:blank",
        title=title or TITLES[code],
        status=status,
        detail=detail,
        instance=request.scope["path"],
        code=code,
        errors=errors,
        **{name: value for name, value in numbers.items() if name not in Problem.model_fields},
    )
    all_headers = {**_RETRY_HEADERS.get(code, {}), **headers}
    if status == 401:
        all_headers.setdefault("WWW-Authenticate", 'Bearer realm="obscura"')
    body = problem.model_dump_json(exclude_none=True, fallback=str)
    return Response(body, status_code=status, headers=all_headers, media_type=MEDIA_TYPE)


def answer_error(request: Request, error: Exception) -> Response:
    """Return the problem document of an error. Log details that only the operator may know."""
    facts = {"path": request.scope["path"], "error": type(error).__name__}
    match error:
        case ObscuraError() if error.code in STATUSES:
            if error.code in OPERATOR_ONLY:
                get_logger(__name__).error("operator_needed", code=error.code, message=error.message, **error.numbers)
                return problem_response(request, error.code, OPERATOR_ONLY[error.code])
            headers = getattr(error, "headers", {})
            return problem_response(request, error.code, error.message, numbers=error.numbers, headers=headers)
        case BudgetExceeded():
            return problem_response(request, "insufficient_budget", str(error), numbers=vars(error))
        case InvalidParameter():
            numbers = {"name": error.name, "value": error.value}
            return problem_response(request, "invalid_parameter", str(error), numbers=numbers)
        case PrivacyError():
            return problem_response(request, "invalid_parameter", str(error))
        case ClientDisconnect():
            get_logger(__name__).debug("client_disconnected", **facts)
            return Response(status_code=400)
        case IntegrityError() if is_duplicate(error):
            message = "Another request created the same object at the same time."
            return problem_response(request, "conflict", f"{message} Your request changed nothing; try again.")
        case DataError():
            get_logger(__name__).error("database_error", **facts)
            message = "A value is outside the range that can be stored. Nothing was changed."
            return problem_response(request, "invalid_input", message)
        case OperationalError():  # a lock timeout, or the database is down: nothing was written
            get_logger(__name__).error("database_error", **facts)
            message = "The database did not answer in time. Nothing was changed; try again."
            return problem_response(request, "busy", message)
    name = request.scope.get("obscura.request_id", "")
    get_logger(__name__).error("unexpected_error", **facts, request_id=name)
    # This response is created outside all middleware, which would add these headers.
    headers = SECURITY_HEADERS | {"X-Request-Id": name}
    return problem_response(request, "internal", FailureCode.INTERNAL.message, headers=headers)


def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = []
    for item in error.errors()[:ERRORS_MAX]:  # a small body can contain tens of thousands of errors
        parts = [str(part).replace("~", "~0").replace("/", "~1") for part in item["loc"]]
        message = str(item["msg"])
        if item["type"] == "extra_forbidden":
            known = _field_names(request.scope.get("route"), item["loc"])
            message = f"this field is unknown; the known fields are {', '.join(known)}"
        faults.append(FieldError(pointer=("/" + "/".join(parts))[:POINTER_CHARACTERS_MAX], message=message))
    detail = "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults[:5])
    return problem_response(request, "invalid_request", f"The request is invalid. {detail}.", errors=faults)


def _field_names(route: Any, location: Sequence[int | str]) -> list[str]:
    body = getattr(route, "body_field", None)
    models = list(_models(body.field_info.annotation)) if body is not None else []
    for step in location[1:-1]:
        if isinstance(step, str):
            fields = [model.model_fields[step] for model in models if step in model.model_fields]
            models = [inner for field in fields for inner in _models(field.annotation)]
    return [name for model in models for name in model.model_fields]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    details = {
        404: f"There is nothing at {request.scope['path']}.",
        405: f"{request.method} is not possible at {request.scope['path']}.",
    }
    detail = error.detail if error.detail and error.detail != phrase else details.get(error.status_code, phrase)
    codes = {400: "invalid_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 413: "too_large"}
    codes[503] = "busy"
    code = codes.get(error.status_code, phrase.lower().replace(" ", "_"))
    return problem_response(
        request, code, detail, status=error.status_code, title=phrase, headers=dict(error.headers or {})
    )
