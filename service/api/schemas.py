"""What goes over the wire. Every field here is on the allow-list of what may leave the private zone.

Responses are built from these fields alone (`service.api.views.record`); nothing is copied wholesale from a table row,
so a new column (a secret, a lease owner) stays inside until someone writes it down here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from privacy.accounting.bounds import DELTA_LEAST, DELTA_MOST, EPSILON_LEAST, EPSILON_MOST
from service.api.plain import plain

Item = TypeVar("Item")
RECORDS_MAX = 2**31 - 1  # what a column of the database holds

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Identifier = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_]+$")]
Epsilon = Annotated[float, Field(ge=EPSILON_LEAST, le=EPSILON_MOST)]
Options = Annotated[dict[str, Any], AfterValidator(plain)]
Reason = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
Scope = Literal["admin", "data", "train", "read"]
Unit = Literal["record", "subject"]
FilterName = Literal["gdp", "rdp"]
Visibility = Literal["private", "public"]
UploadFormat = Literal["zip", "npz", "idx"]
SampleFormat = Literal["imagefolder", "npz"]
FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


class ApiRequest(BaseModel):
    """A body that is sent. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ApiRecord(BaseModel):
    """A read-only answer. Unknown fields are ignored, so an older client reads a newer service."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Page(ApiRecord, Generic[Item]):
    """One page of a list; `next_cursor` is null on the last one."""

    items: list[Item]
    next_cursor: str | None = None


# --- accounts -------------------------------------------------------------------------------------------------------


class AccountRequest(ApiRequest):
    """Open an account: a population with one privacy budget. Nothing that changes privacy has a default."""

    name: Name
    owner: Name
    epsilon: Epsilon = Field(description="Lifetime budget of the population.")
    delta: float = Field(
        ge=DELTA_LEAST, le=DELTA_MOST, description="Of (epsilon, delta)-differential privacy; at most 1/n."
    )
    unit: Unit
    adjacency: Literal["add_remove"]
    filter: FilterName


class BalanceFacts(ApiRecord):
    """The budget in integer nano-units of the account's filter, and as epsilons at the account's delta."""

    capacity_nano: int
    spent_nano: int
    held_nano: int
    left_nano: int
    limit_epsilon: float
    spent_epsilon: float
    held_epsilon: float
    left_epsilon: float
    affordable_epsilon: float = Field(description="The largest epsilon that a next job may ask for.")
    sure_at_most: float = Field(
        description="How sure somebody who was 50% sure that a unit was used, or was not, can become by studying all "
        "that the account may ever publish, except with probability delta."
    )


class AccountRecord(ApiRecord):
    """A population with one privacy budget."""

    id: str
    name: str
    owner: str
    epsilon: float
    delta: float
    unit: str
    adjacency: str
    filter: str
    filter_order: float | None
    frozen: bool
    balance: BalanceFacts
    created_at: datetime


class ReasonRequest(ApiRequest):
    """Say why. The reason stands in the ledger for ever."""

    reason: Reason


class LimitChangeRequest(ReasonRequest):
    """Ask for another lifetime limit of an account."""

    epsilon: Epsilon = Field(description="The new limit, at the account's delta.")


class LimitRequestRecord(ApiRecord):
    """One admin's wish to raise a limit, and what a second admin decided."""

    id: str
    account_id: str
    epsilon_before: float = Field(description="The limit that the raise was asked for against.")
    epsilon: float = Field(description="The limit asked for.")
    reason: str
    state: str = Field(description="`pending`, `approved`, `declined`, or `expired` when nobody decided in time.")
    requested_by: str = Field(description="Id of the key that asked.")
    requested_at: datetime
    expires_at: datetime
    decided_by: str | None = Field(description="Id of the key that approved or declined.")
    decided_at: datetime | None
    requested_by_admin: str = Field(description="Id of the person who asked.")
    decided_by_admin: str | None = Field(
        description="Id of the person who approved or declined; null for what was decided when keys were nobody's."
    )


class EntryRecord(ApiRecord):
    """One immutable ledger row, with the account's balances after it: enough to recompute the hash chain."""

    account_id: str
    sequence: int
    kind: str
    hold_id: str | None
    job_id: str | None
    amount_nano: int
    capacity_nano: int
    spent_nano: int
    held_nano: int
    details: dict[str, Any]
    previous_hash: str
    hash: str
    created_at: datetime


# --- datasets -------------------------------------------------------------------------------------------------------


class DatasetRequest(ApiRequest):
    """Declare a dataset. Everything declared here is public: it appears in plans, cards and reports."""

    name: Name
    account_id: Identifier | None = Field(default=None, description="Required for private datasets, absent for public.")
    visibility: Visibility
    classes: list[Name] = Field(min_length=1, max_length=1000)
    height: int = Field(ge=1, le=1024)
    width: int = Field(ge=1, le=1024)
    channels: Literal[1, 3]
    records_declared: int = Field(
        ge=1, le=RECORDS_MAX, description="A public number of records; bounds teachers and 1/delta."
    )
    subjects_declared: int | None = Field(
        default=None,
        ge=1,
        le=RECORDS_MAX,
        description="Required where the account's unit is the subject, absent elsewhere: a public number of subjects, "
        "which then bounds teachers and 1/delta. The upload carries subject ids.",
    )


class DatasetRecord(ApiRecord):
    """A declared set of labelled images. Digest and size of private content are not shown."""

    id: str
    name: str
    account_id: str | None
    visibility: str
    classes: list[str]
    height: int
    width: int
    channels: int
    records_declared: int
    subjects_declared: int | None
    state: str
    joined: bool = Field(description="Images of it were known, so it belongs to the account that had them first.")
    format: str | None
    content_sha256: str | None = Field(description="Public datasets only.")
    content_bytes: int | None = Field(description="Public datasets only.")
    failure_code: str | None
    created_at: datetime
    ready_at: datetime | None


# --- plans and jobs -------------------------------------------------------------------------------------------------


class PlanRequest(ApiRequest):
    """Ask what a training would do and cost. No data is touched."""

    dataset_id: Identifier
    recipe: Name
    epsilon: Epsilon = Field(description="Budget offered to this job, at the account's delta.")
    options: Options = Field(default_factory=dict)


class JobRequest(PlanRequest):
    """Ask for a training; its price is held on the account at once."""

    evaluation_dataset_id: Identifier | None = Field(default=None, description="A public dataset to measure against.")


class CancelRequest(ApiRequest):
    """How to end a job, or the trials of a sweep."""

    discard: bool = Field(
        default=False,
        description="Publish nothing. Without it, a training that has charged publishes what it has, as incomplete.",
    )


class TrialRequest(ApiRequest):
    """One training of a sweep."""

    options: Options = Field(default_factory=dict)
    epsilon: Epsilon | None = Field(default=None, description="Of this trial; absent: that of the sweep.")


class SweepRequest(ApiRequest):
    """Ask for a hyper-parameter search; the price of all its trials is held at once, or nothing is."""

    name: Name
    dataset_id: Identifier
    recipe: Name
    epsilon: Epsilon | None = Field(default=None, description="Of each trial that names none.")
    trials: list[TrialRequest] = Field(min_length=2, max_length=64)
    evaluation_dataset_id: Identifier | None = Field(default=None, description="A public dataset to measure against.")


class StageFacts(ApiRecord):
    """One kind of noisy release in a plan."""

    name: str
    releases: int
    noise_multiplier: float
    price_nano: int


class BudgetFacts(ApiRecord):
    """The account before this job, and what would be left after it."""

    account_id: str
    limit_epsilon: float
    left_epsilon: float
    left_nano: int
    left_after_epsilon: float
    left_after_nano: int
    affordable: bool


class PlanRecord(ApiRecord):
    """What a job would do and cost, computed from public parameters only."""

    recipe: str
    dataset_id: str
    epsilon: float = Field(description="Asked for.")
    delta: float
    unit: str
    adjacency: str
    filter: str
    price_nano: int
    price_epsilon: float = Field(description="What the stages cost together; at most the epsilon asked for.")
    stages: list[StageFacts]
    buys: dict[str, Any]
    notes: list[str]
    config: dict[str, Any]
    budget: BudgetFacts


class ProgressFacts(ApiRecord):
    """The only things a running job says about itself: steps and prices that were planned from public numbers."""

    stage: str | None = None
    step: int | None = None
    steps: int | None = None
    charged_nano: int = 0
    planned_nano: int = 0
    charged_epsilon: float = 0.0
    planned_epsilon: float = 0.0
    eta_seconds: float | None = Field(
        default=None, description="Roughly until the job ends, from planned work; null while its pace is not known."
    )


class FailureFacts(ApiRecord):
    """Why a job did not succeed, from a closed set."""

    code: str
    message: str


class JobRecord(ApiRecord):
    """A requested training, sampling or evaluation."""

    id: str
    kind: str
    state: str
    account_id: str | None
    dataset_id: str | None
    evaluation_dataset_id: str | None
    recipe: str | None
    epsilon: float | None
    options: dict[str, Any]
    price_nano: int
    price_epsilon: float
    cancel_requested: bool
    ended_early: str | None = Field(
        description="Why a training charges no more and publishes what it has: `cancelled`, or the code of a failure. "
        "`discarded`: it publishes nothing."
    )
    publishes_if_cancelled: bool | None = Field(
        description="Whether cancelling a training now would publish what it has paid for; null where it has ended or "
        "costs nothing. Before its first useful step there is nothing to publish, and what was charged stays spent."
    )
    progress: ProgressFacts
    failure: FailureFacts | None
    release_id: str | None = Field(
        description="The release that a training published, a sampling draws from, or an evaluation measures."
    )
    sample_id: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class TrialFacts(ApiRecord):
    """One training of a sweep: what it holds or has spent, and how good its release is on public data."""

    job_id: str
    state: str
    options: dict[str, Any]
    epsilon: float
    held_nano: int = Field(description="Still reserved; 0 once the trial has ended.")
    charged_nano: int
    spent_nano: int
    spent_epsilon: float
    accuracy: dict[str, float] | None = Field(description="On the public evaluation dataset, by classifier.")
    failure: FailureFacts | None
    release_id: str | None
    incomplete: bool = Field(description="It ended early; its release is what had been made by then.")


class SweepTotals(ApiRecord):
    """Sums over the trials, in nano-units of the account's filter and, together, as epsilons at its delta."""

    price_nano: int
    held_nano: int
    spent_nano: int
    returned_nano: int
    price_epsilon: float
    spent_epsilon: float


class SweepRecord(ApiRecord):
    """A hyper-parameter search. Every trial is paid for; choosing the best by public data costs nothing more."""

    id: str
    name: str
    account_id: str
    dataset_id: str
    recipe: str
    state: str = Field(
        description="`open` while a trial, or the evaluation of one, is queued or running; else `ended`."
    )
    trials: list[TrialFacts]
    totals: SweepTotals
    best_job_id: str | None = Field(description="The trial with the highest accuracy of the CNN on public data.")
    created_at: datetime


class EventRecord(ApiRecord):
    """The data of one server-sent event."""

    job_id: str
    state: str
    cancel_requested: bool
    progress: ProgressFacts
    failure: FailureFacts | None
    release_id: str | None
    sample_id: str | None


# --- keys -----------------------------------------------------------------------------------------------------------


class KeyRequest(ApiRequest):
    """Create an API key."""

    name: Name
    scopes: list[Scope] = Field(min_length=1, max_length=4)


class KeyRecord(ApiRecord):
    """An API key without its secret."""

    id: str
    name: str
    scopes: list[str]
    admin_id: str | None = Field(description="The person whose key it is; null for keys without the scope `admin`.")
    created_by: str | None = Field(description="Id of the key that made it; null for one that its owner made.")
    created_at: datetime
    revoked_at: datetime | None


class NewKeyRecord(KeyRecord):
    """A fresh API key. The token is shown this once and stored nowhere."""

    token: str


class HealthRecord(ApiRecord):
    """The service runs (live) and can serve (ready); otherwise there is a problem document."""

    status: Literal["ok"]
    version: str
    trainings: Literal["open", "stopped"] | None = Field(
        default=None,
        description="Stopped: a check of the ledger found a fault, and trainings of at least one account wait for an "
        "operator. Everything that was published stays readable. Told by readiness, not by liveness.",
    )


# --- errors ---------------------------------------------------------------------------------------------------------


class FieldError(ApiRecord):
    """One invalid part of a request. The value itself is never echoed."""

    pointer: str
    message: str


class Problem(BaseModel):
    """An RFC 9457 problem document. Numbers that belong to the error follow as extra members."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[FieldError] | None = None
