"""Typed errors made from problem documents."""

from __future__ import annotations

from typing import Any

import httpx
from pydantic import ValidationError

from obscura.wire.schemas import FieldError, Problem
from obscura.wire.wording import visible

ANSWER_CHARACTERS_MAX = 200  # of an unexpected answer, in an error's message


class ObscuraClientError(Exception):
    """Base of everything the SDK raises on purpose."""


class ConnectionFailed(ObscuraClientError):
    """The service could not be reached, or the connection broke more often than the retries allow.

    Attributes:
        url: Of the service.
        refused: Whether nothing listens at the address. Otherwise the service may be slow.
    """

    def __init__(self, url: str, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.url = url
        self.refused = refused


class ConnectionSettingsError(ObscuraClientError):
    """The address, the key, or a variable of the environment for proxies or certificates cannot be used."""


class DownloadCorrupt(ObscuraClientError):
    """A download is not what the service announced: its SHA-256, size, entries or names differ from what they may be.

    Nothing of it was kept.
    """


class NoRoom(ObscuraClientError):
    """The disk has less room than a download needs; nothing was downloaded."""


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


class UnexpectedAnswer(ApiError):
    """Something other than an Obscura service answered, or the service broke its contract.

    Args:
        route: The address that was asked, and the proxy on the way to it.
        response: The answer.
        because: What is wrong with it, after its status and content type.
    """

    def __init__(self, route: str, response: httpx.Response, because: str = "") -> None:
        kind = response.headers.get("Content-Type", "").partition(";")[0] or "no content type"
        told = [f"{response.status_code} with {kind} {because}".rstrip()]
        told += [
            f"{name} {response.headers[name]}" for name in ("Server", "Via", "Location") if name in response.headers
        ]
        described = visible("; ".join(told))[:ANSWER_CHARACTERS_MAX]
        detail = (
            f"{route} did not answer as an Obscura service does, but: {described}. Check the address and the proxy."
        )
        super().__init__("unexpected_answer", response.status_code, detail, {}, [])


class BudgetError(ApiError):
    """The account cannot pay; `numbers` holds what was requested, what is left and what is affordable."""


class AuthError(ApiError):
    """The token is missing, unknown, revoked or expired, or lacks the scope."""


class NotFoundError(ApiError):
    """There is no such resource."""


class RequestError(ApiError):
    """The request is invalid, conflicts with the resource's state, or is too large."""


BUDGET_CODES = frozenset({"insufficient_budget", "account_frozen", "hold_exhausted"})


def error_of(response: httpx.Response, route: str) -> ApiError:
    """Build the typed error of a response with status 400 or above. The body must have been read."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return UnexpectedAnswer(route, response)
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
