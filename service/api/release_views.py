"""Releases, their samples and their evaluations as wire records; see `service.api.views`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from service.api.job_views import failure
from service.api.release_schemas import (
    EvaluationRecord,
    HistogramFacts,
    IncompleteFacts,
    ReleaseRecord,
    SampleRecord,
)
from service.api.views import record
from service.db.job_tables import Evaluation, Job, Release, Sample
from service.db.words import ReleaseKind
from service.jobs.evaluations import newest_evaluations, with_figures

# What is shown of a release; its card and its receipt, which are long, have addresses of their own.
RELEASES = select(
    Release.id,
    Release.kind,
    Release.job_id,
    Release.account_id,
    Release.dataset_id,
    Release.name,
    Release.artifact_sha256,
    Release.summary,
    Release.incomplete,
    Release.created_at,
)


def releases(session: Session, rows: Sequence[Release | Row[Any]]) -> list[ReleaseRecord]:
    """Releases, whole or as RELEASES finds them, with the figures of their newest evaluations.

    Their cards and files have addresses of their own.
    """
    newest = newest_evaluations(session, [row.id for row in rows])
    return [_release(row, newest.get(row.id)) for row in rows]


def _release(row: Release | Row[Any], newest: Evaluation | None) -> ReleaseRecord:
    summary = with_figures(row.summary, newest)
    histogram = summary.pop("histogram", None) if row.kind is ReleaseKind.HISTOGRAM else None
    return record(
        ReleaseRecord,
        row,
        summary=summary,
        incomplete=None if row.incomplete is None else IncompleteFacts(**row.incomplete),
        histogram=None if histogram is None else HistogramFacts(**histogram),
    )


def evaluation(row: Evaluation, job: Job) -> EvaluationRecord:
    """An evaluation; its state is its job's."""
    results = row.results or {}
    return record(
        EvaluationRecord,
        row,
        state=job.state,
        accuracy=results.get("accuracy"),
        accuracy_warm_start_only=results.get("accuracy_warm_start_only"),
        failure=failure(job),
    )


def sample(row: Sample, job: Job) -> SampleRecord:
    """A sample; its state is its job's."""
    return record(SampleRecord, row, state=job.state, failure=failure(job))
