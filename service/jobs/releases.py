"""Find releases, hide private facts about them from other projects, and share them.

Sharing a release takes two people; ending a share takes one. When a share ends, the other project keeps images that it
has generated or downloaded; its unfinished jobs on the release are cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.words import UNFINISHED, DecisionAction
from service.db.access_tables import EVERY_PROJECT, ApiKey, Decision, Project
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Share
from service.errors import Conflict, NotFound
from service.identity.access import find, is_own, project_of, visible
from service.identity.decisions import acting_key, ask
from service.identity.recording import Act, record
from service.jobs.lifecycle import cancel

SHARES_SHOWN_MAX = 100


def get_own_release(session: Session, release_id: str) -> Release:
    """Return a release of the caller's own project: sharing a release does not share its account."""
    release = find(session, Release, release_id)
    if not is_own(session, project_of(session, release.account_id)):
        raise NotFound(
            "Only the project that trained this release may see this, because it describes the project's account.",
            release_id=release_id,
        )
    return release


def trained_on(session: Session, release: Release) -> Dataset:
    """Return the dataset of a visible release. Only show its classes and image size: other facts may be hidden."""
    return session.get_one(Dataset, release.dataset_id)


def training_of(session: Session, release: Release) -> Job:
    """Return the training of a visible release. Only show its recipe and options: other facts may be hidden."""
    return session.get_one(Job, release.job_id)


def payer_of(session: Session, release: Release) -> dict[str, str | None]:
    """Return the account and dataset columns for a job on a release.

    They are None for a release shared by another project, because the job belongs to the caller's project.
    """
    own = is_own(session, project_of(session, release.account_id))
    return {name: getattr(release, name) if own else None for name in ("account_id", "dataset_id")}


def request_share(
    session: Session, *, release_id: str, project_id: str | None, reason: str, requested_with: str, now: datetime
) -> Decision:
    """Request to share a release with another project, or with every project (None). A second person must approve."""
    asking, release = acting_key(session, requested_with), get_own_release(session, release_id)
    home, other = project_of(session, release.account_id), project_id or EVERY_PROJECT
    if other == home:
        raise Conflict("This release belongs to that project already.", project_id=other)
    if other != EVERY_PROJECT and session.get(Project, other) is None:
        raise NotFound("There is no such project.", project_id=other)
    _require_unshared(session, release.id, other)
    terms = {"name": release.name, "project_id": home, "release_id": release.id, "shared_with": other}
    return ask(session, DecisionAction.SHARE, release.name, asking=asking, reason=reason, now=now, **terms)


def _share(session: Session, decision: Decision, _approving: ApiKey, now: datetime) -> None:
    release_id, other = str(decision.release_id), str(decision.shared_with)
    _require_unshared(session, release_id, other)
    session.add(
        Share(id=new_id("shr"), release_id=release_id, project_id=other, decision_id=decision.id, created_at=now)
    )
    record(session, Act.RELEASE_SHARED, release_id, project_id=decision.project_id)


SHARE_EFFECTS = {DecisionAction.SHARE: _share}


def end_share(session: Session, *, release_id: str, share_id: str, now: datetime) -> Share:
    """Stop sharing a release at once. Idempotent."""
    release = get_own_release(session, release_id)
    share = find(session, Share, share_id, lock=True)
    if share.release_id != release_id:
        raise NotFound("There is no such share.", share_id=share_id)
    if share.ended_at is None:
        share.ended_at = now
        session.flush()
        record(session, Act.RELEASE_UNSHARED, release_id, project_id=project_of(session, release.account_id))
        current = Share.release_id == release_id, Share.ended_at.is_(None)
        shared_with = set(session.scalars(select(Share.project_id).where(*current)))
        if EVERY_PROJECT not in shared_with:
            foreign = Job.release_id == release_id, Job.account_id.is_(None), Job.project_id.not_in(shared_with)
            unfinished = select(Job).where(*foreign, Job.state.in_(UNFINISHED)).order_by(Job.id).with_for_update()
            for job in session.scalars(unfinished.execution_options(populate_existing=True)).all():
                cancel(session, job, now=now)
    return share


def shares(session: Session, release_id: str) -> Sequence[Share]:
    """Return the current shares of a release of the caller's project, oldest first."""
    open_now = Share.release_id == release_id, Share.ended_at.is_(None)
    found = visible(session, Share).where(*open_now).order_by(Share.created_at, Share.id)
    return session.scalars(found.limit(SHARES_SHOWN_MAX)).all()


def _require_unshared(session: Session, release_id: str, project_id: str) -> None:
    same = Share.release_id == release_id, Share.project_id == project_id, Share.ended_at.is_(None)
    if session.scalar(select(Share.id).where(*same).limit(1)) is not None:
        raise Conflict("This release is already shared with that project.", release_id=release_id)
