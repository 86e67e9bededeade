"""What goes over the wire about releases, their samples and their evaluations; see `service.api.schemas`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from service.api.schemas import ApiRecord, ApiRequest, FailureFacts, Identifier, Name, SampleFormat


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
    created_at: datetime


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
    failure: FailureFacts | None
    created_at: datetime
    finished_at: datetime | None


class SampleRequest(ApiRequest):
    """Draw synthetic images from a release. The seed is public: the same request gives the same bytes."""

    count: int = Field(ge=1)
    classes: list[Name] | None = Field(default=None, min_length=1, max_length=1000)
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
    created_at: datetime
