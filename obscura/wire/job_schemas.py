"""What goes over the wire about plans and jobs; see `obscura.wire.schemas`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from obscura.wire.schemas import ApiRecord, ApiRequest, Epsilon, Identifier, Minute, Options, Text, up_to_the_minute

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


class PlanRequest(ApiRequest):
    """Ask what a training would do and cost. Reads no data."""

    dataset_id: Identifier = Field(description="The labelled images.")
    recipe: Text = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    epsilon: Epsilon = Field(description="Budget offered to this job, at the account's delta.")
    options: Options = Field(
        default_factory=dict,
        description="Of the recipe, as `GET /v1/recipes` describes them; what is absent takes the recipe's own value.",
    )


class PreviewRequest(PlanRequest):
    """Request a preview of a plan on public images. Reserves nothing and reads no private data."""

    stand_in_dataset_id: Identifier | None = Field(
        default=None,
        description="A public dataset with at least as many classes, in the place of the private images. Absent: "
        "written characters where each class is named by one letter or digit, Fashion-MNIST for other grey images "
        "where the worker has it, else generated patterns.",
    )


class JobRequest(PlanRequest):
    """Request a training; its cost is reserved on the account at once."""

    evaluation_dataset_id: Identifier | None = Field(default=None, description="A public dataset to measure against.")


class CancelRequest(ApiRequest):
    """How to end a job, or the trials of a sweep."""

    discard: bool = Field(
        default=False,
        description="Publish nothing. Without it, a training that has charged publishes what it has, as incomplete.",
    )


class StageFacts(ApiRecord):
    """One kind of noisy release in a plan."""

    name: str = Field(description="Of the stage, unique in its plan.")
    releases: int = Field(description="Noisy releases of this kind.")
    repeats: int = Field(0, description="Further releases that the price pays for, should a crash make them necessary.")
    noise_multiplier: float = Field(description="Standard deviation of the noise over the sensitivity.")
    price_nano: int = Field(description="The price, in nano-units of mu^2.")


class BudgetFacts(ApiRecord):
    """The account before this job, and its remaining budget afterwards."""

    account_id: str = Field(description="The population whose budget pays.")
    limit_epsilon: float = Field(description="The lifetime limit, at the account's delta.")
    left_epsilon: float = Field(
        description="What is left, as an epsilon at the account's delta. Epsilons of parts need not add up."
    )
    left_nano: int = Field(description="What is left, in nano-units of mu^2.")
    left_after_epsilon: float = Field(description="What would be left, as an epsilon at the account's delta.")
    left_after_nano: int = Field(description="What would be left, in nano-units of mu^2.")
    affordable: bool = Field(description="Whether the account could hold the price now.")


class PlanRecord(ApiRecord):
    """What a job would do and cost, computed from public parameters only."""

    recipe: str = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    dataset_id: str = Field(description="The labelled images.")
    epsilon: float = Field(description="Asked for.")
    delta: float = Field(
        description="Slack of the guarantee: with epsilon, it bounds what an account may ever reveal of one unit."
    )
    unit: str = Field(description="Whom the guarantee hides: one `record`, or all records of a `subject`.")
    adjacency: str = Field(description="Which datasets count as neighbours: those that differ by one whole unit.")
    price_nano: int = Field(description="The price, in nano-units of mu^2.")
    price_epsilon: float = Field(description="What the stages cost together; at most the epsilon asked for.")
    stages: list[StageFacts] = Field(description="The kinds of noisy releases, in their order.")
    buys: dict[str, Any] = Field(description="Public facts about what the plan makes.")
    notes: list[str] = Field(description="Remarks for people.")
    config: dict[str, Any] = Field(description="Every option of the recipe as it would run.")
    budget: BudgetFacts = Field(description="The account before and after.")


class ProgressFacts(ApiRecord):
    """The only facts that a running job reports: steps and costs planned from public numbers."""

    stage: str | None = Field(default=None, description="The stage that it is at; null before the first.")
    step: int | None = Field(default=None, description="Steps of this stage that are done.")
    steps: int | None = Field(default=None, description="Steps of this stage.")
    charged_nano: int = Field(default=0, description="What was charged, in nano-units of mu^2; it stays spent.")
    planned_nano: int = Field(default=0, description="What the plan may charge, in nano-units of mu^2.")
    charged_epsilon: float = Field(default=0.0, description="What was charged, as an epsilon at the account's delta.")
    planned_epsilon: float = Field(
        default=0.0, description="What the plan may charge, as an epsilon at the account's delta."
    )
    eta_seconds: Annotated[float | None, AfterValidator(up_to_the_minute)] = Field(
        default=None,
        description="Estimated seconds until the job ends, from planned work, rounded up to whole minutes; null while "
        "its pace is not known.",
    )
    silent_minutes: int | None = Field(
        default=None,
        description="A coarse lower bound, where the worker has given no sign of life for so long that it will soon be "
        "ended and resumed; null for the usual case.",
    )


class FailureFacts(ApiRecord):
    """Why a job did not succeed, from a closed set."""

    code: str = Field(description="Stable name of what went wrong.")
    message: str = Field(description="The same for people.")


class PreviewRecord(ApiRecord):
    """A plan tried on public images with the declared shape; its state is that of its job."""

    id: str = Field(description="Its identifier, which never changes.")
    job_id: str = Field(description="The job.")
    state: str = Field(description="`queued`, `running`, `succeeded`, `failed` or `cancelled`.")
    dataset_id: str = Field(description="The labelled images.")
    recipe: str = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    epsilon: float = Field(description="Privacy loss at the account's delta.")
    options: dict[str, Any] = Field(
        description="Of the recipe, as `GET /v1/recipes` describes them; what is absent takes the recipe's own value."
    )
    stand_in: str | None = Field(description="What stood in for the private images; null until it has ended.")
    accuracy: float | None = Field(
        description="In [0, 1], of a small CNN that learned what was drawn, on other images of the stand-in."
    )
    real_accuracy: float | None = Field(
        description="The same CNN's, had it learned the stand-in's own images. Null for a recipe that trains a "
        "classifier, whose own accuracy is given."
    )
    balanced_accuracy: float | None = Field(
        default=None,
        description="Mean over the classes of what is recognised of each: rare classes count as much.",
    )
    accuracy_by_class: dict[str, float] | None = Field(
        default=None, description="What is recognised of each declared class, of what stood in for it."
    )
    chance: float | None = Field(description="Accuracy of guessing.")
    verdict: str | None = Field(description="The forecast in words, with a warning where the signal drowns.")
    notes: list[str] = Field(description="Of the plan.")
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")
    created_at: Minute = Field(description="When it was made.")
    finished_at: Minute | None = Field(description="When it ended; null before.")


class JobRecord(ApiRecord):
    """A requested training, sampling or evaluation."""

    id: str = Field(description="Its identifier, which never changes.")
    kind: str
    state: str = Field(description="`queued`, `running`, `succeeded`, `failed` or `cancelled`.")
    account_id: str | None = Field(description="The population whose budget pays.")
    dataset_id: str | None = Field(description="The labelled images.")
    evaluation_dataset_id: str | None = Field(
        description="The public dataset that the release is measured on; null for none."
    )
    recipe: str | None = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    epsilon: float | None = Field(description="Privacy loss at the account's delta.")
    options: dict[str, Any] = Field(
        description="Of the recipe, as `GET /v1/recipes` describes them; what is absent takes the recipe's own value."
    )
    price_nano: int = Field(description="The price, in nano-units of mu^2.")
    price_epsilon: float = Field(description="The price, as an epsilon at the account's delta.")
    cancel_requested: bool = Field(description="Whether somebody has asked to end it.")
    ended_early: str | None = Field(
        description="Why a training charges no more and publishes what it has: `cancelled`, or the code of a failure. "
        "`discarded`: it publishes nothing."
    )
    publishes_if_cancelled: bool | None = Field(
        description="Whether cancelling a training now would publish what it has paid for; null where it has ended or "
        "costs nothing. Before its first useful step there is nothing to publish, and what was charged stays spent."
    )
    progress: ProgressFacts = Field(description="How far it is.")
    blocked: FailureFacts | None = Field(
        description="Why a queued job cannot start: `arming_stopped` or `installation_locked`; null if it can."
    )
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")
    release_id: str | None = Field(
        description="The release that a training published, a sampling draws from, or an evaluation measures."
    )
    sample_id: str | None = Field(description="The drawing; null for other jobs.")
    created_at: Minute = Field(description="When it was made.")
    started_at: Minute | None = Field(description="When its first attempt began; null before.")
    finished_at: Minute | None = Field(description="When it ended; null before.")

    @property
    def finished(self) -> bool:
        """Return whether the job has reached a final state."""
        return self.state in FINAL_STATES


class EventRecord(ApiRecord):
    """The data of one server-sent event."""

    job_id: str = Field(description="The job.")
    state: str = Field(description="`queued`, `running`, `succeeded`, `failed` or `cancelled`.")
    cancel_requested: bool = Field(description="Whether somebody has asked to end it.")
    progress: ProgressFacts = Field(description="How far it is.")
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")
    release_id: str | None = Field(description="The release.")
    sample_id: str | None = Field(description="The drawing; null for other jobs.")
