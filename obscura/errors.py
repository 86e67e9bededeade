"""Typed errors made from problem documents."""

from __future__ import annotations

from typing import Any

import httpx
from pydantic import ValidationError

from obscura.wire.schemas import FieldError, Problem


class ObscuraClientError(Exception):
    """Base of everything the SDK raises on purpose."""


class ConnectionFailed(ObscuraClientError):
    """The service could not be reached, or the connection broke more often than the retries allow.

    Attributes:
        url: Of the service.
    """

    def __init__(self, url: str, message: str) -> None:
        super().__init__(message)
        self.url = url


class DownloadCorrupt(ObscuraClientError):
    """The downloaded bytes do not have the SHA-256 that the service recorded."""


class NoSuchName(ObscuraClientError):
    """Nothing has this name or id, or several have the name."""


class WaitTimeout(ObscuraClientError):
    """The job was still running when the caller's patience ended. The job goes on."""


class JobFailed(ObscuraClientError):
    """A job ended as failed or cancelled.

    Attributes:
        job_id: The job.
        state: "failed" or "cancelled".
        code: Failure code of the closed set, or the state of a job that was cancelled.
    """

    def __init__(self, job_id: str, state: str, code: str, message: str) -> None:
        super().__init__(f"Job {job_id} {state}: {message}")
        self.job_id = job_id
        self.state = state
        self.code = code


class ApiError(ObscuraClientError):
    """The service answered with a problem document.

    Attributes:
        code: Stable machine name of the error.
        status: HTTP status.
        detail: Sentence for people.
        numbers: The document's extra members, such as `left_epsilon`.
        errors: Invalid fields, when the request itself was malformed.
    """

    def __init__(self, code: str, status: int, detail: str, numbers: dict[str, Any], errors: list[FieldError]) -> None:
        super().__init__(detail)
        self.code = code
        self.status = status
        self.detail = detail
        self.numbers = numbers
        self.errors = errors


class BudgetError(ApiError):
    """The account cannot pay; `numbers` holds what was requested, what is left and what is affordable."""


class AuthError(ApiError):
    """The token is missing, unknown, revoked or expired, or lacks the scope."""


class NotFoundError(ApiError):
    """There is no such resource."""


class RequestError(ApiError):
    """The request is invalid, conflicts with the resource's state, or is too large."""


BUDGET_CODES = frozenset({"insufficient_budget", "account_frozen", "hold_exhausted"})


def error_of(response: httpx.Response) -> ApiError:
    """Build the typed error of a response with status 400 or above. The body must have been read."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        detail = f"The server answered {response.status_code} without a problem document. Is this an Obscura service?"
        return ApiError("unexpected_answer", response.status_code, detail, {}, [])
    kind: type[ApiError] = ApiError
    if problem.code in BUDGET_CODES:
        kind = BudgetError
    elif problem.status in (401, 403):
        kind = AuthError
    elif problem.status in (404, 410):
        kind = NotFoundError
    elif 400 <= problem.status < 500:
        kind = RequestError
    return kind(problem.code, problem.status, problem.detail, dict(problem.model_extra or {}), problem.errors or [])
