"""Deleting datasets: the key goes first, so that every copy of the images dies with it; what was spent stays spent.

READY (or DECLARED, or WITHDRAWING) -> DELETING -> DELETED. The first step is committed before anything is destroyed, so
a deletion that was interrupted is never forgotten and never claimed too early; the last one waits until no process that
has opened the images is left. Entries, holds, releases, receipts and the fingerprints of private images stay, and no
budget returns. What nothing was ever trained on is erased (`erasing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, false, or_, select
from sqlalchemy.orm import Session

from obscura.wire.words import TRAIN, UNFINISHED, DatasetState
from privacy.plans.options import PUBLIC_DATASET_OPTIONS
from service import jobs, ledger
from service.datasets import erasing, fingerprints, states
from service.datasets.vault import Vault, dataset_of, destroy_file, version_of
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import SessionFactory, among, transaction
from service.dependencies import calling
from service.errors import Conflict, ObscuraError
from service.failpoints import failpoint
from service.identity.access import find, visible
from service.logs import get_logger
from service.settings import Settings

GONE = (DatasetState.DELETING, DatasetState.DELETED)
_JOBS_NAMED_MAX = 5


def delete(
    settings: Settings, factory: SessionFactory, dataset_id: str, *, cancel_jobs: bool, now: datetime
) -> Dataset:
    """Delete a dataset's images for ever, in a few transactions. Doing it again changes nothing.

    Args:
        settings: where keys and images are.
        dataset_id: private or public.
        cancel_jobs: stop the jobs that need it. What trainings have made is discarded, for making more of it would read
            the images; what they have charged stays spent. Their images are unreadable on the disk at once, and in the
            memory of a process that trains until it stops, which takes a step of training; until then the dataset is
            DELETING.
        now: aware.

    Raises:
        NotFound: There is no such dataset.
        Conflict: It is receiving an upload, or trainings need it and are not to be cancelled.
    """
    with calling("storage"):
        with transaction(factory) as session:
            begin(session, dataset_id, cancel_jobs=cancel_jobs, now=now)
        failpoint("delete.after")
        dataset = complete(settings, factory, dataset_id)
    return erasing.erase(factory, dataset_id, now=now) if dataset.state is DatasetState.DELETED else dataset


def begin(session: Session, dataset_id: str, *, cancel_jobs: bool, now: datetime) -> Dataset:
    """Decide that a dataset is deleted. From the commit on no training can be asked for; then call `complete`.

    Deleting one that is being deleted, or was, changes nothing.

    Raises:
        NotFound: There is no such dataset.
        Conflict: It is receiving an upload, or trainings that need it are queued or running and are not to be
            cancelled.
    """
    erased = session.get(Dataset, dataset_id)
    if erased is not None and erased.erased_at is not None:  # which nobody else finds any more
        return erased
    dataset = find(session, Dataset, dataset_id)
    if not states.move(session, dataset_id, DatasetState.DELETING):
        session.refresh(dataset)
        if dataset.state in GONE:
            return dataset
        raise Conflict(
            f"Dataset {dataset_id} is {dataset.state.value}. Delete it when its upload has ended.",
            state=dataset.state.value,
        )
    waiting = locked_jobs(session, [dataset_id], may_cancel=cancel_jobs, whose=f"Dataset {dataset_id}", act="deletion")
    if dataset.account_id is not None:
        lock_payers(session, waiting)
    for job_id in waiting:
        jobs.request_cancel(session, job_id=job_id, now=now, discard=True)
    session.refresh(dataset)
    return dataset


def locked_jobs(
    session: Session, dataset_ids: Sequence[str], *, may_cancel: bool, whose: str, act: str
) -> Sequence[str]:
    """Return the jobs that have not ended and read one of these datasets, and lock them.

    Call it after the datasets' new state was written: whoever wants to submit a job holds their rows until the job is
    there, or finds that state. And call it before any account is locked: ending a queued one locks its account, and a
    worker holds its job first.

    Args:
        whose: which datasets these are, for people, with the first letter of a sentence.
        act: what cancels them.

    Raises:
        Conflict: there are some, and they may not be cancelled.
    """
    needing = or_(false(), *map(_needs, dataset_ids))
    waiting = session.scalars(select(Job.id).where(needing).order_by(Job.id).with_for_update()).all()
    if waiting and not may_cancel:
        raise Conflict(
            f"{whose} is needed by jobs that are queued or running, among them {waiting[0]}. Wait for their end, or "
            f"have them cancelled with the {act}: what trainings have charged stays spent, and they publish nothing.",
            jobs=list(waiting[:_JOBS_NAMED_MAX]),
        )
    return waiting


def lock_payers(session: Session, job_ids: Sequence[str]) -> None:
    """Lock every account that pays for one of some jobs, in the order of the accounts' ids."""
    paying = select(Job.account_id).where(Job.id.in_(job_ids), Job.hold_id.is_not(None))
    for account_id in sorted({each for each in session.scalars(paying) if each is not None}):
        ledger.lock_account(session, account_id)


def jobs_needing(session: Session, dataset_id: str) -> Sequence[str]:
    """Return the ids of jobs that have not ended and read this dataset, oldest first."""
    needing = visible(session, Job, select(Job.id)).where(_needs(dataset_id))
    return session.scalars(needing.order_by(Job.created_at)).all()


def is_needed(session: Session, dataset_id: str) -> bool:
    """Tell whether a job that has not ended reads this dataset, so that its process may have it in memory."""
    return session.scalar(select(select(Job.id).where(_needs(dataset_id)).exists())) is True


def finish(session: Session, dataset_id: str) -> Dataset:
    """Record that key and files are gone, once no training that may have read them runs. Twice changes nothing."""
    no_longer_needed = ~select(Job.id).where(_needs(dataset_id)).exists()
    states.move(session, dataset_id, DatasetState.DELETED, no_longer_needed)
    session.expire_all()
    return session.get_one(Dataset, dataset_id)


def complete(settings: Settings, factory: SessionFactory, dataset_id: str) -> Dataset:
    """Destroy key and files of a dataset whose deletion was begun, and record that. Twice changes nothing.

    With a public dataset its fingerprints go: the images may be private from then on.

    Raises:
        Conflict, OSError: The key cannot be destroyed now.
    """
    Vault.of(settings).shred_all(dataset_id)
    with transaction(factory) as session:
        dataset = finish(session, dataset_id)
    if dataset.account_id is None and dataset.state is DatasetState.DELETED:
        fingerprints.forget(factory, dataset_id, dataset.upload_attempt)
    return dataset


def go_on(settings: Settings, factory: SessionFactory) -> None:
    """Go on with deletions that wait for the end of a training, or were interrupted. May run at any time, and twice."""
    with transaction(factory, read_only=True) as session:
        waiting = session.scalars(select(Dataset.id).where(Dataset.state == DatasetState.DELETING)).all()
    for dataset_id in waiting:
        try:
            complete(settings, factory, dataset_id)
        except (ObscuraError, OSError) as error:  # one that cannot be destroyed now must not keep the others
            get_logger(__name__).error("deletion_delayed", dataset_id=dataset_id, error=type(error).__name__)


def unfinished(session: Session, settings: Settings) -> Sequence[str]:
    """Return the datasets whose content must not be readable, and may be: deletions that were interrupted, and keys
    that came back from a backup after the deletion. `complete` each. Call at start-up."""
    deleting = session.scalars(select(Dataset.id).where(Dataset.state == DatasetState.DELETING)).all()
    found = {dataset_of(name) for name in Vault.of(settings).stored_names()}
    names = [name for name in found - set(deleting) if name is not None]
    deleted = select(Dataset.id).where(Dataset.state == DatasetState.DELETED)
    return [*deleting, *sorted(among(session, deleted, Dataset.id, names))]


def destroy_copies(settings: Settings, factory: SessionFactory) -> None:
    """Destroy the keys of deleted datasets that this machine has still: copies of another machine's, whose own is gone.

    Without that, what was deleted could be read here until somebody removes the copy; and so could the images of who
    has withdrawn, in what was stored before. May run at any time, and twice.
    """
    vault = Vault.of(settings)
    names = {name: dataset_id for name in vault.stored_keys() if (dataset_id := dataset_of(name))}
    with transaction(factory, read_only=True) as session:
        gone = among(session, select(Dataset.id).where(Dataset.state.in_(GONE)), Dataset.id, sorted(names.values()))
        newest = contents_written_anew(session)
    for name, dataset_id in sorted(names.items()):
        if dataset_id in gone or is_outdated(name, newest):
            destroy_file(vault.key_path(name))
            get_logger(__name__).info("key_copy_destroyed", dataset_id=dataset_id)


def contents_written_anew(session: Session) -> dict[str, str]:
    """Return the names of the contents that datasets have since somebody withdrew, by the datasets' ids."""
    rows = session.execute(select(Dataset.id, Dataset.content_name).where(Dataset.content_name.is_not(None)))
    return {row.id: str(row.content_name) for row in rows}


def is_outdated(name: str, newest: Mapping[str, str]) -> bool:
    """Tell whether a content's name is of before one that was written anew. A later one is of a database that was lost.

    Args:
        newest: as `contents_written_anew` returns it.
    """
    present = newest.get(dataset_of(name) or "")
    return present is not None and version_of(name) < version_of(present)


def _needs(dataset_id: str) -> ColumnElement[bool]:
    """Jobs that have not ended and read this dataset: trainings on it or with images from it, and jobs of other kinds
    that read it as a public one.

    Drawing from a release needs none. A training does without the dataset that its release will be measured on.
    """
    named = [Job.plan[("config", name)].as_string() == dataset_id for name in PUBLIC_DATASET_OPTIONS]
    training = and_(Job.kind == TRAIN, or_(Job.dataset_id == dataset_id, *named))
    public = and_(Job.kind != TRAIN, Job.evaluation_dataset_id == dataset_id)
    return and_(or_(training, public), Job.state.in_(UNFINISHED))
