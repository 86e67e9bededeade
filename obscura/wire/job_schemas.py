"""Requests and records of recipes, plans, jobs and sweeps; see `obscura.wire.schemas`."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from obscura.wire.budgets import Unit
from obscura.wire.schemas import (
    AccountId,
    ApiRecord,
    ApiRequest,
    DatasetId,
    DatedRecord,
    Delta,
    Epsilon,
    Identifier,
    LeftEpsilon,
    Minute,
    Name,
    NamedRecord,
    SpentNano,
    Text,
    plain,
)
from obscura.wire.texts import TRIALS_MAX, TRIALS_MIN

OPTIONS = "Options of the recipe, as `GET /v1/recipes` describes them; absent ones take the recipe's own value."
Options = Annotated[dict[str, Any], AfterValidator(plain), Field(description=OPTIONS)]
RecipeName = Annotated[str, Field(description="Name of the training loop; `GET /v1/recipes` has them.")]
CostNano = Annotated[int, Field(description="The cost, in nano-units of mu^2.")]
RecordedOptions = Annotated[dict[str, Any], Field(description=OPTIONS)]
State = Annotated[str, Field(description="`queued`, `running`, `succeeded`, `failed` or `cancelled`.")]

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


class PlanRequest(ApiRequest):
    """Request the plan and cost of a training. Reads no data."""

    dataset_id: Identifier = Field(description="The labelled images.")
    recipe: Text = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    epsilon: Epsilon = Field(description="Budget offered to this job, at the account's delta.")
    options: Options = Field(default_factory=dict)


class PreviewRequest(PlanRequest):
    """Request a preview of a plan on public images. Reserves nothing and reads no private data."""

    stand_in_dataset_id: Identifier | None = Field(
        default=None,
        description="Public dataset with at least as many classes, in place of the private images. By default: written "
        "characters if each class is named by one letter or digit, Fashion-MNIST for other grey images if the worker "
        "has it, else generated patterns.",
    )


class JobRequest(PlanRequest):
    """Request a training; its cost is reserved on the account at once."""

    evaluation_dataset_id: Identifier | None = Field(default=None, description="A public dataset to measure against.")


class CancelRequest(ApiRequest):
    """How to end a job, or the trials of a sweep."""

    discard: bool = Field(default=False, description="Publish nothing, rather than what a training has charged for.")


class StageFacts(ApiRecord):
    """One kind of noisy release in a plan."""

    name: str = Field(description="Name of the stage, unique in its plan.")
    releases: int = Field(description="Noisy releases of this kind.")
    repeats: int = Field(0, description="Further releases that the cost includes, in case a crash requires them.")
    noise_multiplier: float = Field(description="Standard deviation of the noise over the sensitivity.")
    cost_nano: CostNano


class BudgetFacts(ApiRecord):
    """The account before this job, and its remaining budget afterwards."""

    account_id: AccountId
    limit_epsilon: float = Field(description="The lifetime limit, at the account's delta.")
    left_epsilon: LeftEpsilon
    left_nano: int = Field(description="Remaining budget, in nano-units of mu^2.")
    left_after_epsilon: float = Field(description="Budget left by the job, as an epsilon at the account's delta.")
    left_after_nano: int = Field(description="Budget left by the job, in nano-units of mu^2.")
    affordable: bool = Field(description="True if the account could reserve the cost now.")


class PlanRecord(ApiRecord):
    """Plan and cost of a job, computed from public parameters only."""

    recipe: RecipeName
    dataset_id: DatasetId
    epsilon: float = Field(description="The requested epsilon.")
    delta: Delta
    unit: str = Field(description="Whom the guarantee hides: one `record`, or all records of a `subject`.")
    adjacency: str = Field(description="Which datasets count as neighbours: those that differ by one whole unit.")
    cost_nano: CostNano
    cost_epsilon: float = Field(description="Total cost of the stages; at most the requested epsilon.")
    stages: list[StageFacts] = Field(description="The kinds of noisy releases, in their order.")
    facts: dict[str, Any] = Field(description="Public facts about the planned release.")
    notes: list[str] = Field(description="Remarks for people.")
    config: dict[str, Any] = Field(description="Every option of the recipe as it would run.")
    budget: BudgetFacts = Field(description="The account before and after.")


class ProgressFacts(ApiRecord):
    """Progress of a running job: steps and costs planned from public numbers, and nothing else."""

    stage: str | None = Field(default=None, description="The current stage; null before the first.")
    step: int | None = Field(default=None, description="Steps of this stage that are done.")
    steps: int | None = Field(default=None, description="Steps of this stage.")
    charged_nano: int = Field(default=0, description="The charges so far, in nano-units of mu^2; they stay spent.")
    planned_nano: int = Field(default=0, description="The plan's charges, in nano-units of mu^2.")
    charged_epsilon: float = Field(default=0.0, description="The charges so far, as an epsilon at the account's delta.")
    planned_epsilon: float = Field(default=0.0, description="The plan's charges, as an epsilon at the account's delta.")
    eta_seconds: Annotated[float, AfterValidator(lambda seconds: 60.0 * math.ceil(seconds / 60))] | None = Field(
        default=None, description="Estimated seconds until the job ends, rounded up to whole minutes; null if unknown."
    )
    silent_minutes: int | None = Field(default=None, description="Minutes without a sign of life, at least, or null.")


class FailureFacts(ApiRecord):
    """Reason why a job did not succeed, from a closed set."""

    code: str = Field(description="Stable code of the failure.")
    message: str = Field(description="The same for people.")


class OutcomeFacts(ApiRecord):
    """The state of a job."""

    job_id: str = Field(description="The job.")
    state: State
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")


class PreviewRecord(OutcomeFacts, DatedRecord):
    """A plan tried on public images with the declared shape; its state is that of its job."""

    dataset_id: DatasetId
    recipe: RecipeName
    epsilon: float = Field(description="Privacy loss at the account's delta.")
    options: RecordedOptions
    stand_in: str | None = Field(
        description="Public substitute for the private images; null until the preview has ended."
    )
    accuracy: float | None = Field(description="Of a CNN trained on the generated images, on other stand-in images.")
    real_accuracy: float | None = Field(
        description="Of the same CNN trained on the stand-in's own images; null for a recipe that trains a classifier."
    )
    balanced_accuracy: float | None = Field(default=None, description="Mean of the classes' accuracies.")
    accuracy_by_class: dict[str, float] | None = Field(default=None, description="Accuracy for each declared class.")
    chance: float | None = Field(description="Accuracy of guessing.")
    verdict: str | None = Field(description="The forecast in words, with a warning if much is lost in the noise.")
    notes: list[str] = Field(description="Of the plan.")
    finished_at: Minute | None = Field(description="When it ended; null before.")


class ProgressRecord(ApiRecord):
    """Progress of a job."""

    state: State
    cancel_requested: bool = Field(description="True if cancellation was requested.")
    progress: ProgressFacts = Field(description="Progress of the job.")
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")
    release_id: str | None = Field(description="The release that the job published, samples or measures.")
    sample_id: str | None = Field(description="The sample; null for other jobs.")


class JobRecord(ProgressRecord, DatedRecord):
    """A requested training, sampling or evaluation."""

    kind: str
    account_id: str | None = Field(description="The population whose budget pays.")
    dataset_id: str | None = Field(description="The labelled images.")
    evaluation_dataset_id: str | None = Field(description="Public dataset that the release is measured on, if any.")
    recipe: str | None = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    epsilon: float | None = Field(description="Privacy loss at the account's delta.")
    options: RecordedOptions
    cost_nano: CostNano
    cost_epsilon: float = Field(description="The cost, as an epsilon at the account's delta.")
    ended_early: str | None = Field(
        description="Why it charges nothing more: `discarded`; or `cancelled` or a failure code, if it publishes a "
        "partial result."
    )
    publishes_if_cancelled: bool | None = Field(
        description="True if cancelling a training now would publish a release; null if it has ended or costs nothing. "
        "Before its first useful step there is nothing to publish, and its charges stay spent."
    )
    blocked: FailureFacts | None = Field(description="Why it cannot start: `arming_stopped`, `installation_locked`.")
    started_at: Minute | None = Field(description="When its first attempt began; null before.")
    finished_at: Minute | None = Field(description="When it ended; null before.")

    @property
    def finished(self) -> bool:
        """Return whether the job has reached a final state."""
        return self.state in FINAL_STATES


class EventRecord(ProgressRecord):
    """The data of one server-sent event."""

    job_id: str = Field(description="The job.")


# --- sweeps ---------------------------------------------------------------------------------------------------------


class TrialRequest(ApiRequest):
    """One training of a sweep."""

    options: Options = Field(default_factory=dict)
    epsilon: Epsilon | None = Field(default=None, description="Of this trial; absent: that of the sweep.")


class SweepRequest(ApiRequest):
    """Request a hyperparameter sweep. The cost of all trials is reserved atomically, or nothing is reserved."""

    name: Name
    dataset_id: Identifier = Field(description="The labelled images.")
    recipe: Text = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    epsilon: Epsilon | None = Field(default=None, description="Default for trials that state none.")
    trials: list[TrialRequest] = Field(min_length=TRIALS_MIN, max_length=TRIALS_MAX, description="In running order.")
    evaluation_dataset_id: Identifier | None = Field(default=None, description="A public dataset to measure against.")


class TrialFacts(OutcomeFacts):
    """One training of a sweep: its reserved or spent budget, and its quality on public data."""

    options: RecordedOptions
    epsilon: float = Field(description="Privacy loss at the account's delta.")
    reserved_nano: int = Field(description="Still reserved; 0 once the trial has ended.")
    charged_nano: int = Field(description="The charges so far, in nano-units of mu^2; they stay spent.")
    spent_nano: SpentNano
    spent_epsilon: float = Field(description="Spent budget, as an epsilon at the account's delta.")
    accuracy: dict[str, float] | None = Field(description="On the public evaluation dataset, by classifier.")
    balanced_accuracy: dict[str, float] | None = Field(default=None, description="Mean of the classes' accuracies.")
    release_id: str | None = Field(description="The release.")
    incomplete: bool = Field(description="It ended early; its release is a partial result.")

    @property
    def compared_by(self) -> float | None:
        """Return the balanced accuracy of the CNN, or its accuracy if that is missing."""
        return (self.balanced_accuracy or self.accuracy or {}).get("cnn")


class SweepTotals(ApiRecord):
    """Sums over the trials, in nano-units of mu^2 and as epsilons at the account's delta."""

    cost_nano: CostNano
    reserved_nano: int = Field(description="Reserved for jobs under way, in nano-units of mu^2.")
    spent_nano: SpentNano
    returned_nano: int = Field(description="Budget returned to the account, in nano-units of mu^2.")
    cost_epsilon: float = Field(description="The cost, as an epsilon at the account's delta.")
    spent_epsilon: float = Field(description="Spent budget, as an epsilon at the account's delta.")


class SweepRecord(DatedRecord, NamedRecord):
    """A hyperparameter search. Every trial is charged; choosing the best trial on public data is free."""

    account_id: AccountId
    dataset_id: DatasetId
    recipe: RecipeName
    state: str = Field(description="`open` while a trial or its evaluation is queued or running; else `ended`.")
    trials: list[TrialFacts] = Field(description="Its trainings, in the order in which they run.")
    totals: SweepTotals = Field(description="Sums over the trials.")
    best_job_id: str | None = Field(description="Trial with the highest balanced CNN accuracy on public data.")

    @property
    def finished(self) -> bool:
        """Return whether every trial has reached a final state."""
        return self.state == "ended"


# --- recipes --------------------------------------------------------------------------------------------------------


class RecipeRecord(ApiRecord):
    """A recipe of this service with all its options."""

    name: str = Field(description="Its name in the request of a job.")
    title: str = Field(description="Its name for people.")
    publishes: str = Field(description="Kind of its release: `generator`, `classifier` or `histogram`.")
    releases: str = Field(description="The same in words.")
    units: list[Unit] = Field(description="Units of the accounts that may use it, because it bounds their influence.")
    presets: dict[str, dict[str, Any]] = Field(description="Values of the option `preset`; `default` by default.")
    defaults: dict[str, Any] = Field(description="Default of each option.")
    follows: list[str] = Field(
        description="Options whose defaults follow from declared numbers and the budget. A plan shows their values."
    )
    options: dict[str, Any] = Field(description="JSON Schema of the `options` of a request.")


class RecipeList(ApiRecord):
    """Every recipe of the service."""

    items: list[RecipeRecord] = Field(description="The items of this page.")
