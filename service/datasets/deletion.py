"""Delete datasets. The key is destroyed first, so that every copy of the images becomes unreadable.

READY (or DECLARED, or WITHDRAWING) -> DELETING -> DELETED. The first step is committed before anything is destroyed, so
an interrupted deletion is resumed and never reported as complete too early. The last step waits until no process has
the images open. Entries, holds, releases, receipts and fingerprints of private images remain, and no budget returns. A
dataset that no job has used is also erased (`erase`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, exists, false, not_, or_, select, update
from sqlalchemy.orm import Session

from obscura.wire.words import TRAIN, UNFINISHED, DatasetState, EntryKind
from privacy.plans.options import PUBLIC_DATASET_OPTIONS
from service import jobs, ledger
from service.datasets import fingerprints, states
from service.datasets.vault import Vault, dataset_of, destroy_file, version_of
from service.db.dataset_tables import Dataset, Fingerprint
from service.db.job_tables import Job, Sweep
from service.db.ledger_tables import Entry
from service.db.session import SessionFactory, among, transaction
from service.dependencies import calling
from service.errors import Conflict, ObscuraError
from service.failpoints import failpoint
from service.identity.access import find
from service.logs import get_logger
from service.settings import Settings

GONE = (DatasetState.DELETING, DatasetState.DELETED)
_JOBS_NAMED_MAX = 5
REWRITTEN = select(Dataset.id, Dataset.content_name).where(Dataset.content_name.is_not(None))  # after a withdrawal
_READS_NUMBERS = [kind.name for kind in jobs.KINDS.values() if kind.reads_numbers]


def delete(
    settings: Settings, factory: SessionFactory, dataset_id: str, *, cancel_jobs: bool, now: datetime
) -> Dataset:
    """Delete a dataset's images forever, in a few transactions. Idempotent.

    With `cancel_jobs`, cancel the jobs that need the dataset and discard their results; charges stay spent. The stored
    images become unreadable at once; the dataset is DELETING until the training processes have stopped.
    """
    with calling("storage"):
        with transaction(factory) as session:
            begin(session, dataset_id, cancel_jobs=cancel_jobs, now=now)
        failpoint("delete.after")
        dataset = complete(settings, factory, dataset_id)
    return erase(factory, dataset_id, now=now) if dataset.state is DatasetState.DELETED else dataset


def begin(session: Session, dataset_id: str, *, cancel_jobs: bool, now: datetime) -> Dataset:
    """Begin a deletion. After the commit no training can be requested; then call `complete`. Idempotent."""
    erased = session.get(Dataset, dataset_id)
    if erased is not None and erased.erased_at is not None:  # hidden from `find`
        return erased
    dataset = find(session, Dataset, dataset_id)
    if not states.move(session, dataset_id, DatasetState.DELETING):
        session.refresh(dataset)
        if dataset.state in GONE:
            return dataset
        raise Conflict(
            f"Dataset {dataset_id} is {dataset.state.value}, so it cannot be deleted now. Wait until its upload ends.",
            state=dataset.state.value,
        )
    whose = f"Dataset {dataset_id}"
    cancel_readers(session, [dataset_id], may_cancel=cancel_jobs, whose=whose, act="deletion", now=now)
    session.refresh(dataset)
    return dataset


def cancel_readers(
    session: Session, dataset_ids: Sequence[str], *, may_cancel: bool, whose: str, act: str, now: datetime
) -> None:
    """Cancel the unfinished jobs that read one of these datasets, and discard their results.

    Call it after writing the datasets' new state. That write locks their rows, as submissions do, so no job is missed.
    Call it before locking any account, because workers lock jobs before accounts.

    Args:
        may_cancel: if false, raise Conflict for any such job, with a message built from `whose` and `act`.
    """
    needing = or_(false(), *map(needs, dataset_ids))
    waiting = session.scalars(select(Job.id).where(needing).order_by(Job.id).with_for_update()).all()
    if waiting and not may_cancel:
        raise Conflict(
            f"{whose} is needed by jobs that are queued or running, such as {waiting[0]}. Wait until they end, or "
            f"cancel them with the {act}: then they publish nothing, but what they were charged stays spent.",
            jobs=list(waiting[:_JOBS_NAMED_MAX]),
        )
    paying = select(Job.account_id).where(Job.id.in_(waiting), Job.hold_id.is_not(None))
    for account_id in sorted({each for each in session.scalars(paying) if each is not None}):
        ledger.lock_account(session, account_id)
    for job_id in waiting:
        jobs.request_cancel(session, job_id=job_id, now=now, discard=True)


def complete(settings: Settings, factory: SessionFactory, dataset_id: str) -> Dataset:
    """Destroy the key and files of a dataset in deletion. Once no job needs it, record the deletion. Idempotent.

    Removes the fingerprints of a public dataset, so that its images can be uploaded as private from then on.
    """
    Vault.of(settings).shred_all(dataset_id)
    with transaction(factory) as session:
        states.move(session, dataset_id, DatasetState.DELETED, ~exists().where(needs(dataset_id)))
        dataset = session.get_one(Dataset, dataset_id)
    if dataset.account_id is None and dataset.state is DatasetState.DELETED:
        fingerprints.forget(factory, dataset_id, dataset.upload_attempt)
    return dataset


def go_on(settings: Settings, factory: SessionFactory) -> None:
    """Resume deletions that waited for a training or were interrupted. Idempotent."""
    with transaction(factory, read_only=True) as session:
        waiting = session.scalars(select(Dataset.id).where(Dataset.state == DatasetState.DELETING)).all()
    for dataset_id in waiting:
        try:
            complete(settings, factory, dataset_id)
        except (ObscuraError, OSError) as error:  # continue with the others
            get_logger(__name__).error("deletion_delayed", dataset_id=dataset_id, error=type(error).__name__)


def unfinished(session: Session, settings: Settings) -> Sequence[str]:
    """Return the datasets to `complete` at start-up: interrupted deletions, and deletions that a backup has undone."""
    deleting = session.scalars(select(Dataset.id).where(Dataset.state == DatasetState.DELETING)).all()
    stored = {dataset_of(name) for name in Vault.of(settings).stored_names()}
    names = [name for name in stored - set(deleting) if name is not None]
    deleted = select(Dataset.id).where(Dataset.state == DatasetState.DELETED)
    return [*deleting, *sorted(among(session, deleted, Dataset.id, names))]


def destroy_copies(settings: Settings, factory: SessionFactory) -> None:
    """Destroy this machine's keys of content that was deleted, or rewritten after a withdrawal. Idempotent."""
    vault = Vault.of(settings)
    names = {name: dataset_id for name in vault.stored_keys() if (dataset_id := dataset_of(name))}
    with transaction(factory, read_only=True) as session:
        gone = among(session, select(Dataset.id).where(Dataset.state.in_(GONE)), Dataset.id, sorted(names.values()))
        newest = dict(session.execute(REWRITTEN).all())
    for name, dataset_id in sorted(names.items()):
        if dataset_id in gone or is_outdated(name, newest):
            destroy_file(vault.key_path(name))
            get_logger(__name__).info("key_copy_destroyed", dataset_id=dataset_id)


def is_outdated(name: str, newest: Mapping[str, str | None]) -> bool:
    """Return whether this content was rewritten. `newest` has the name of each dataset's current content."""
    present = newest.get(dataset_of(name) or "")
    return present is not None and version_of(name) < version_of(present)


def erase(factory: SessionFactory, dataset_id: str, *, now: datetime) -> Dataset:
    """Erase the declaration of a deleted dataset, if no job or sweep has ever used it. Idempotent.

    Also removes the fingerprints of its images if all datasets of the account are erased and no training has ever been
    requested in the account. Then nothing published depends on the images, so another account may accept them.
    """
    held: list[tuple[str, int]] = []
    with transaction(factory) as session:
        fingerprints.wait_for_others(session)
        dataset = session.get_one(Dataset, dataset_id, with_for_update=True, populate_existing=True)
        over = and_(Job.kind.in_(_READS_NUMBERS), not_(Job.state.in_(UNFINISHED)))
        reading = or_(Job.dataset_id == dataset_id, Job.evaluation_dataset_id == dataset_id, *_options_of(dataset_id))
        used = or_(exists().where(reading, not_(over)), exists().where(Sweep.dataset_id == dataset_id))
        if dataset.state is DatasetState.DELETED and dataset.erased_at is None and not session.scalar(select(used)):
            dataset.name, dataset.classes, dataset.erased_at = "erased", [], now
            dataset.height = dataset.width = dataset.channels = dataset.records_declared = 1
            dataset.subjects_declared = dataset.failure_code = None
            dataset.subjects_recognised = False
            dataset.format = dataset.content_sha256 = dataset.content_bytes = None
        if dataset.account_id is not None:
            stored = and_(Dataset.account_id == dataset.account_id, Dataset.ready_at.is_not(None))
            read = exists().where(Entry.account_id == dataset.account_id, Entry.kind == EntryKind.HOLD)
            if not session.scalar(select(or_(read, exists().where(stored, Dataset.erased_at.is_(None))))):
                own = Fingerprint.dataset_id == Dataset.id, Fingerprint.upload_attempt == Dataset.upload_attempt
                known = select(Dataset.id, Dataset.upload_attempt).where(stored, exists().where(*own))
                held = [(each, attempt) for each, attempt in session.execute(known)]
                # A new attempt number invalidates the fingerprints at once; they are removed after the commit.
                freed = update(Dataset).where(Dataset.id.in_([each for each, _ in held]))
                session.execute(freed.values(upload_attempt=Dataset.upload_attempt + 1))
    for each, attempt in held:
        fingerprints.forget(factory, each, attempt)
    return dataset


def _options_of(dataset_id: str) -> list[ColumnElement[bool]]:
    return [Job.plan[("config", name)].as_string() == dataset_id for name in PUBLIC_DATASET_OPTIONS]


def needs(dataset_id: str) -> ColumnElement[bool]:
    """Select unfinished jobs that may have the images in memory. A training does not read its evaluation dataset."""
    training = and_(Job.kind == TRAIN, or_(Job.dataset_id == dataset_id, *_options_of(dataset_id)))
    public = and_(Job.kind != TRAIN, Job.evaluation_dataset_id == dataset_id)
    return and_(or_(training, public), Job.state.in_(UNFINISHED))
