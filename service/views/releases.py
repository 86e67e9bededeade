"""Datasets; releases with their evaluations, samples and shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, select
from sqlalchemy.orm import Session, joinedload

from obscura.wire.release_schemas import EvaluationRecord, ReleaseRecord, SampleRecord, ShareRecord
from obscura.wire.schemas import DatasetRecord, record_of
from obscura.wire.words import DatasetState, ReleaseKind, Visibility
from service.db.access_tables import EVERY_PROJECT
from service.db.dataset_tables import Dataset
from service.db.job_tables import Evaluation, Job, Release, Sample, Share
from service.errors import NotFound
from service.identity import projects
from service.identity.access import is_own, projects_of, visible
from service.jobs.kinds import evaluate, sample
from service.jobs.planning import why_unfit
from service.views import ROWS_MAX, newest, with_job
from service.views.accounts import Payer, Payments
from service.views.jobs import payments_of

EVALUATIONS_SHOWN = 20

# Without the receipt, which is long and has its own route.
_COLUMNS = (
    *("id", "kind", "job_id", "account_id", "dataset_id", "name", "artifact_sha256", "card", "summary", "incomplete"),
    "created_at",
)
_OF_CARD = ("epsilon", "delta", "unit", "recipe")
_ACCURACIES = ("accuracy", "balanced_accuracy", "accuracy_by_class")
RELEASES = select(*[getattr(Release, name) for name in _COLUMNS])
_ON_PAGES = (
    RELEASES.add_columns(Dataset.name.label("dataset_name"), Job.hold_id).join(Release.dataset).join(Release.job)
)


def dataset_record(row: Dataset) -> DatasetRecord:
    """Return the record of a dataset. Omits size and digest of private content, because they depend on private data."""
    public = row.visibility is Visibility.PUBLIC
    return record_of(
        DatasetRecord,
        row,
        content_sha256=row.content_sha256 if public else None,
        content_bytes=row.content_bytes if public else None,
    )


def public_datasets(session: Session, like: DatasetRecord) -> tuple[list[DatasetRecord], list[tuple[str, str]]]:
    """Return the public datasets that can evaluate a release trained on dataset `like`, newest first.

    Also return the names of other public datasets, each with the reason why it cannot.
    """
    size = (Dataset.height == like.height) & (Dataset.width == like.width) & (Dataset.channels == like.channels)
    query = visible(session, Dataset).where(Dataset.visibility == Visibility.PUBLIC)
    found = session.scalars(query.order_by(size.desc(), Dataset.created_at.desc()).limit(ROWS_MAX)).all()
    reasons = [
        (row, why_unfit(row, like) if row.state is DatasetState.READY else f"it is {row.state.value}, not ready")
        for row in found
    ]
    fitting = [dataset_record(row) for row, reason in reasons if not reason]
    return fitting, [(row.name, reason) for row, reason in reasons if reason]


def records(session: Session, rows: Sequence[Release | Row[Any]]) -> list[ReleaseRecord]:
    """Return the records of releases, or of rows selected by RELEASES, with results of their newest evaluations."""
    measured = evaluate.newest_evaluations(session, [row.id for row in rows])
    projects = projects_of(session, (row.account_id for row in rows))
    classes_of = visible(session, Release, select(Release.id, Dataset.classes).join(Release.dataset))
    found = session.execute(classes_of.where(Release.id.in_([row.id for row in rows])))
    classes = {row.id: row.classes for row in found}
    shown = []
    for row in rows:
        summary = evaluate.with_figures(row.summary, measured.get(row.id))
        facts = {name: row.card[name] for name in _OF_CARD} | {name: summary.get(name) for name in _ACCURACIES}
        facts["histogram"] = summary.pop("histogram", None) if row.kind is ReleaseKind.HISTOGRAM else None
        facts |= {"classes": classes[row.id], "summary": summary, "project_id": projects[row.account_id]}
        shown.append(record_of(ReleaseRecord, row, **facts))
    return shown


@dataclass(frozen=True)
class ReleaseView:
    """A release in a list on a page. For shared releases the dataset's name is hidden."""

    release: ReleaseRecord
    card: dict[str, Any]
    dataset_name: str | None
    used_fraction: float | None  # cost as a fraction of the account's lifetime budget


def views(
    session: Session, *narrowed: ColumnElement[bool], limit: int, before: str | None = None, with_costs: bool = False
) -> tuple[list[ReleaseView], str | None]:
    """Return a page of releases, newest first, and the id of its last release if more follow.

    Show costs only for releases of the caller's own project.
    """
    rows, last = newest(session, Release, *narrowed, limit=limit, before=before, columns=_ON_PAGES)
    paid, shown = payments_of(session, rows) if with_costs else None, []
    for release, row in zip(records(session, rows), rows, strict=True):
        name = row.dataset_name if is_own(session, release.project_id) else None
        used = None if paid is None else _used_fraction(paid, row.account_id, row.hold_id)
        shown.append(ReleaseView(release, row.card, name, used))
    return shown, last


def _used_fraction(paid: Payments, account_id: str, hold_id: str | None) -> float | None:
    """Return None if the account contradicts its log."""
    balance = paid.payer(account_id).balance
    if balance is None or hold_id is None:
        return None
    return paid.holds[hold_id].captured_nano / max(balance.capacity_nano, balance.spent_nano + balance.reserved_nano)


@dataclass(frozen=True)
class WholeRelease(ReleaseView):
    """A release on its own page. For shared releases, payer and options are hidden."""

    payer: Payer | None
    dataset: DatasetRecord
    recipe: str
    options: dict[str, Any]


def view(session: Session, release_id: str) -> WholeRelease:
    query = visible(session, Release).options(with_job(Release), joinedload(Release.dataset))
    row = session.scalar(query.where(Release.id == release_id))
    if row is None:
        raise NotFound("There is no such release.")
    (release,) = records(session, [row])
    own = is_own(session, release.project_id)
    paid = payments_of(session, [row.job]) if own else None
    return WholeRelease(
        release=release,
        card=row.card,
        dataset_name=row.dataset.name if own else None,
        used_fraction=None if paid is None else _used_fraction(paid, row.account_id, row.job.hold_id),
        payer=None if paid is None else paid.payer(row.account_id),
        dataset=dataset_record(row.dataset),
        recipe=row.job.recipe,
        options={**row.job.plan.get("config", {}), **row.job.options} if own else {},
    )


def shares(session: Session, rows: Sequence[Share]) -> list[ShareRecord]:
    names = projects.names(session, [row.project_id for row in rows])
    return [
        record_of(
            ShareRecord,
            row,
            project_id=None if row.project_id == EVERY_PROJECT else row.project_id,
            project_name=names.get(row.project_id),
        )
        for row in rows
    ]


def evaluations(session: Session, release_id: str) -> list[tuple[EvaluationRecord, str, bool]]:
    """Return a release's evaluations, newest first, each with its dataset's name, and True if it is to be cancelled."""
    query = visible(session, Evaluation).options(with_job(Evaluation), joinedload(Evaluation.dataset))
    query = query.where(Evaluation.release_id == release_id).order_by(Evaluation.created_at.desc())
    rows = session.scalars(query.limit(EVALUATIONS_SHOWN))
    return [(evaluate.show(row, row.job), row.dataset.name, row.job.cancel_requested) for row in rows]


def samples(session: Session, release_id: str) -> list[tuple[SampleRecord, bool]]:
    """Return the samples of a release, newest first, each with True if it is to be cancelled."""
    query = visible(session, Sample).options(with_job(Sample)).where(Sample.release_id == release_id)
    rows = session.scalars(query.order_by(Sample.created_at.desc()).limit(ROWS_MAX))
    return [(sample.show(row, row.job), row.job.cancel_requested) for row in rows]
