"""What the pages show of releases, and of what is drawn from them and measured of them. Nothing here writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, defer, joinedload, load_only

from obscura.wire.words import DatasetState, Visibility
from service.dashboard.job_queries import older_than
from service.dashboard.queries import ROWS_MAX
from service.db.dataset_tables import Dataset
from service.db.job_tables import Evaluation, Job, Release, Sample
from service.errors import NotFound
from service.jobs.kinds.evaluate import newest_evaluations, with_figures

RELEASES_A_PAGE = 30
RECENT_RELEASES = 6
EVALUATIONS_MAX = 20

_RELEASES = select(Release).options(
    load_only(
        Release.kind,
        Release.name,
        Release.card,
        Release.summary,
        Release.incomplete,
        Release.created_at,
        raiseload=True,
    ),
    joinedload(Release.dataset).load_only(Dataset.name, raiseload=True),
)


@dataclass(frozen=True)
class ReleaseView:
    """A release, and its summary with the figures of its newest evaluation."""

    release: Release
    summary: dict[str, Any]


def list_releases(
    session: Session,
    *narrowed: ColumnElement[bool],
    limit: int,
    account_id: str | None = None,
    before: str | None = None,
) -> list[ReleaseView]:
    """Return what lists show of releases, newest first.

    Args:
        session: Any transaction.
        narrowed: Conditions on the releases.
        limit: How many at most.
        account_id: Of this account; None for all.
        before: Id of a release, all of which are older; None for the newest.

    Raises:
        NotFound: There is no such release.
    """
    query = _RELEASES if account_id is None else _RELEASES.where(Release.account_id == account_id)
    query = query.where(*narrowed, *older_than(session, Release, before))
    rows = session.scalars(query.order_by(Release.created_at.desc(), Release.id.desc()).limit(limit)).all()
    newest = newest_evaluations(session, [row.id for row in rows])
    return [ReleaseView(row, with_figures(row.summary, newest.get(row.id))) for row in rows]


def list_evaluations(session: Session, release_id: str) -> Sequence[Evaluation]:
    """Return what was measured of a release, and is being measured, newest first."""
    query = select(Evaluation).options(
        joinedload(Evaluation.job).defer(Job.secret, raiseload=True), joinedload(Evaluation.dataset)
    )
    return session.scalars(
        query.where(Evaluation.release_id == release_id).order_by(Evaluation.created_at.desc()).limit(EVALUATIONS_MAX)
    ).all()


def datasets_like(session: Session, like: Dataset) -> Sequence[Dataset]:
    """Return the public datasets that a release of a dataset can be measured on, newest first."""
    query = select(Dataset).where(
        Dataset.visibility == Visibility.PUBLIC,
        Dataset.state == DatasetState.READY,
        Dataset.height == like.height,
        Dataset.width == like.width,
        Dataset.channels == like.channels,
    )
    found = session.scalars(query.order_by(Dataset.created_at.desc()).limit(ROWS_MAX)).all()
    return [dataset for dataset in found if dataset.classes == like.classes]


def read_release(session: Session, release_id: str) -> ReleaseView:
    """Return one release.

    Raises:
        NotFound: There is none.
    """
    query = select(Release).options(
        joinedload(Release.account),
        joinedload(Release.dataset),
        joinedload(Release.job).options(defer(Job.secret, raiseload=True), joinedload(Job.evaluation_dataset)),
    )
    release = session.scalar(query.where(Release.id == release_id))
    if release is None:
        raise NotFound("There is no such release.")
    return ReleaseView(
        release, with_figures(release.summary, newest_evaluations(session, [release_id]).get(release_id))
    )


def list_samples(session: Session, release_id: str) -> Sequence[Sample]:
    """Return the drawings from a release, newest first."""
    query = select(Sample).options(joinedload(Sample.job).defer(Job.secret, raiseload=True))
    return session.scalars(
        query.where(Sample.release_id == release_id).order_by(Sample.created_at.desc()).limit(ROWS_MAX)
    ).all()


def read_sample(session: Session, sample_id: str) -> Sample:
    """Return one finished drawing.

    Raises:
        NotFound: There is none, or it has no file yet.
    """
    sample = session.get(Sample, sample_id)
    if sample is None or sample.path is None:
        raise NotFound("There is no such file.")
    return sample


def count_releases(session: Session) -> int:
    """Return how many releases there are."""
    return session.scalar(select(func.count()).select_from(Release)) or 0
