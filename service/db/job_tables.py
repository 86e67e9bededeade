"""Tables of jobs and their results: sweeps, jobs, releases, shares, samples, evaluations, previews."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any, Self

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, column_property, mapped_column, relationship

from obscura.wire.words import EarlyEnd, JobState, ReleaseKind, SampleFormat
from service.db.access_tables import DEFAULT_PROJECT
from service.db.base import CanonicalJson, Entity, Id, Name, Nano, Sha256, ShortText, partial_index, values_of
from service.db.dataset_tables import Dataset
from service.db.ledger_tables import Account, Hold


class FailureCode(enum.StrEnum):
    """The public reason why a job failed, and its message. Failures caused by the data cannot be told apart."""

    message: str

    def __new__(cls, code: str, message: str = "") -> Self:
        word = str.__new__(cls, code)
        word._value_, word.message = code, message
        return word

    TRAINING_FAILED = "training_failed", "The training did not finish, and had nothing that could be published."
    EVALUATION_FAILED = (
        "evaluation_failed",
        "The evaluation did not finish. The release is unchanged; request another evaluation.",
    )
    SAMPLING_FAILED = "sampling_failed", "The sampling did not finish. Requesting it again costs nothing."
    DATASET_UNAVAILABLE = "dataset_unavailable", "The dataset could not be opened."
    RELEASE_UNAVAILABLE = "release_unavailable", "The release's files could not be opened."
    HOLD_EXHAUSTED = "hold_exhausted", "The budget held for this job was used up before there was anything to publish."
    OUT_OF_MEMORY = "out_of_memory", "The worker ran out of memory."
    TIME_LIMIT = "time_limit", "The job took longer than the service allows, and had nothing that could be published."
    WORKER_LOST = "worker_lost", "The process that ran the job died too often, and nothing could be published."
    LEDGER_UNAVAILABLE = "ledger_unavailable", "The ledger could not be reached, and without it nothing may be charged."
    INTERNAL = "internal", "An internal error occurred. The operator's log has details."
    PREVIEW_FAILED = "preview_failed", "The preview did not finish. Requesting it again costs nothing."


class Sweep(Entity):
    """A sweep: several trainings on one dataset. One transaction holds the budget for all of them."""

    __tablename__ = "sweeps"
    __table_args__ = (CheckConstraint("cost_nano > 0", "price_positive"),)

    account_id: Mapped[Id] = mapped_column(ForeignKey("accounts.id"), index=True)
    dataset_id: Mapped[Id] = mapped_column(ForeignKey("datasets.id"))
    name: Mapped[Name]
    recipe: Mapped[ShortText]
    cost_nano: Mapped[Nano]
    created_at: Mapped[datetime] = mapped_column(index=True)


class Job(Entity):
    """A requested training, or a job of another kind (`service.jobs.kinds`).

    `release_id` is the release that a sample or an evaluation reads, or that a training has published. `secret` seeds
    the mechanisms' noise: it is never shown or logged, and loading a job omits it (see `jobs.secret_of`).
    `attempts_lost` counts attempts whose worker died, but not regular shutdowns. `ended_early` is the reason why a
    training charges no more; `salvage_attempt` is the attempt that was started only to publish paid results.
    `project_id` is the caller's project. A job on a release shared by another project has no account and no dataset.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint("kind <> ''", "kind"),
        CheckConstraint("attempt >= 0", "attempt_not_negative"),
        CheckConstraint("attempts_lost >= 0 AND attempts_lost <= attempt", "lost_were_attempts"),
        CheckConstraint("epsilon IS NULL OR epsilon > 0", "epsilon_positive"),
        CheckConstraint("(kind = 'train') = (hold_id IS NOT NULL)", "training_has_hold"),
        CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", "running_has_lease"),
        CheckConstraint(
            "(state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)", "ended_has_time"
        ),
        CheckConstraint("(state = 'failed') = (failure_code IS NOT NULL)", "failed_has_code"),
        CheckConstraint("ended_early IS NULL OR kind = 'train'", "training_ends_early"),
        CheckConstraint("salvage_attempt IS NULL OR ended_early IS NOT NULL", "salvage_ended_early"),
        partial_index("ix_jobs_open", "created_at", where="state IN ('queued', 'running')"),
        Index(None, "account_id", "created_at"),
        Index(None, "project_id", "created_at"),
        Index(None, "project_id", "finished_at"),  # to count the unfinished jobs of a project
        Index(None, "state", "created_at"),
        Index(None, "recipe", "created_at"),
    )

    kind: Mapped[str] = mapped_column(String(32))
    account_id: Mapped[Id | None] = mapped_column(ForeignKey("accounts.id"))
    dataset_id: Mapped[Id | None] = mapped_column(ForeignKey("datasets.id"), index=True)
    evaluation_dataset_id: Mapped[Id | None] = mapped_column(ForeignKey("datasets.id"), index=True)
    release_id: Mapped[Id | None] = mapped_column(index=True)  # no foreign key, because releases refer to jobs
    recipe: Mapped[ShortText]
    epsilon: Mapped[float | None]
    options: Mapped[dict[str, Any]]
    plan: Mapped[dict[str, Any]]
    state: Mapped[JobState] = mapped_column(values_of(JobState, "state"))
    attempt: Mapped[int]
    attempts_lost: Mapped[int] = mapped_column(default=0)
    lease_owner: Mapped[Name | None]
    lease_until: Mapped[datetime | None]
    cancel_requested: Mapped[bool]
    ended_early: Mapped[EarlyEnd | None] = mapped_column(values_of(EarlyEnd, "ended_early"))
    salvage_attempt: Mapped[int | None]
    progress: Mapped[dict[str, Any]]
    progress_version: Mapped[int]
    failure_code: Mapped[FailureCode | None] = mapped_column(values_of(FailureCode, "failure_code"))
    hold_id: Mapped[Id | None] = mapped_column(ForeignKey("holds.id"))
    sweep_id: Mapped[Id | None] = mapped_column(ForeignKey("sweeps.id"), index=True)
    secret: Mapped[Sha256] = mapped_column(deferred=True, deferred_raiseload=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    project_id: Mapped[Id] = mapped_column(server_default=DEFAULT_PROJECT)

    account: Mapped[Account | None] = relationship(lazy="raise_on_sql", viewonly=True)
    dataset: Mapped[Dataset | None] = relationship(lazy="raise_on_sql", viewonly=True, foreign_keys=[dataset_id])
    hold: Mapped[Hold | None] = relationship(lazy="raise_on_sql", viewonly=True)


class Release(Entity):
    """A published release with its privacy card. A row exists only together with the ledger's capture that paid for it.

    `receipt` is the signed statement that this capture is in the account's log. If the training ended early,
    `incomplete` states which part of the plan it completed; otherwise None.
    """

    __tablename__ = "releases"
    __table_args__ = (Index(None, "account_id", "created_at"),)

    job_id: Mapped[Id] = mapped_column(ForeignKey("jobs.id"), unique=True)
    account_id: Mapped[Id] = mapped_column(ForeignKey("accounts.id"))
    dataset_id: Mapped[Id] = mapped_column(ForeignKey("datasets.id"), index=True)
    name: Mapped[Name]
    kind: Mapped[ReleaseKind] = mapped_column(values_of(ReleaseKind, "kind"), default=ReleaseKind.GENERATOR)
    artifact_sha256: Mapped[Sha256]
    artifact_dir: Mapped[str]
    card: Mapped[dict[str, Any]]
    summary: Mapped[dict[str, Any]]
    incomplete: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    receipt: Mapped[dict[str, Any]] = mapped_column(CanonicalJson())
    created_at: Mapped[datetime] = mapped_column(index=True)

    job: Mapped[Job] = relationship(lazy="raise_on_sql", viewonly=True)
    account: Mapped[Account] = relationship(lazy="raise_on_sql", viewonly=True)
    dataset: Mapped[Dataset] = relationship(lazy="raise_on_sql", viewonly=True)


class Share(Entity):
    """The sharing of a release with another project, or with EVERY_PROJECT, approved by two people."""

    __tablename__ = "shares"
    __table_args__ = (
        partial_index("uq_shares_open", "release_id", "project_id", where="ended_at IS NULL", unique=True),
    )

    release_id: Mapped[Id] = mapped_column(ForeignKey("releases.id"))
    project_id: Mapped[Id]
    decision_id: Mapped[Id] = mapped_column(ForeignKey("decisions.id"))
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class Sample(Entity):
    """Images generated from a release. The job has the state, and sets `path`, `sha256` and `bytes` on success.

    At `removed_at` its files were removed. Generating them again gives the same files.
    """

    __tablename__ = "samples"
    __table_args__ = (CheckConstraint("count > 0", "count_positive"), CheckConstraint("seed >= 0", "seed_not_negative"))

    job_id: Mapped[Id] = mapped_column(ForeignKey("jobs.id"), unique=True)
    release_id: Mapped[Id] = mapped_column(ForeignKey("releases.id"), index=True)
    count: Mapped[int]
    classes: Mapped[list[str] | None]
    proportions: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    seed: Mapped[int] = mapped_column(BigInteger)
    format: Mapped[SampleFormat] = mapped_column(values_of(SampleFormat, "format"))
    path: Mapped[str | None]
    sha256: Mapped[Sha256 | None]
    bytes: Mapped[int | None] = mapped_column(BigInteger)
    removed_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(index=True)

    job: Mapped[Job] = relationship(lazy="raise_on_sql", viewonly=True)
    release: Mapped[Release] = relationship(lazy="raise_on_sql", viewonly=True)


class Evaluation(Entity):
    """An evaluation of a release on a public dataset. The job has the state, and sets the results on success.

    `confusion` counts images by [true class][predicted class]. It may be large, so lists and reports omit it.
    """

    __tablename__ = "evaluations"
    __table_args__ = (
        CheckConstraint("samples IS NULL OR samples > 0", "samples_positive"),
        CheckConstraint("seed >= 0", "seed_not_negative"),
        CheckConstraint("(results IS NULL) = (finished_at IS NULL)", "results_have_time"),
    )

    job_id: Mapped[Id] = mapped_column(ForeignKey("jobs.id"), unique=True)
    release_id: Mapped[Id] = mapped_column(ForeignKey("releases.id"), index=True)
    dataset_id: Mapped[Id] = mapped_column(ForeignKey("datasets.id"), index=True)
    samples: Mapped[int | None]
    seed: Mapped[int] = mapped_column(BigInteger)
    results: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    confusion: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True), deferred=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
    finished_at: Mapped[datetime | None]

    job: Mapped[Job] = relationship(lazy="raise_on_sql", viewonly=True)
    dataset: Mapped[Dataset] = relationship(lazy="raise_on_sql", viewonly=True)


class Preview(Entity):
    """A training rehearsed on a public stand-in for its data. Its job has the plan and the state, and sets the results.

    The stand-in is the job's evaluation dataset. If there is none, the worker chooses or generates one.
    """

    __tablename__ = "previews"
    __table_args__ = (CheckConstraint("(results IS NULL) = (finished_at IS NULL)", "results_have_time"),)

    job_id: Mapped[Id] = mapped_column(ForeignKey("jobs.id"), unique=True)
    results: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    grid: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    has_grid: Mapped[bool] = column_property(grid.is_not(None))
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]

    job: Mapped[Job] = relationship(lazy="raise_on_sql", viewonly=True)


Made = Sample | Evaluation | Preview  # results of jobs other than releases
