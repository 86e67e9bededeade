"""What goes over the wire. Every field here is on the allow-list of what may leave the private zone.

Responses are built field by field in `service.api.views`; nothing is copied wholesale from a table row, so a new
column (a secret, a lease owner) stays inside until someone writes it down here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Identifier = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_]+$")]
Reason = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
Scope = Literal["admin", "data", "train", "read"]
Unit = Literal["record", "subject"]
FilterName = Literal["gdp", "rdp"]
Visibility = Literal["private", "public"]
UploadFormat = Literal["zip", "npz", "idx"]
SampleFormat = Literal["imagefolder", "npz"]
FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Record(BaseModel):
    """A read-only answer. Unknown fields are ignored, so an older client reads a newer service."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Page(_Record, Generic[Item]):
    """One page of a list; `next_cursor` is null on the last one."""

    items: list[Item]
    next_cursor: str | None = None


# --- accounts -------------------------------------------------------------------------------------------------------


class AccountRequest(_Request):
    """Open an account: a population with one privacy budget. Nothing that changes privacy has a default."""

    name: Name
    owner: Name
    epsilon: float = Field(gt=0, le=1000, description="Lifetime budget of the population.")
    delta: float = Field(gt=0, lt=1, description="Probability that the epsilon bound does not hold; at most 1/n.")
    unit: Unit
    adjacency: Literal["add_remove"]
    filter: FilterName


class BalanceFacts(_Record):
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


class AccountRecord(_Record):
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


class ReasonRequest(_Request):
    """Say why. The reason stands in the ledger for ever."""

    reason: Reason


class LimitChangeRequest(ReasonRequest):
    """Ask for another lifetime limit of an account."""

    epsilon: float = Field(gt=0, le=1000, description="The new limit, at the account's delta.")


class LimitRequestRecord(_Record):
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


class EntryRecord(_Record):
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


class DatasetRequest(_Request):
    """Declare a dataset. Everything declared here is public: it appears in plans, cards and reports."""

    name: Name
    account_id: Identifier | None = Field(default=None, description="Required for private datasets, absent for public.")
    visibility: Visibility
    classes: list[Name] = Field(min_length=1, max_length=1000)
    height: int = Field(ge=1, le=1024)
    width: int = Field(ge=1, le=1024)
    channels: Literal[1, 3]
    records_declared: int = Field(ge=1, description="A public number of records; bounds teachers and 1/delta.")
    subjects_declared: int | None = Field(
        default=None,
        ge=1,
        description="Required where the account's unit is the subject, absent elsewhere: a public number of subjects, "
        "which then bounds teachers and 1/delta. The upload carries subject ids.",
    )


class DatasetRecord(_Record):
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


class PlanRequest(_Request):
    """Ask what a training would do and cost. No data is touched."""

    dataset_id: Identifier
    recipe: Name
    epsilon: float = Field(gt=0, description="Budget offered to this job, at the account's delta.")
    options: dict[str, Any] = Field(default_factory=dict)


class JobRequest(PlanRequest):
    """Ask for a training; its price is held on the account at once."""

    evaluation_dataset_id: Identifier | None = Field(default=None, description="A public dataset to measure against.")


class TrialRequest(_Request):
    """One training of a sweep."""

    options: dict[str, Any] = Field(default_factory=dict)
    epsilon: float | None = Field(default=None, gt=0, description="Of this trial; absent: that of the sweep.")


class SweepRequest(_Request):
    """Ask for a hyper-parameter search; the price of all its trials is held at once, or nothing is."""

    name: Name
    dataset_id: Identifier
    recipe: Name
    epsilon: float | None = Field(default=None, gt=0, description="Of each trial that names none.")
    trials: list[TrialRequest] = Field(min_length=2, max_length=64)
    evaluation_dataset_id: Identifier | None = Field(default=None, description="A public dataset to measure against.")


class StageFacts(_Record):
    """One kind of noisy release in a plan."""

    name: str
    releases: int
    noise_multiplier: float
    price_nano: int


class BudgetFacts(_Record):
    """The account before this job, and what would be left after it."""

    account_id: str
    limit_epsilon: float
    left_epsilon: float
    left_nano: int
    left_after_epsilon: float
    left_after_nano: int
    affordable: bool


class PlanRecord(_Record):
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


class ProgressFacts(_Record):
    """The only things a running job says about itself: steps and prices that were planned from public numbers."""

    stage: str | None = None
    step: int | None = None
    steps: int | None = None
    charged_nano: int = 0
    planned_nano: int = 0
    charged_epsilon: float = 0.0
    planned_epsilon: float = 0.0
    eta_seconds: float | None = None


class FailureFacts(_Record):
    """Why a job did not succeed, from a closed set."""

    code: str
    message: str


class JobRecord(_Record):
    """A requested training or sampling."""

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
    progress: ProgressFacts
    failure: FailureFacts | None
    release_id: str | None = Field(description="The release that a training published or a sampling draws from.")
    sample_id: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class TrialFacts(_Record):
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


class SweepTotals(_Record):
    """Sums over the trials, in nano-units of the account's filter and, together, as epsilons at its delta."""

    price_nano: int
    held_nano: int
    spent_nano: int
    returned_nano: int
    price_epsilon: float
    spent_epsilon: float


class SweepRecord(_Record):
    """A hyper-parameter search. Every trial is paid for; choosing the best by public data costs nothing more."""

    id: str
    name: str
    account_id: str
    dataset_id: str
    recipe: str
    state: str = Field(description="`open` while a trial is queued or running, else `ended`.")
    trials: list[TrialFacts]
    totals: SweepTotals
    best_job_id: str | None = Field(description="The trial with the highest accuracy of the CNN on public data.")
    created_at: datetime


class EventRecord(_Record):
    """The data of one server-sent event."""

    job_id: str
    state: str
    cancel_requested: bool
    progress: ProgressFacts
    failure: FailureFacts | None
    release_id: str | None
    sample_id: str | None


# --- releases, samples, keys ----------------------------------------------------------------------------------------


class HistogramFacts(_Record):
    """How many units each class has, as released: exact counts with noise."""

    classes: list[str]
    counts: list[int] = Field(description="The noisy counts, at least 0 and at most what was declared.")
    noisy_counts: list[int] = Field(description="As the mechanism released them: unbiased, possibly below 0.")
    standard_error: float = Field(description="Of each noisy count.")


class ReleaseRecord(_Record):
    """What a training has published. Sampling a generator costs nothing, for ever."""

    id: str
    kind: str = Field(description="`generator` (images can be drawn from it), `classifier` or `histogram`.")
    job_id: str
    account_id: str
    dataset_id: str
    name: str
    artifact_sha256: str
    summary: dict[str, Any]
    histogram: HistogramFacts | None = Field(description="The counts of a histogram.")
    created_at: datetime


class SampleRequest(_Request):
    """Draw synthetic images from a release. The seed is public: the same request gives the same bytes."""

    count: int = Field(ge=1)
    classes: list[Name] | None = Field(default=None, min_length=1, max_length=1000)
    seed: int = Field(ge=0, lt=2**63)
    format: SampleFormat


class SampleRecord(_Record):
    """A set of synthetic images, ready for download once its job has succeeded."""

    id: str
    release_id: str
    job_id: str
    state: str
    count: int
    classes: list[str] | None
    seed: int
    format: str
    sha256: str | None
    bytes: int | None
    failure: FailureFacts | None
    created_at: datetime


class KeyRequest(_Request):
    """Create an API key."""

    name: Name
    scopes: list[Scope] = Field(min_length=1, max_length=4)


class KeyRecord(_Record):
    """An API key without its secret."""

    id: str
    name: str
    scopes: list[str]
    created_by: str | None = Field(description="Id of the key that made it; null for keys made on the machine itself.")
    created_at: datetime
    revoked_at: datetime | None


class NewKeyRecord(KeyRecord):
    """A fresh API key. The token is shown this once and stored nowhere."""

    token: str


class HealthRecord(_Record):
    """The service runs (live) and can serve (ready); otherwise there is a problem document."""

    status: Literal["ok"]
    version: str
    trainings: Literal["open", "stopped"] | None = Field(
        default=None,
        description="Stopped: a check of the ledger found a fault, and trainings of at least one account wait for an "
        "operator. Everything that was published stays readable. Told by readiness, not by liveness.",
    )


# --- errors ---------------------------------------------------------------------------------------------------------


class FieldError(_Record):
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
