"""Errors of the SDK. `error_of` converts the service's problem documents to ApiError and its subclasses.

PackingError and its subclasses stop a push. Their messages stay on the owner's machine, so they may name files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from obscura.wire.schemas import DatasetRecord, FieldError, Problem
from obscura.wire.wording import show_epsilon, visible

if TYPE_CHECKING:
    import httpx  # the server, which imports this file, loads no network library

__all__ = [
    "AlreadyTrained", "ApiError", "AuthError", "BrokenImages", "BudgetError", "ChoiceNeeded", "ConnectionFailed",
    "ConnectionSettingsError", "DownloadCorrupt", "JobFailed", "JoinedAccount", "LocalError", "MoreThanStated",
    "NoRoom", "NoSuchName", "NotFoundError", "ObscuraClientError", "PackingError", "RequestError", "UnexpectedAnswer",
    "WaitTimeout",
]  # fmt: skip

NAMES_SHOWN_MAX = 5
ANSWER_CHARACTERS_MAX = 200  # of an unexpected answer, in the error message


class ObscuraClientError(Exception):
    """Base class of the SDK's errors."""


class ConnectionFailed(ObscuraClientError):
    """The service could not be reached, or the connection broke repeatedly.

    Attributes:
        url: Address of the service.
        refused: True if nothing listens at the address. Otherwise the service may be slow.
    """

    def __init__(self, url: str, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.url = url
        self.refused = refused


class ConnectionSettingsError(ObscuraClientError):
    """The address, the key, or an environment variable for proxies or certificates is invalid."""


class DownloadCorrupt(ObscuraClientError):
    """SHA-256, size, entries or names of a download are not those that the service announced. No file was kept."""


class NoRoom(ObscuraClientError):
    """The disk is too full for a download. Nothing was downloaded."""


class LocalError(ObscuraClientError):
    """An error found on this machine. `str(error)` names Python arguments; `error.args[0]` names flags and commands."""

    def __str__(self) -> str:
        return in_python(str(self.args[0]))


class NoSuchName(LocalError):
    """No resource has this name or id, or several resources have this name."""


class JoinedAccount(ObscuraClientError):
    """Another account already had some of the uploaded images, so the dataset, which is ready, now belongs to it.

    Attributes:
        dataset_id: Id of the dataset.
        account_id: The account that pays for trainings on it.
    """

    def __init__(self, dataset: DatasetRecord, account_name: str) -> None:
        super().__init__(
            f"Account {account_name} already has some of these images, so dataset {dataset.name} ({dataset.id}) joined "
            f"it. That account pays for trainings on it. To go on, train on {dataset.id}. Otherwise delete the dataset."
        )
        self.dataset_id = dataset.id
        self.account_id = dataset.account_id


class AlreadyTrained(ObscuraClientError):
    """A training of the dataset with the same recipe, options and epsilon exists. Nothing was spent.

    Attributes:
        job_id: Its job.
        release_id: Its release, which is free to use; None while it trains.
    """

    def __init__(self, job_id: str, release_id: str | None, epsilon: float) -> None:
        state, get = "exists", f'service.releases.get("{release_id}")'
        if release_id is None:
            state, get = "is under way", f'service.jobs.get("{job_id}").wait().release()'
        super().__init__(
            f"The same training {state}, with this recipe and options, at epsilon {show_epsilon(epsilon, up=True)}. "
            f"To use its release for free: {get}. To train and pay again, add again=True."
        )
        self.job_id = job_id
        self.release_id = release_id


class WaitTimeout(ObscuraClientError):
    """The timeout passed while the job was still running. The job continues."""


class JobFailed(ObscuraClientError):
    """A job failed, was cancelled or published no release. `code` is the failure code, or else the job's state."""

    def __init__(self, job_id: str, state: str, code: str, message: str) -> None:
        super().__init__(f"Job {job_id} {state}: {message}")
        self.job_id = job_id
        self.state = state
        self.code = code


class ApiError(ObscuraClientError):
    """The service answered with a problem document (RFC 9457).

    Attributes:
        code: Stable name for programs.
        detail: Sentence for people.
        numbers: Extra members of the document, such as `left_epsilon`.
        errors: Invalid fields of the request.
    """

    def __init__(self, code: str, status: int, detail: str, numbers: dict[str, Any], errors: list[FieldError]) -> None:
        super().__init__(detail)
        self.code = code
        self.status = status
        self.detail = detail
        self.numbers = numbers
        self.errors = errors


class UnexpectedAnswer(ApiError):
    """Something other than an Obscura service answered, or the answer does not match the API's schema."""

    def __init__(self, route: str, response: httpx.Response, because: str = "") -> None:
        kind = content_type(response) or "no content type"
        headers = (name for name in ("Server", "Via", "Location") if name in response.headers)
        facts = [f"{response.status_code} with {kind} {because}".rstrip()]
        facts += [f"{name} {response.headers[name]}" for name in headers]
        described = visible("; ".join(facts))[:ANSWER_CHARACTERS_MAX]
        detail = (
            f"{route} did not answer like an Obscura service. The answer was {described}. Check the address and the "
            "proxy."
        )
        super().__init__("unexpected_answer", response.status_code, detail, {}, [])


class BudgetError(ApiError):
    """The account cannot pay; `numbers` holds the requested, remaining and affordable budget."""


class AuthError(ApiError):
    """The token is missing, unknown, revoked or expired, or lacks the required scope."""


class NotFoundError(ApiError):
    """The resource does not exist, or no longer exists."""


class RequestError(ApiError):
    """The request is invalid, conflicts with the resource's state, or is too large."""


def content_type(response: httpx.Response) -> str:
    """Return the media type of an answer without its parameters; "" if the answer has none."""
    return str(response.headers.get("Content-Type", "")).partition(";")[0].strip()


BUDGET_CODES = frozenset({"insufficient_budget", "account_frozen", "hold_exhausted"})


def error_of(response: httpx.Response, route: str) -> ApiError:
    """Return the typed error of a response with status 400 or above, whose body has been read."""
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


class PackingError(LocalError):
    """The folder or file cannot be pushed; the message states what is accepted."""


class ChoiceNeeded(PackingError):
    """Only the owner can decide something about the images. Nothing was declared or sent.

    Attributes:
        flags: Flags to add to the command, for example `("--skip-broken",)`.
    """

    def __init__(self, why: str, flags: Sequence[str]) -> None:
        self.flags = tuple(flags)
        shell, python = [], []
        for flag in flags:
            name, _, value = flag.partition(" ")
            shell.append(f"{name} {shlex.quote(value)}" if value else name)
            python.append(_argument(name, value or "True"))
        super().__init__(f"{why} Add {' '.join(shell)}.")
        self._python = f"{in_python(why)} Add {', '.join(python)}."

    def __str__(self) -> str:
        return self._python


class MoreThanStated(PackingError):
    """There are more records or subjects than stated. Nothing was declared or sent."""


class BrokenImages(ChoiceNeeded):
    """Some images cannot be read, and --skip-broken was not set.

    Attributes:
        count: Number of unreadable images.
        names: The first few file names, each with the reason.
    """

    def __init__(self, why: str, count: int, names: Sequence[str]) -> None:
        self.count, self.names = count, tuple(names)
        super().__init__(f"{why}. Repair them, or leave them out.", ["--skip-broken"])


_VALUE = r"\d[\d.,-]*\d|\d|[A-Z]+(?:,[A-Z]+)*\b|auto\b|none\b|[\w-]+\.(?:csv|txt)"  # of a flag, in a sentence
_FLAG = re.compile(rf"(--[a-z]+(?:-[a-z]+)*)(?: ({_VALUE}))?")
_COMMAND = re.compile(r"obscura (\w+) (\w+)((?: [A-Z]+\b| --[a-z-]+ \w+)*)")


def in_python(text: str) -> str:
    """Replace `--at-most 2000` by `at_most=2000`, and commands by calls, in a message."""

    def call(command: re.Match[str]) -> str:
        noun, verb, rest = command.groups()
        words = re.findall(r"(--\S+) (\w+)|(\w+)", rest)
        arguments = ", ".join(plain or _argument(flag, value) for flag, value, plain in words)
        return f"service.{noun}." + (f"get({arguments}).delete()" if verb == "delete" else f"{verb}({arguments})")

    return _FLAG.sub(lambda flag: _argument(flag[1], flag[2]), _COMMAND.sub(call, text))


def _argument(flag: str, value: str | None) -> str:
    name = flag.removeprefix("--").replace("-", "_")
    if value is None:
        return f"`{name}`"
    literal = value.isdecimal() or value == "True" or (value.isalpha() and value.isupper())  # or a placeholder
    return f"{name}={value}" if literal else f'{name}="{value}"'


class Unreadable(Exception):
    """One image cannot be read; the message states the reason in a few words."""


def some(names: Sequence[str], count: int | None = None) -> str:
    """List the first names and the number of others: "a, b and 3 more". `count` is the total, if `names` has fewer."""
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    more = (len(names) if count is None else count) - min(len(names), NAMES_SHOWN_MAX)
    return f"{shown} and {more:,} more" if more > 0 else shown
