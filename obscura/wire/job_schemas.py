"""What goes over the wire about plans, jobs, sweeps, and the releases, samples and evaluations that jobs make;
see `obscura.wire.schemas`.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from pydantic import Field

from obscura.wire.class_shares import SHARE_MAX, SHARE_MIN
from obscura.wire.formats import SampleFormat
from obscura.wire.schemas import (
    ApiRecord,
    ApiRequest,
    Epsilon,
    Identifier,
    Minute,
    Name,
    Options,
    Text,
)

Proportion = Annotated[float, Field(ge=SHARE_MIN, le=SHARE_MAX)]
Proportions = Annotated[dict[Text, Proportion], Field(min_length=1, max_length=1000)]
TRIALS_MIN, TRIALS_MAX = 2, 64  # of a sweep
_is_empty = operator.not_  # of fields that are left out where they say nothing, as before there were any
_FURTHER: Any = Field(
    default_factory=list,
    max_length=15,
    exclude_if=_is_empty,
    description="Private datasets that are read together with it as one, of the same or of other accounts. Every "
    "account pays the price at its own rate, all of them or none.",
)
FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


class PlanRequest(ApiRequest):
    """Ask what a training would do and cost. No data is touched."""

    dataset_id: Identifier = Field(description="The labelled images.")
    recipe: Text = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    epsilon: Epsilon = Field(description="Budget offered to this job, at the account's delta.")
    options: Options = Field(
        default_factory=dict,
        description="Of the recipe, as `GET /v1/recipes` describes them; what is absent takes the recipe's own value.",
    )
    further_dataset_ids: list[Identifier] = _FURTHER


class PreviewRequest(PlanRequest):
    """Ask what a plan would make, tried on public images. Nothing is held, and no data is touched."""

    stand_in_dataset_id: Identifier | None = Field(
        default=None,
        description="A public dataset with at least as many classes, in the place of the private images. Absent: "
        "written characters where each class is named by one letter or digit, Fashion-MNIST for other grey images "
        "where the worker has it, else generated patterns.",
    )


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

    options: Options = Field(
        default_factory=dict,
        description="Of the recipe, as `GET /v1/recipes` describes them; what is absent takes the recipe's own value.",
    )
    epsilon: Epsilon | None = Field(default=None, description="Of this trial; absent: that of the sweep.")


class SweepRequest(ApiRequest):
    """Ask for a hyper-parameter search; the price of all its trials is held at once, or nothing is."""

    name: Name = Field(description="For people.")
    dataset_id: Identifier = Field(description="The labelled images.")
    recipe: Text = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    epsilon: Epsilon | None = Field(default=None, description="Of each trial that names none.")
    trials: list[TrialRequest] = Field(
        min_length=TRIALS_MIN, max_length=TRIALS_MAX, description="Its trainings, in the order in which they run."
    )
    further_dataset_ids: list[Identifier] = _FURTHER
    evaluation_dataset_id: Identifier | None = Field(default=None, description="A public dataset to measure against.")


class StageFacts(ApiRecord):
    """One kind of noisy release in a plan."""

    name: str = Field(description="Of the stage, unique in its plan.")
    releases: int = Field(description="Noisy releases of this kind.")
    repeats: int = Field(0, description="Further releases that the price pays for, should a crash make them necessary.")
    noise_multiplier: float = Field(description="Standard deviation of the noise over the sensitivity.")
    price_nano: int = Field(description="The price, in nano-units of mu^2.")


class BudgetFacts(ApiRecord):
    """The account before this job, and what would be left after it."""

    account_id: str = Field(description="The population whose budget pays.")
    limit_epsilon: float = Field(description="The lifetime limit, at the account's delta.")
    left_epsilon: float = Field(
        description="What is left, as an epsilon at the account's delta. Epsilons of parts need not add up."
    )
    left_nano: int = Field(description="What is left, in nano-units of mu^2.")
    left_after_epsilon: float = Field(description="What would be left, as an epsilon at the account's delta.")
    left_after_nano: int = Field(description="What would be left, in nano-units of mu^2.")
    affordable: bool = Field(description="Whether the account could hold the price now.")


class PlannedCohort(ApiRecord):
    """An account that would pay for a training on several datasets."""

    dataset_ids: list[str] = Field(description="Its datasets among those that are read together.")
    price_nano: int = Field(description="The price at its rate, in nano-units of mu^2.")
    price_epsilon: float = Field(description="The same, as an epsilon at its delta.")
    delta: float = Field(description="Of the account.")
    budget: BudgetFacts = Field(description="The account before and after.")


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
    cohorts: list[PlannedCohort] = Field(
        default_factory=list,
        exclude_if=_is_empty,
        description="Every account that would pay, where several datasets are read together; absent for one.",
    )


class ProgressFacts(ApiRecord):
    """The only things a running job says about itself: steps and prices that were planned from public numbers."""

    stage: str | None = Field(default=None, description="The stage that it is at; null before the first.")
    step: int | None = Field(default=None, description="Steps of this stage that are done.")
    steps: int | None = Field(default=None, description="Steps of this stage.")
    charged_nano: int = Field(default=0, description="What was charged, in nano-units of mu^2; it stays spent.")
    planned_nano: int = Field(default=0, description="What the plan may charge, in nano-units of mu^2.")
    charged_epsilon: float = Field(default=0.0, description="What was charged, as an epsilon at the account's delta.")
    planned_epsilon: float = Field(
        default=0.0, description="What the plan may charge, as an epsilon at the account's delta."
    )
    eta_seconds: float | None = Field(
        default=None, description="Roughly until the job ends, from planned work; null while its pace is not known."
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
    """A plan tried on a public stand-in with what was declared; its state is its job's."""

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
    further_dataset_ids: list[str] = Field(
        default_factory=list,
        exclude_if=_is_empty,
        description="Datasets that the plan reads together with the first; absent for one.",
    )


class JobCohort(ApiRecord):
    """An account that pays for a training on several datasets."""

    account_id: str = Field(description="The population whose budget pays.")
    dataset_ids: list[str] = Field(description="Its datasets among those that are read together.")
    price_nano: int = Field(description="The price at its rate, in nano-units of mu^2.")
    price_epsilon: float = Field(description="The same, as an epsilon at its delta.")
    charged_nano: int = Field(description="What was charged, in nano-units of mu^2; it stays spent.")


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
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")
    release_id: str | None = Field(
        description="The release that a training published, a sampling draws from, or an evaluation measures."
    )
    sample_id: str | None = Field(description="The drawing; null for other jobs.")
    created_at: Minute = Field(description="When it was made.")
    started_at: Minute | None = Field(description="When its first attempt began; null before.")
    finished_at: Minute | None = Field(description="When it ended; null before.")
    cohorts: list[JobCohort] = Field(
        default_factory=list,
        exclude_if=_is_empty,
        description="Every account that pays, where several datasets are read together; absent for one.",
    )


class TrialFacts(ApiRecord):
    """One training of a sweep: what it holds or has spent, and how good its release is on public data."""

    job_id: str = Field(description="The job.")
    state: str = Field(description="`queued`, `running`, `succeeded`, `failed` or `cancelled`.")
    options: dict[str, Any] = Field(
        description="Of the recipe, as `GET /v1/recipes` describes them; what is absent takes the recipe's own value."
    )
    epsilon: float = Field(description="Privacy loss at the account's delta.")
    held_nano: int = Field(description="Still reserved; 0 once the trial has ended.")
    charged_nano: int = Field(description="What was charged, in nano-units of mu^2; it stays spent.")
    spent_nano: int = Field(description="What was spent, in nano-units of mu^2. It never decreases.")
    spent_epsilon: float = Field(description="What was spent, as an epsilon at the account's delta.")
    accuracy: dict[str, float] | None = Field(description="On the public evaluation dataset, by classifier.")
    balanced_accuracy: dict[str, float] | None = Field(
        default=None, description="Likewise, as a mean over the classes: rare classes count as much."
    )
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")
    release_id: str | None = Field(description="The release.")
    incomplete: bool = Field(description="It ended early; its release is what had been made by then.")

    @property
    def compared_by(self) -> float | None:
        """The balanced accuracy of the CNN; its accuracy where it was measured before there was a balanced one."""
        return (self.balanced_accuracy or self.accuracy or {}).get("cnn")


class SweepTotals(ApiRecord):
    """Sums over the trials, in nano-units of mu^2 and, together, as epsilons at its delta."""

    price_nano: int = Field(description="The price, in nano-units of mu^2.")
    held_nano: int = Field(description="Reserved for jobs under way, in nano-units of mu^2.")
    spent_nano: int = Field(description="What was spent, in nano-units of mu^2. It never decreases.")
    returned_nano: int = Field(description="What returned to the account, in nano-units of mu^2.")
    price_epsilon: float = Field(description="The price, as an epsilon at the account's delta.")
    spent_epsilon: float = Field(description="What was spent, as an epsilon at the account's delta.")


class SweepCohort(ApiRecord):
    """An account that pays for a search over several datasets."""

    account_id: str = Field(description="The population whose budget pays.")
    dataset_ids: list[str] = Field(description="Its datasets among those that are read together.")
    totals: SweepTotals = Field(description="Sums over the trials, at its own rate.")


class SweepRecord(ApiRecord):
    """A hyper-parameter search. Every trial is paid for; choosing the best by public data costs nothing more."""

    id: str = Field(description="Its identifier, which never changes.")
    name: str = Field(description="For people.")
    account_id: str = Field(description="The population whose budget pays.")
    dataset_id: str = Field(description="The labelled images.")
    recipe: str = Field(description="Name of the training loop; `GET /v1/recipes` has them.")
    state: str = Field(
        description="`open` while a trial, or the evaluation of one, is queued or running; else `ended`."
    )
    trials: list[TrialFacts] = Field(description="Its trainings, in the order in which they run.")
    totals: SweepTotals = Field(description="Sums over the trials.")
    best_job_id: str | None = Field(
        description="The trial with the highest balanced accuracy of the CNN on public data."
    )
    created_at: Minute = Field(description="When it was made.")
    cohorts: list[SweepCohort] = Field(
        default_factory=list,
        exclude_if=_is_empty,
        description="Every account that pays, where several datasets are read together; absent for one. The other "
        "figures are those of the first.",
    )


class EventRecord(ApiRecord):
    """The data of one server-sent event."""

    job_id: str = Field(description="The job.")
    state: str = Field(description="`queued`, `running`, `succeeded`, `failed` or `cancelled`.")
    cancel_requested: bool = Field(description="Whether somebody has asked to end it.")
    progress: ProgressFacts = Field(description="How far it is.")
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")
    release_id: str | None = Field(description="The release.")
    sample_id: str | None = Field(description="The drawing; null for other jobs.")


class HistogramFacts(ApiRecord):
    """How many units each class has, as released: exact counts with noise."""

    classes: list[str] = Field(description="Names of the classes, in the order of their labels.")
    counts: list[int] = Field(description="The noisy counts, at least 0 and at most what was declared.")
    noisy_counts: list[int] = Field(description="As the mechanism released them: unbiased, possibly below 0.")
    standard_error: float = Field(description="Of each noisy count.")


class MadeFacts(ApiRecord):
    """Of one stage: noisy releases that were made, and that were planned."""

    made: int = Field(description="Noisy releases that were made.")
    planned: int = Field(description="Noisy releases that were planned.")


class IncompleteFacts(ApiRecord):
    """How much of its plan a training had made when it ended early. The guarantee is that of what was made."""

    reason: str = Field(description="`cancelled`, or the code of a failure.")
    share: float = Field(description="Of the planned noisy releases, rounded down.")
    made: int = Field(description="Noisy releases that were made.")
    planned: int = Field(description="Noisy releases that were planned.")
    stages: dict[str, MadeFacts] = Field(description="How many were made and planned, by stage.")


class ReleaseRecord(ApiRecord):
    """What a training has published. Sampling a generator costs nothing, for ever."""

    id: str = Field(description="Its identifier, which never changes.")
    kind: str = Field(description="`generator` (images can be drawn from it), `classifier` or `histogram`.")
    job_id: str = Field(description="The job.")
    account_id: str = Field(description="The population whose budget pays.")
    dataset_id: str = Field(description="The labelled images.")
    name: str = Field(description="For people.")
    artifact_sha256: str = Field(description="SHA-256 over the files that were published.")
    summary: dict[str, Any] = Field(description="Public facts, and accuracies of the newest evaluation that has ended.")
    incomplete: IncompleteFacts | None = Field(description="Of a training that ended before its plan.")
    histogram: HistogramFacts | None = Field(description="The counts of a histogram.")
    project_id: str = Field(
        description="The department that has trained it: another one than yours shares it with you."
    )
    created_at: Minute = Field(description="When it was made.")
    further_dataset_ids: list[str] = Field(
        default_factory=list,
        exclude_if=_is_empty,
        description="Private datasets that its training read together with it; absent where there were none, and for "
        "other projects.",
    )


class EvaluationRequest(ApiRequest):
    """Measure a release on a public dataset with the classes and the shape of the training's. It costs nothing."""

    dataset_id: Identifier = Field(description="The labelled images.")
    samples: int | None = Field(
        default=None, ge=1, description="Synthetic images that classifiers are trained on; for generators alone."
    )
    seed: int | None = Field(default=None, ge=0, lt=2**63, description="Public; of the samples and the classifiers.")


class LikenessFacts(ApiRecord):
    """How alike synthetic and public images are, as one named extractor sees them."""

    extractor: str = Field(
        description="What described the images. Distances compare only where it, the dataset and the number of images "
        "are the same; only those of the usual Inception network are FIDs."
    )
    frechet_distance: float = Field(description="Between the Gaussians of both sets of features; 0 of equal sets.")
    precision: float = Field(description="Share of the synthetic images that lie where real ones do.")
    recall: float = Field(description="Share of the real images that lie where synthetic ones do.")
    images: int = Field(description="So many of each side were compared.")


class EvaluationRecord(ApiRecord):
    """One measurement of a release on a public dataset; its state is its job's."""

    id: str = Field(description="Its identifier, which never changes.")
    release_id: str = Field(description="The release.")
    job_id: str = Field(description="The job.")
    dataset_id: str = Field(description="The labelled images.")
    state: str = Field(description="`queued`, `running`, `succeeded`, `failed` or `cancelled`.")
    samples: int | None = Field(description="Synthetic images that were measured; null for what is no generator.")
    seed: int = Field(description="Public: the same request gives the same result.")
    accuracy: dict[str, float] | None = Field(description="In [0, 1], by classifier; null until it has ended.")
    balanced_accuracy: dict[str, float] | None = Field(
        description="Mean over the classes of what is recognised of each, by classifier: rare classes count as much."
    )
    accuracy_by_class: dict[str, float] | None = Field(
        description="What is recognised of each class with images, by the CNN or the released classifier."
    )
    likeness: LikenessFacts | None = Field(description="Of a generator: how alike its images and the public ones are.")
    accuracy_warm_start_only: dict[str, float] | None = Field(
        description="In [0, 1], by the warm start alone, where a recipe has one."
    )
    accuracy_real: float | None = Field(
        description="Of the CNN where it learns half of the public images and is tested on the others; of a generator."
    )
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")
    created_at: Minute = Field(description="When it was made.")
    finished_at: Minute | None = Field(description="When it ended; null before.")


class SampleRequest(ApiRequest):
    """Draw synthetic images from a release. The seed is public: the same request gives the same bytes."""

    count: int = Field(ge=1, description="Number of images.")
    classes: list[Text] | None = Field(
        default=None, min_length=1, max_length=1000, description="Names of the classes, in the order of their labels."
    )
    proportions: Proportions | Literal["stated"] | None = Field(
        default=None,
        description="In place of `classes`: how often each class comes, by its name, as numbers of which only ratios "
        "count. A class that is not named is not drawn. `stated`: as the training's option `class_shares` says. "
        "Absent: all classes come equally often.",
    )
    seed: int = Field(ge=0, lt=2**63, description="Public: the same request gives the same result.")
    format: SampleFormat = Field(description="Kind of file.")


class SampleRecord(ApiRecord):
    """A set of synthetic images, ready for download once its job has succeeded."""

    id: str = Field(description="Its identifier, which never changes.")
    release_id: str = Field(description="The release.")
    job_id: str = Field(description="The job.")
    state: str = Field(description="`queued`, `running`, `succeeded`, `failed` or `cancelled`.")
    count: int = Field(description="Number of images.")
    classes: list[str] | None = Field(description="Names of the classes, in the order of their labels.")
    proportions: dict[str, float] | None = Field(
        default=None, description="How often each class was asked to come; null where all came equally often."
    )
    seed: int = Field(description="Public: the same request gives the same result.")
    format: str = Field(description="Kind of file.")
    sha256: str | None = Field(description="SHA-256 of the file; null until it is there.")
    bytes: int | None = Field(description="Size of the file.")
    removed_at: Minute | None = Field(
        default=None,
        exclude_if=_is_empty,
        description="When the file was removed, as the operator's retention says; absent while it is there.",
    )
    failure: FailureFacts | None = Field(description="Why it failed; null where it has not.")
    created_at: Minute = Field(description="When it was made.")
