"""Requests and records of recipes, plans, jobs and sweeps; see `obscura.wire.schemas`."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from obscura.wire import schemas
from obscura.wire.budgets import Unit
from obscura.wire.texts import TRIALS_MAX, TRIALS_MIN

OPTIONS = "Options of the recipe; see `GET /v1/recipes`. Others follow from preset and budget, or are defaults."
Options = Annotated[dict[str, Any], AfterValidator(schemas.plain), Field(description=OPTIONS)]
RecipeName = Annotated[str, Field(description="Name of the recipe; `GET /v1/recipes` lists all.")]
CostNano = Annotated[int, Field(description="The cost, in nano-units of mu^2.")]
RecordedOptions = Annotated[dict[str, Any], Field(description=OPTIONS)]
State = Annotated[str, Field(description="`queued`, `running`, `succeeded`, `failed` or `cancelled`.")]

RECIPE_USUAL = "moments"  # the first of `privacy.plans.registry`, which recommends it
NEW_ACCOUNT = "new"  # the account of a dataset whose account does not exist yet
FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


class TrainingRequest(schemas.ApiRequest):
    """A training: its dataset, recipe, budget and options."""

    dataset_id: schemas.Identifier = Field(description="Id of the dataset with the labelled images.")
    recipe: schemas.Text = Field(RECIPE_USUAL, description="Name of the recipe; `GET /v1/recipes` lists all.")
    epsilon: schemas.Epsilon = Field(description="Budget offered to this job, at the account's delta.")
    options: Options = Field(default_factory=dict)


class PlanRequest(TrainingRequest):
    """Request the plan and cost of a training. Reads no data."""

    expected_units: int | None = Field(
        default=None,
        ge=1,
        le=schemas.RECORDS_MAX,
        description="Records (or subjects, if the account protects them) that you expect, for the forecast alone; not "
        "stored. By default, as many as the dataset's limit.",
    )


class FirstPlanRequest(schemas.ApiRequest):
    """Plan a training on an account and a dataset that do not exist yet. Nothing is opened, declared or stored."""

    account: schemas.AccountRequest = Field(description="The account to open.")
    dataset: schemas.DatasetRequest = Field(description=f"The declaration. Its `account_id` is `{NEW_ACCOUNT}`.")
    recipe: schemas.Text = Field(RECIPE_USUAL, description="Name of the recipe; `GET /v1/recipes` lists all.")
    epsilon: schemas.Epsilon = Field(description="Budget offered to this job, at the account's delta.")
    options: Options = Field(default_factory=dict)


class PreviewRequest(TrainingRequest):
    """Request a preview of a plan on public images. Reserves nothing and reads no private data."""

    stand_in_dataset_id: schemas.Identifier | None = Field(
        default=None,
        description="Public dataset that replaces the private images; it needs at least as many classes. By default, "
        "written characters if each class name is one letter or digit; otherwise Fashion-MNIST for grey images, if the "
        "worker has it; otherwise generated patterns.",
    )


class JobRequest(TrainingRequest):
    """Request a training; its cost is reserved on the account at once."""

    evaluation_dataset_id: schemas.Identifier | None = Field(default=None, description="Public dataset to evaluate on.")


class CancelRequest(schemas.ApiRequest):
    """Cancel a job, or the trials of a sweep."""

    discard: bool = Field(default=False, description="Publish nothing, not even the part that has been paid for.")


class StageFacts(schemas.ApiRecord):
    """One stage of a plan: noisy releases of the same kind."""

    name: str = Field(description="Name of the stage, unique in its plan.")
    releases: int = Field(description="Number of noisy releases in this stage.")
    repeats: int = Field(0, description="Extra noisy releases, paid for in advance, to repeat steps after a crash.")
    noise_multiplier: float = Field(description="Standard deviation of the noise, divided by the sensitivity.")
    cost_nano: CostNano


class BudgetFacts(schemas.ApiRecord):
    """The account's budget before this job, and the budget left after it."""

    account_id: schemas.AccountId
    limit_epsilon: float = Field(description="The lifetime limit, at the account's delta.")
    left_epsilon: schemas.LeftEpsilon
    left_nano: int = Field(description="Remaining budget, in nano-units of mu^2.")
    left_after_epsilon: float = Field(description="Budget left after the job, as an epsilon at the account's delta.")
    left_after_nano: int = Field(description="Budget left after the job, in nano-units of mu^2.")
    affordable: bool = Field(description="True if the account could reserve the cost now.")


class ExpectedPoint(schemas.ApiRecord):
    """The expected result of a plan at one cost."""

    cost_nano: CostNano
    epsilon: float = Field(description="The cost, as an epsilon at the account's delta.")
    band: str | None = Field(description="Expected detail; see the plan's expectation.")
    accuracy: tuple[float, float] | None = Field(description="Lowest and highest measured accuracy; null: unknown.")


class Expectation(schemas.ApiRecord):
    """Expected result of a training with this plan, from declared numbers and published measurements alone."""

    band: str | None = Field(
        description="Detail of the images: `noise`, `colours`, `outlines`, `shapes` or `detail`; null if unknown for "
        "this recipe."
    )
    recognisable: bool | None = Field(description="True if most objects are recognisable; null if unknown.")
    accuracy: tuple[float, float] | None = Field(
        description="Accuracy, on real images, of a small CNN that learned synthetic images: the lowest and highest "
        "of published measurements on public sets with about as many images per class. For a classifier, its own. "
        "Null if nothing comparable was measured."
    )
    summary: list[str] = Field(
        description="Sentences for people: the detail, the accuracy, and what reaches the next band of detail."
    )
    next_band: str | None = Field(description="The next better band; null if there is none.")
    next_epsilon: float | None = Field(description="Epsilon that reaches it; null if the account has less left.")
    next_units: int | None = Field(description="Records, or subjects, that would reach it at this epsilon.")
    curve: list[ExpectedPoint] = Field(description="Expectations along the remaining budget, at rising costs.")
    example: str | None = Field(default=None, description="Path of an example image of this band on the service.")


class PlanRecord(schemas.ApiRecord):
    """Plan and cost of a job, computed from public parameters only."""

    recipe: RecipeName
    dataset_id: schemas.DatasetId
    epsilon: float = Field(description="The requested epsilon.")
    delta: schemas.Delta
    unit: str = Field(description="The protected unit: one `record`, or all records of a `subject`.")
    adjacency: str = Field(description="Which datasets are neighbours: those that differ by one whole unit.")
    cost_nano: CostNano
    cost_epsilon: float = Field(description="Total cost of the stages; at most the requested epsilon.")
    stages: list[StageFacts] = Field(description="The stages, in the order in which they run.")
    facts: dict[str, Any] = Field(description="Public facts about the planned release.")
    notes: list[str] = Field(description="Remarks on the plan, for people.")
    config: dict[str, Any] = Field(description="Every option of the recipe, with the value it would have.")
    budget: BudgetFacts = Field(description="The account before and after.")
    expectation: Expectation = Field(description="Expected result of the training.")


class ProgressFacts(schemas.ApiRecord):
    """Progress of a running job. It contains only steps and costs that are planned from public numbers."""

    stage: str | None = Field(default=None, description="The current stage; null before the first.")
    step: int | None = Field(default=None, description="Completed steps of this stage.")
    steps: int | None = Field(default=None, description="Number of steps of this stage.")
    charged_nano: int = Field(default=0, description="The charges so far, in nano-units of mu^2; they stay spent.")
    planned_nano: int = Field(default=0, description="The plan's charges, in nano-units of mu^2.")
    charged_epsilon: float = Field(default=0.0, description="The charges so far, as an epsilon at the account's delta.")
    planned_epsilon: float = Field(default=0.0, description="The plan's charges, as an epsilon at the account's delta.")
    eta_seconds: Annotated[float, AfterValidator(lambda seconds: 60.0 * math.ceil(seconds / 60))] | None = Field(
        default=None, description="Estimated seconds until the job ends, rounded up to whole minutes; null if unknown."
    )
    silent_minutes: int | None = Field(
        default=None, description="The worker has shown no sign of life for at least this many minutes; else null."
    )


class FailureFacts(schemas.ApiRecord):
    """Reason why a job did not succeed, from a closed set."""

    code: str = Field(description="Stable code of the failure.")
    message: str = Field(description="The failure in a sentence, for people.")


class OutcomeFacts(schemas.ApiRecord):
    """The state of a job."""

    job_id: str = Field(description="The job.")
    state: State
    failure: FailureFacts | None = Field(description="Why the job failed; null if it has not failed.")


class PreviewRecord(OutcomeFacts, schemas.DatedRecord):
    """A plan tried on public images with the declared shape; its state is the state of its job."""

    dataset_id: schemas.DatasetId
    recipe: RecipeName
    epsilon: float = Field(description="Privacy loss at the account's delta.")
    options: RecordedOptions
    stand_in: str | None = Field(
        description="Public substitute for the private images; null until the preview has ended."
    )
    accuracy: float | None = Field(
        description="Accuracy of a CNN trained on the generated images, or of the released classifier; measured on "
        "other images of `stand_in`."
    )
    real_accuracy: float | None = Field(
        description="Accuracy of the same CNN trained on `stand_in`; null for a recipe that trains a classifier."
    )
    balanced_accuracy: float | None = Field(default=None, description="Mean of the classes' accuracies.")
    accuracy_by_class: dict[str, float] | None = Field(default=None, description="Accuracy for each declared class.")
    chance: float | None = Field(description="Accuracy of guessing.")
    grid_ready: bool = Field(default=False, description="True once the grid of images is ready; accuracy follows.")
    verdict: str | None = Field(description="The forecast in words, with a warning if the noise hides much.")
    notes: list[str] = Field(description="Remarks on the plan, for people.")
    finished_at: schemas.Minute | None = Field(description="When it ended; null before.")


class ProgressRecord(schemas.ApiRecord):
    """Progress of a job."""

    state: State
    cancel_requested: bool = Field(description="True if cancellation was requested.")
    progress: ProgressFacts = Field(description="Progress of the job.")
    failure: FailureFacts | None = Field(description="Why the job failed; null if it has not failed.")
    release_id: str | None = Field(description="The release that the job published, samples or evaluates.")
    sample_id: str | None = Field(description="The sample that the job generates; null for other jobs.")


class JobRecord(ProgressRecord, schemas.DatedRecord):
    """A requested training, sampling or evaluation."""

    kind: str
    account_id: str | None = Field(description="The account whose budget pays.")
    dataset_id: str | None = Field(description="Id of the dataset with the labelled images.")
    evaluation_dataset_id: str | None = Field(description="Public dataset that the release is measured on, if any.")
    recipe: str | None = Field(description="Name of the recipe; `GET /v1/recipes` lists all.")
    epsilon: float | None = Field(description="Privacy loss at the account's delta.")
    options: RecordedOptions
    cost_nano: CostNano
    cost_epsilon: float = Field(description="The cost, as an epsilon at the account's delta.")
    ended_early: str | None = Field(
        description="Why a training charges nothing more, although its plan is incomplete. `discarded`: it publishes "
        "nothing. `cancelled` or a failure code: it publishes a partial result."
    )
    publishes_if_cancelled: bool | None = Field(
        description="True if cancelling a training now would publish a release; null if it has ended or costs nothing. "
        "False before its first useful step: its charges stay spent, but there is nothing to publish."
    )
    blocked: FailureFacts | None = Field(description="Why it cannot start: `arming_stopped` or `installation_locked`.")
    started_at: schemas.Minute | None = Field(description="When its first attempt began; null before.")
    finished_at: schemas.Minute | None = Field(description="When it ended; null before.")

    @property
    def finished(self) -> bool:
        """Return whether the job has reached a final state."""
        return self.state in FINAL_STATES


class EventRecord(ProgressRecord):
    """The data of one server-sent event."""

    job_id: str = Field(description="The job.")


# --- sweeps ---------------------------------------------------------------------------------------------------------


class TrialRequest(schemas.ApiRequest):
    """One training of a sweep."""

    options: Options = Field(default_factory=dict)
    epsilon: schemas.Epsilon | None = Field(
        default=None, description="Budget of this trial. Absent: that of the sweep."
    )


class SweepRequest(schemas.ApiRequest):
    """Request a hyperparameter sweep. The cost of all trials is reserved atomically, or nothing is reserved."""

    name: schemas.Name
    dataset_id: schemas.Identifier = Field(description="Id of the dataset with the labelled images.")
    recipe: schemas.Text = Field(RECIPE_USUAL, description="Name of the recipe; `GET /v1/recipes` lists all.")
    epsilon: schemas.Epsilon | None = Field(default=None, description="Budget of each trial that states none.")
    trials: list[TrialRequest] = Field(min_length=TRIALS_MIN, max_length=TRIALS_MAX, description="In running order.")
    evaluation_dataset_id: schemas.Identifier | None = Field(default=None, description="Public dataset to evaluate on.")


class TrialFacts(OutcomeFacts):
    """One training of a sweep: its reserved or spent budget, and its quality on public data."""

    options: RecordedOptions
    epsilon: float = Field(description="Privacy loss at the account's delta.")
    reserved_nano: int = Field(description="Budget still reserved; 0 once the trial has ended.")
    charged_nano: int = Field(description="The charges so far, in nano-units of mu^2; they stay spent.")
    spent_nano: schemas.SpentNano
    spent_epsilon: float = Field(description="Spent budget, as an epsilon at the account's delta.")
    accuracy: dict[str, float] | None = Field(description="Accuracy on public data, by classifier.")
    balanced_accuracy: dict[str, float] | None = Field(default=None, description="Mean of the classes' accuracies.")
    release_id: str | None = Field(description="The release.")
    incomplete: bool = Field(description="True if it ended early and published a partial result.")

    @property
    def compared_by(self) -> float | None:
        """Return the balanced accuracy of the CNN, or its accuracy if the balanced accuracy is missing."""
        return (self.balanced_accuracy or self.accuracy or {}).get("cnn")


class SweepTotals(schemas.ApiRecord):
    """Sums over the trials, in nano-units of mu^2 and as epsilons at the account's delta."""

    cost_nano: CostNano
    reserved_nano: int = Field(description="Reserved for jobs under way, in nano-units of mu^2.")
    spent_nano: schemas.SpentNano
    returned_nano: int = Field(description="Budget returned to the account, in nano-units of mu^2.")
    cost_epsilon: float = Field(description="The cost, as an epsilon at the account's delta.")
    spent_epsilon: float = Field(description="Spent budget, as an epsilon at the account's delta.")


class SweepRecord(schemas.DatedRecord, schemas.NamedRecord):
    """A hyperparameter search. Every trial is charged; choosing the best trial on public data is free."""

    account_id: schemas.AccountId
    dataset_id: schemas.DatasetId
    recipe: RecipeName
    state: str = Field(description="`open` while a trial or its evaluation is queued or running; else `ended`.")
    trials: list[TrialFacts] = Field(description="Its trainings, in the order in which they run.")
    totals: SweepTotals = Field(description="Sums over all trials.")
    best_job_id: str | None = Field(description="Trial with the highest balanced CNN accuracy on public data.")

    @property
    def finished(self) -> bool:
        """Return whether every trial has reached a final state."""
        return self.state == "ended"


# --- recipes --------------------------------------------------------------------------------------------------------


class RecipeRecord(schemas.ApiRecord):
    """A recipe of this service with all its options."""

    name: str = Field(description="Its name in the request of a job.")
    title: str = Field(description="Its name for people.")
    publishes: str = Field(description="Kind of its release: `generator`, `classifier` or `histogram`.")
    releases: str = Field(description="The kind of its release, in words.")
    units: list[Unit] = Field(description="Units that it can protect. Only accounts of these units can use it.")
    presets: dict[str, dict[str, Any]] = Field(description="Options set by each preset. Default preset: `default`.")
    defaults: dict[str, Any] = Field(description="Default of each option.")
    follows: list[str] = Field(
        description="Options with defaults computed from declared numbers and budget. A plan shows the values."
    )
    options: dict[str, Any] = Field(
        description="JSON Schema of the `options` of a request. `group` names the group in which forms show an option."
    )

    @property
    def groups(self) -> dict[str, list[str]]:
        """Names of the options of each group, in order."""
        groups: dict[str, list[str]] = {}
        for name, schema in self.options["properties"].items():
            groups.setdefault(schema.get("group", ""), []).append(name)
        return groups


class RecipeList(schemas.ApiRecord):
    """Every recipe of the service."""

    items: list[RecipeRecord] = Field(description="The recipes.")
