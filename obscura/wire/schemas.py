"""Requests and records of the API. These fields are the allow-list of what may leave the private zone.

Responses contain only these fields (`record_of`), so a new column (a secret, a lease owner) stays internal until it is
listed here.
"""

from __future__ import annotations

import math
import operator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from obscura.wire.budgets import DELTA_LEAST, DELTA_MOST, DELTA_USUAL_MOST, EPSILON_LEAST, EPSILON_MOST, Unit
from obscura.wire.texts import NAME_CHARACTERS_MAX, REASON_CHARACTERS_MAX, clean_text, is_readable, normalize_text
from obscura.wire.uploads import KEY_CHECK_CHARACTERS

DEPTH_MAX = 8


def plain(value: Any, depth: int = 0) -> Any:
    """Return a JSON value that both databases can store and the ledger can hash, with text in Unicode form C.

    Raises:
        ValueError: The value nests too deeply, or contains unreadable text (`is_readable`), names equal in Unicode form
            C, infinity, NaN, or integers of more than 63 bits.
    """
    if depth > DEPTH_MAX:
        raise ValueError(f"the value may nest at most {DEPTH_MAX} levels deep")
    match value:
        case str():
            value = normalize_text(value)
            if not is_readable(value):
                raise ValueError("texts must have no control, invisible or direction-changing characters")
        case float() if not math.isfinite(value):
            raise ValueError("numbers must be finite")
        case int() if not -(2**63) <= value < 2**63:
            raise ValueError("whole numbers must have at most 63 bits")
        case dict():
            read = {plain(name, depth): plain(item, depth + 1) for name, item in value.items()}
            if len(read) < len(value):
                raise ValueError("two names differ only in how their accents are stored; rename one of them")
            return read
        case list():
            return [plain(item, depth + 1) for item in value]
    return value


def to_the_minute(moment: datetime) -> datetime:
    """Round a time down to the minute, in UTC, as the service shows times."""
    return moment.astimezone(UTC).replace(second=0, microsecond=0)


def minutes_between(begin: datetime, end: datetime) -> timedelta:
    """Return the time between two moments, each rounded down to the minute first; at least 0.

    Rounding the exact difference would reveal the seconds.
    """
    return max(to_the_minute(end) - to_the_minute(begin), timedelta())


def clean(characters_max: int) -> AfterValidator:
    """Return the validator that cleans a text; see `clean_text`."""
    return AfterValidator(partial(clean_text, characters_max=characters_max))


Item = TypeVar("Item")
RECORDS_MAX = 2**31 - 1  # the largest integer of a database column

Minute = Annotated[datetime, AfterValidator(to_the_minute)]  # the format of every time; see service.times
Text = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX), clean(NAME_CHARACTERS_MAX)]
Name = Annotated[Text, Field(description="Name for people.")]  # a new name; other texts refer to existing things
Identifier = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_]+$")]
Epsilon = Annotated[float, Field(ge=EPSILON_LEAST, le=EPSILON_MOST)]
Delta = Annotated[float, Field(description="The delta of (epsilon, delta)-differential privacy; at most 1/n.")]
DatasetId = Annotated[str, Field(description="Id of the dataset with the labelled images.")]
AccountId = Annotated[str, Field(description="The account whose budget pays.")]
SpentNano = Annotated[int, Field(description="Spent budget, in nano-units of mu^2. It never decreases.")]
LeftEpsilon = Annotated[float, Field(description="Remaining budget at the account's delta. Epsilons do not add up.")]
Reason = Annotated[str, Field(min_length=1, max_length=REASON_CHARACTERS_MAX), clean(REASON_CHARACTERS_MAX)]
KeyCheck = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{KEY_CHECK_CHARACTERS}}}$")]
Scope = Literal["admin", "data", "train", "read", "releases", "audit", "metrics"]
Role = Literal["owner", "steward", "analyst", "auditor", "viewer"]
InvitedRole = Literal["admin", "owner", "steward", "analyst", "auditor", "viewer"]
Visibility = Literal["private", "public"]


class ApiRequest(BaseModel):
    """A request body. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


Record = TypeVar("Record", bound="ApiRecord")


class ApiRecord(BaseModel):
    """A read-only answer. Unknown fields are ignored, so an older client can parse the answers of a newer service."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def record_of(schema: type[Record], row: Any, **differently: Any) -> Record:
    """Return a record of a row's fields.

    `differently` holds values that replace the row's, for fields that the record shows in another form.
    """
    same = {name: getattr(row, name) for name in schema.model_fields if name not in differently}
    return schema(**same, **differently)


class Page(ApiRecord, Generic[Item]):
    """One page of a list; `next_cursor` is null on the last page."""

    items: list[Item] = Field(description="The items of this page.")
    next_cursor: str | None = Field(default=None, description="The `cursor` of the next page; null on the last page.")


class IdRecord(ApiRecord):
    """A record with an id."""

    id: str = Field(description="Its identifier, which never changes.")


class NamedRecord(IdRecord):
    """A record with an id and a name."""

    name: str = Field(description="Name for people.")


class DatedRecord(IdRecord):
    """A record with an id and the time of its creation."""

    created_at: Minute = Field(description="When it was created.")


# --- accounts -------------------------------------------------------------------------------------------------------


class AccountRequest(ApiRequest):
    """Open an account: a population with one privacy budget. Privacy parameters have no defaults."""

    name: Name
    owner: Name = Field(description="Contact for questions about the account.")
    epsilon: Epsilon = Field(description="Lifetime budget of the population.")
    delta: Delta = Field(ge=DELTA_LEAST, le=DELTA_MOST)
    accept_large_delta: bool = Field(
        default=False,
        description=f"Confirms a delta above {DELTA_USUAL_MOST:g}. Better: a delta of at most 1 / (10 x images).",
    )
    unit: Unit = Field(description="The protected unit: one `record`, or all records of a `subject`.")
    adjacency: Literal["add_remove"] = Field(description="Neighbouring datasets differ by one whole unit.")
    project_id: Identifier | None = Field(default=None, description="Its project, forever. Default: the only project.")


class BalanceFacts(ApiRecord):
    """The budget in integer nano-units of mu^2, and as epsilons at the account's delta."""

    capacity_nano: int = Field(description="The whole lifetime budget, in nano-units of mu^2.")
    spent_nano: SpentNano
    reserved_nano: int = Field(description="Reserved for jobs under way, in nano-units of mu^2.")
    left_nano: int = Field(description="Remaining budget, in nano-units of mu^2.")
    limit_epsilon: float = Field(description="The lifetime limit, at the account's delta.")
    spent_epsilon: float = Field(description="Spent budget, as an epsilon at the account's delta.")
    reserved_epsilon: float = Field(description="Reserved for jobs under way, as an epsilon at the account's delta.")
    left_epsilon: LeftEpsilon
    affordable_epsilon: float = Field(description="The largest epsilon that the next job can request.")
    guaranteed_epsilon: float = Field(
        description="Bound on all that the account can publish: its limit, or its spent and reserved budget if larger."
    )
    attacker_certainty_max: float = Field(
        description="An attacker who is 50% sure that a unit was used, or was not, can become at most this sure. The "
        "bound covers everything that the account may ever publish, except with probability delta."
    )

    @property
    def spent_fraction(self) -> float:
        """Return the spent part of the capacity, 0 to 1. Fractions add up; epsilons do not."""
        return min(self.spent_nano / self.capacity_nano, 1.0)

    @property
    def reserved_fraction(self) -> float:
        """Return the reserved part of the capacity, 0 to 1."""
        return min(self.reserved_nano / self.capacity_nano, 1.0 - self.spent_fraction)

    @property
    def left_fraction(self) -> float:
        """Return the remaining part of the capacity, 0 to 1."""
        return self.left_nano / self.capacity_nano


class AccountTerms(DatedRecord, NamedRecord):
    """An account without its balance."""

    owner: str = Field(description="Contact for questions about the account.")
    epsilon: float = Field(description="The lifetime limit; the guarantee is `guaranteed_epsilon` of the balance.")
    delta: Delta
    unit: str = Field(description="The protected unit: one `record`, or all records of a `subject`.")
    adjacency: str = Field(description="Which datasets are neighbours: those that differ by one whole unit.")
    rate: float = Field(
        description="Probability of failure allotted to each unit of mu^2; see /docs/explanation/accounting."
    )
    frozen: bool = Field(description="True if the account accepts no new job.")
    closed: bool = Field(default=False, description="True if it accepts no new data.", exclude_if=operator.not_)
    project_id: str = Field(description="The project that it belongs to.")


class AccountRecord(AccountTerms):
    """A population with one privacy budget."""

    balance: BalanceFacts = Field(description="Limit, spent, reserved and remaining budget.")


class ReasonRequest(ApiRequest):
    """Give a reason, which is stored in the ledger forever."""

    reason: Reason = Field(description="Why, in one line; it stays in the records.")


class LimitChangeRequest(ReasonRequest):
    """Request another lifetime limit of an account."""

    epsilon: Epsilon = Field(description="The new limit, at the account's delta.")


class EntryRecord(ApiRecord):
    """One immutable ledger row with the balances after it: enough to recompute the hash chain."""

    account_id: AccountId
    sequence: int = Field(description="Number of the entry, from 1 without a gap.")
    kind: str = Field(description="`open`, `hold`, `arm`, `charge`, `capture`, `return`, `limit`, `freeze`, `accept`.")
    hold_id: str | None = Field(description="The reservation that the entry changes; null if none.")
    job_id: str | None = Field(description="The job of the reservation.")
    amount_nano: int = Field(description="Amount of the entry, in nano-units of mu^2.")
    capacity_nano: int = Field(description="The whole lifetime budget, in nano-units of mu^2.")
    spent_nano: SpentNano
    reserved_nano: int = Field(description="Reserved for jobs under way, in nano-units of mu^2.")
    details: dict[str, Any] = Field(description="Details that depend on the kind; covered by the entry's hash.")
    previous_hash: str = Field(description="The hash of the previous entry; zeros for the first entry.")
    hash: str = Field(description="SHA-256 over this entry and the hash before it.")
    created_at: datetime = Field(description="Time to the hour, except for the opening of the account.")


# --- datasets -------------------------------------------------------------------------------------------------------


class DatasetRequest(ApiRequest):
    """Declare a dataset. The whole declaration is public: it appears in plans, cards and reports."""

    name: Name
    account_id: Identifier | None = Field(default=None, description="Required for `private`, not allowed for `public`.")
    visibility: Visibility = Field(description="`private`: has an account; `public`: free, but not protected.")
    classes: list[Text] = Field(min_length=1, max_length=1000, description="Class names, in the order of the labels.")
    height: int = Field(ge=1, le=1024, description="Pixels of an image, top to bottom.")
    width: int = Field(ge=1, le=1024, description="Pixels of an image, left to right.")
    channels: Literal[1, 3] = Field(description="1 for grey, 3 for colour.")
    records_declared: int = Field(ge=1, le=RECORDS_MAX, description="Public limit; delta must be at most 1/limit.")
    subjects_declared: int | None = Field(
        default=None,
        ge=1,
        le=RECORDS_MAX,
        description="Public limit on the subjects; delta must be at most 1/limit. Required if the account "
        "protects subjects, otherwise not allowed. If it is set, the upload must contain subject ids.",
    )
    subjects_recognised: bool = Field(
        default=False,
        description="True if an id means the same subject in all datasets of the project that set this. An upload with "
        "a subject of another account is then rejected. If false, ids are deleted after the upload.",
    )


class WithdrawalRequest(ApiRequest):
    """Withdraw subjects from an account. Their ids are not stored."""

    subjects: list[Annotated[int, Field(ge=0, lt=2**63)] | Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        min_length=1, max_length=10_000, description="Ids of the subjects, in the form used in the uploads."
    )
    subjects_key_check: KeyCheck | None = Field(
        default=None, description="Check value of the ids' secret, as in the first upload. Absent for plain ids."
    )
    cancel_jobs: bool = Field(default=False, description="Cancel trainings that need the datasets. Charges stay spent.")


class WithdrawalRecord(ApiRecord):
    """A withdrawal. It does not reveal whether a subject was found, or how many images were destroyed."""

    account_id: str = Field(description="The account from which the subjects are withdrawn.")
    dataset_ids: list[str] = Field(description="Datasets that recognise subjects and have content. All are rewritten.")
    not_recognised: list[str] = Field(description="Other datasets. Delete them, and push again without the subjects.")
    waiting: bool = Field(
        description="True if the rewriting waits for trainings to stop. Until then, the datasets are `withdrawing`."
    )


class DatasetRecord(DatedRecord, NamedRecord):
    """A declared set of labelled images. It omits the digest and the size of private content."""

    account_id: str | None = Field(description="The account whose budget pays.")
    visibility: str = Field(description="`private`: belongs to an account; `public`: free, but not protected.")
    classes: list[str] = Field(description="Names of the classes, in the order of their labels.")
    height: int = Field(description="Pixels of an image, top to bottom.")
    width: int = Field(description="Pixels of an image, left to right.")
    channels: int = Field(description="1 for grey, 3 for colour.")
    records_declared: int = Field(description="Public upper bound on the number of records.")
    subjects_declared: int | None = Field(description="Public limit on the subjects; null if records are protected.")
    subjects_recognised: bool = Field(
        default=False, exclude_if=operator.not_, description="True if an id means the same subject in other datasets."
    )
    state: str = Field(
        description="`declared`, `receiving`, `ready`, `withdrawing` (being rewritten without subjects), `failed`, "
        "`deleting` or `deleted`."
    )
    joined: bool = Field(
        description="True if another account already had some of its images. The dataset then belongs to that account."
    )
    format: str | None = Field(description="File format of the upload.")
    content_sha256: str | None = Field(description="Null for private datasets.")
    content_bytes: int | None = Field(description="Null for private datasets.")
    failure_code: str | None = Field(description="`upload_refused`, `key_missing` (for decryption) or null.")
    ready_at: Minute | None = Field(description="Minute in which its content was accepted; null before.")


# --- health and errors -----------------------------------------------------------------------------------------------


class HealthRecord(ApiRecord):
    """State of a service that runs (live) or can serve requests (ready). If not, the answer is a problem document."""

    status: Literal["ok"] = Field(description="`ok`.")
    version: str = Field(description="Version of the service.")
    trainings: Literal["open", "stopped"] | None = Field(
        default=None,
        description="`stopped`: a check of the ledger found a fault, and trainings of at least one account wait for an "
        "operator. Releases stay readable. Only readiness shows this.",
    )
    unavailable: list[str] | None = Field(
        default=None,
        description="External services that do not answer: `storage`, `sign-in provider`. Requests that need such a "
        "service get 503. Absent when all answer.",
    )


class FieldError(ApiRecord):
    """One invalid field of a request. Its value is never echoed."""

    pointer: str = Field(description="The invalid field, as a JSON pointer.")
    message: str = Field(description="The fault, for people.")


class Problem(BaseModel):
    """An RFC 9457 problem document, with the numbers of the error as extra members."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="strings")

    type: str = Field(description="Page that documents the code, relative to the service's address.")
    title: str = Field(description="The kind of error in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="The problem and its remedy, for people.")
    instance: str = Field(description="Path of the request.")
    code: str = Field(description="Stable name of the error, for programs.")
    errors: list[FieldError] | None = Field(default=None, description="The invalid parts of the request, if any.")
