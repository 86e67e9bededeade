"""What goes over the wire about plans, jobs, sweeps, and the releases, samples and evaluations that jobs make;
see `obscura.wire.schemas`.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from obscura.wire.formats import SampleFormat
from obscura.wire.schemas import ApiRecord, ApiRequest, Epsilon, Identifier, Minute, Name, Options, Text

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


class PlanRequest(ApiRequest):
    """Ask what a training would do and cost. No data is touched."""

    dataset_id: Identifier
    recipe: Text
    epsilon: Epsilon = Field(description="Budget offered to this job, at the account's delta.")
    options: Options = Field(default_factory=dict)


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

    options: Options = Field(default_factory=dict)
    epsilon: Epsilon | None = Field(default=None, description="Of this trial; absent: that of the sweep.")


class SweepRequest(ApiRequest):
    """Ask for a hyper-parameter search; the price of all its trials is held at once, or nothing is."""

    name: Name
    dataset_id: Identifier
    recipe: Text
    epsilon: Epsilon | None = Field(default=None, description="Of each trial that names none.")
    trials: list[TrialRequest] = Field(min_length=2, max_length=64)
    evaluation_dataset_id: Identifier | None = Field(default=None, description="A public dataset to measure against.")


class StageFacts(ApiRecord):
    """One kind of noisy release in a plan."""

    name: str
    releases: int
    repeats: int = Field(0, description="Further releases that the price pays for, should a crash make them necessary.")
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
    silent_minutes: int | None = Field(
        default=None,
        description="A coarse lower bound, where the worker has given no sign of life for so long that it will soon be "
        "ended and resumed; null for the usual case.",
    )


class FailureFacts(ApiRecord):
    """Why a job did not succeed, from a closed set."""

    code: str
    message: str


class PreviewRecord(ApiRecord):
    """A plan tried on a public stand-in with what was declared; its state is its job's."""

    id: str
    job_id: str
    state: str
    dataset_id: str
    recipe: str
    epsilon: float
    options: dict[str, Any]
    stand_in: str | None = Field(description="What stood in for the private images; null until it has ended.")
    accuracy: float | None = Field(
        description="In [0, 1], of a small CNN that learned what was drawn, on other images of the stand-in."
    )
    real_accuracy: float | None = Field(
        description="The same CNN's, had it learned the stand-in's own images. Null for a recipe that trains a "
        "classifier, whose own accuracy is given."
    )
    chance: float | None = Field(description="Accuracy of guessing.")
    verdict: str | None = Field(description="The forecast in words, with a warning where the signal drowns.")
    notes: list[str] = Field(description="Of the plan.")
    failure: FailureFacts | None
    created_at: Minute
    finished_at: Minute | None


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
    created_at: Minute
    started_at: Minute | None
    finished_at: Minute | None


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
    """Sums over the trials, in nano-units of mu^2 and, together, as epsilons at its delta."""

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
    created_at: Minute


class EventRecord(ApiRecord):
    """The data of one server-sent event."""

    job_id: str
    state: str
    cancel_requested: bool
    progress: ProgressFacts
    failure: FailureFacts | None
    release_id: str | None
    sample_id: str | None


class HistogramFacts(ApiRecord):
    """How many units each class has, as released: exact counts with noise."""

    classes: list[str]
    counts: list[int] = Field(description="The noisy counts, at least 0 and at most what was declared.")
    noisy_counts: list[int] = Field(description="As the mechanism released them: unbiased, possibly below 0.")
    standard_error: float = Field(description="Of each noisy count.")


class MadeFacts(ApiRecord):
    """Of one stage: noisy releases that were made, and that were planned."""

    made: int
    planned: int


class IncompleteFacts(ApiRecord):
    """How much of its plan a training had made when it ended early. The guarantee is that of what was made."""

    reason: str = Field(description="`cancelled`, or the code of a failure.")
    share: float = Field(description="Of the planned noisy releases, rounded down.")
    made: int
    planned: int
    stages: dict[str, MadeFacts]


class ReleaseRecord(ApiRecord):
    """What a training has published. Sampling a generator costs nothing, for ever."""

    id: str
    kind: str = Field(description="`generator` (images can be drawn from it), `classifier` or `histogram`.")
    job_id: str
    account_id: str
    dataset_id: str
    name: str
    artifact_sha256: str
    summary: dict[str, Any] = Field(description="Public facts, and accuracies of the newest evaluation that has ended.")
    incomplete: IncompleteFacts | None = Field(description="Of a training that ended before its plan.")
    histogram: HistogramFacts | None = Field(description="The counts of a histogram.")
    created_at: Minute


class EvaluationRequest(ApiRequest):
    """Measure a release on a public dataset with the classes and the shape of the training's. It costs nothing."""

    dataset_id: Identifier
    samples: int | None = Field(
        default=None, ge=1, description="Synthetic images that classifiers are trained on; for generators alone."
    )
    seed: int | None = Field(default=None, ge=0, lt=2**63, description="Public; of the samples and the classifiers.")


class EvaluationRecord(ApiRecord):
    """One measurement of a release on a public dataset; its state is its job's."""

    id: str
    release_id: str
    job_id: str
    dataset_id: str
    state: str
    samples: int | None
    seed: int
    accuracy: dict[str, float] | None = Field(description="In [0, 1], by classifier; null until it has ended.")
    accuracy_warm_start_only: dict[str, float] | None
    accuracy_real: float | None = Field(
        description="Of the CNN where it learns half of the public images and is tested on the others; of a generator."
    )
    failure: FailureFacts | None
    created_at: Minute
    finished_at: Minute | None


class SampleRequest(ApiRequest):
    """Draw synthetic images from a release. The seed is public: the same request gives the same bytes."""

    count: int = Field(ge=1)
    classes: list[Text] | None = Field(default=None, min_length=1, max_length=1000)
    seed: int = Field(ge=0, lt=2**63)
    format: SampleFormat


class SampleRecord(ApiRecord):
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
    created_at: Minute
