"""Requests and records of releases, samples, evaluations and shares; see `obscura.wire.schemas`."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from pydantic import Field

from obscura.wire import schemas
from obscura.wire.formats import SampleFormat
from obscura.wire.job_schemas import OutcomeFacts, RecipeName
from obscura.wire.texts import SHARE_MAX, SHARE_MIN

Proportion = Annotated[float, Field(ge=SHARE_MIN, le=SHARE_MAX)]
Proportions = Annotated[dict[schemas.Text, Proportion], Field(min_length=1, max_length=1000)]


class HistogramFacts(schemas.ApiRecord):
    """Released number of units per class: the true counts plus noise."""

    classes: list[str] = Field(description="Names of the classes, in the order of their labels.")
    counts: list[int] = Field(description="The noisy counts, clipped to between 0 and the declared number.")
    noisy_counts: list[int] = Field(description="The counts before clipping: unbiased, possibly below 0.")
    standard_error: float = Field(description="Standard error of each noisy count.")


class MadeFacts(schemas.ApiRecord):
    """Noisy releases of one stage: completed and planned."""

    made: int = Field(description="Noisy releases that were made.")
    planned: int = Field(description="Noisy releases that were planned.")


class IncompleteFacts(MadeFacts):
    """The completed part of a training that ended early. The guarantee covers the completed noisy releases."""

    reason: str = Field(description="`cancelled`, or the code of a failure.")
    fraction: float = Field(description="Completed share of the planned noisy releases, rounded down.")
    stages: dict[str, MadeFacts] = Field(description="How many were made and planned, by stage.")


class ReleaseRecord(schemas.DatedRecord, schemas.NamedRecord):
    """A published result of a training. Sampling a generator is free, forever."""

    kind: str = Field(description="`generator` (can generate images), `classifier` or `histogram`.")
    job_id: str = Field(description="The job.")
    account_id: schemas.AccountId
    dataset_id: schemas.DatasetId
    recipe: RecipeName
    epsilon: float = Field(description="Cost of the release, at the account's delta.")
    delta: schemas.Delta
    unit: str = Field(description="The protected unit: one `record`, or all records of a `subject`.")
    classes: list[str] = Field(description="Names of the classes, in the order of their labels.")
    accuracy: dict[str, float] | None = Field(description="Accuracy in [0, 1] in the newest evaluation, by classifier.")
    balanced_accuracy: dict[str, float] | None = Field(description="Mean of the classes' accuracies, by classifier.")
    accuracy_by_class: dict[str, float] | None = Field(description="Accuracy by class, of the CNN or the classifier.")
    artifact_sha256: str = Field(description="SHA-256 over the files that were published.")
    summary: dict[str, Any] = Field(description="Public facts, and accuracies of the newest evaluation that has ended.")
    incomplete: IncompleteFacts | None = Field(description="Completed part, if the training ended early; else null.")
    histogram: HistogramFacts | None = Field(description="The counts, if the release is a histogram; else null.")
    project_id: str = Field(description="The project that trained it. If it is not yours, it shares the release.")

    @property
    def compared_by(self) -> float | None:
        """Return the accuracy of the CNN or the classifier: the balanced one if the classes are uneven."""
        uneven = self.summary.get("evaluation", {}).get("uneven_classes")
        accuracies = (self.balanced_accuracy if uneven else self.accuracy) or {}
        return accuracies.get("cnn", accuracies.get("classifier"))


class EvaluationRequest(schemas.ApiRequest):
    """Evaluate a release on a public dataset with the same classes and shape, for free."""

    dataset_id: schemas.Identifier = Field(description="Id of the public dataset.")
    samples: int | None = Field(default=None, ge=1, description="Images to generate and train classifiers on.")
    seed: int | None = Field(default=None, ge=0, lt=2**63, description="Public seed of samples and classifiers.")


class SimilarityFacts(schemas.ApiRecord):
    """Similarity of synthetic and public images, by one named extractor."""

    extractor: str = Field(
        description="Network that computed the features. Compare distances only if extractor, dataset and number of "
        "images are the same. Only distances of the usual Inception network are FIDs."
    )
    frechet_distance: float = Field(
        description="Distance between Gaussians fitted to both sets of features; 0 for equal sets."
    )
    precision: float = Field(description="Share of the synthetic images that lie in the region of the real images.")
    recall: float = Field(description="Share of the real images that lie in the region of the synthetic images.")
    images: int = Field(description="Number of images compared, of each kind.")


class EvaluationRecord(OutcomeFacts, schemas.DatedRecord):
    """One evaluation of a release on a public dataset; its state is the state of its job."""

    release_id: str = Field(description="The release.")
    dataset_id: schemas.DatasetId
    samples: int | None = Field(
        description="Number of synthetic images that were measured; null unless the release is a generator."
    )
    seed: int = Field(description="Public seed: the same request gives the same result.")
    accuracy: dict[str, float] | None = Field(description="Accuracy in [0, 1], by classifier; null until it has ended.")
    balanced_accuracy: dict[str, float] | None = Field(description="Mean of the classes' accuracies, by classifier.")
    accuracy_by_class: dict[str, float] | None = Field(description="Accuracy by class, of the CNN or the classifier.")
    similarity: SimilarityFacts | None = Field(description="Similarity of generated to public images, for a generator.")
    accuracy_warm_start_only: dict[str, float] | None = Field(description="Accuracy without the generator's guide.")
    accuracy_real: float | None = Field(
        description="Accuracy of the CNN trained on half of the public images, measured on the other half."
    )
    finished_at: schemas.Minute | None = Field(description="When it ended; null before.")


class SampleRequest(schemas.ApiRequest):
    """Generate synthetic images. The seed is public: the same request returns the same bytes."""

    count: int = Field(ge=1, description="Number of images.")
    classes: list[schemas.Text] | None = Field(
        default=None, min_length=1, max_length=1000, description="Classes to generate."
    )
    proportions: Proportions | Literal["stated"] | None = Field(
        default=None,
        description="Instead of `classes`: a number for each class to generate; only the ratios matter. `stated`: the "
        "numbers in the training's option `class_fractions`. Absent: all classes equally often.",
    )
    seed: int = Field(ge=0, lt=2**63, description="Public seed: the same request gives the same result.")
    format: SampleFormat = Field(description="File format.")


class SampleRecord(OutcomeFacts, schemas.DatedRecord):
    """A set of synthetic images, which can be downloaded after its job has succeeded."""

    release_id: str = Field(description="The release.")
    count: int = Field(description="Number of images.")
    classes: list[str] | None = Field(description="Names of the classes, in the order of their labels.")
    proportions: dict[str, float] | None = Field(default=None, description="Requested ratio by class; null if equal.")
    seed: int = Field(description="Public seed: the same request gives the same result.")
    format: str = Field(description="File format.")
    sha256: str | None = Field(description="SHA-256 of the file; null until the file exists.")
    bytes: int | None = Field(description="Size of the file.")
    removed_at: schemas.Minute | None = Field(
        default=None, exclude_if=operator.not_, description="When the file expired."
    )


class ShareRequest(schemas.ReasonRequest):
    """Request to share a release with another project, or with all. Another person must approve."""

    project_id: schemas.Identifier | None = Field(
        default=None, description="The other project. Absent: all, now and later."
    )


class ShareRecord(schemas.DatedRecord):
    """Access of another project, or of all projects, to a release."""

    release_id: str = Field(description="The release.")
    project_id: str | None = Field(description="The other project; null for all projects.")
    project_name: str | None = Field(description="Name of the other project.")
    ended_at: schemas.Minute | None = Field(description="When sharing was ended; null while it is shared.")
