"""What becomes of a deleted dataset on which nothing was ever trained: it is erased, with the names it made public.

Its row stays without them. The fingerprints of its images go as well where nothing
has ever read the account: then nothing that was published depends on the images, so that they may be given to another
account as if they had never come, to one that protects people for example. A training that was asked for anywhere in
the account, and a number of records that was paid for, count as reading: which images those saw is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, exists, not_, or_, select, update
from sqlalchemy.orm import Session

from obscura.wire.words import UNFINISHED, DatasetState, EntryKind
from privacy.plans.options import PUBLIC_DATASET_OPTIONS
from service.datasets import fingerprints
from service.db.dataset_tables import Dataset, Fingerprint
from service.db.job_tables import Job, Sweep
from service.db.ledger_tables import EntryRow
from service.db.session import SessionFactory, transaction
from service.jobs.kinds import KINDS
from service.jobs.lookup import reads

NAME = "erased"
_READING = (EntryKind.HOLD, EntryKind.COUNT)
_READS_NUMBERS = [kind.name for kind in KINDS.values() if kind.reads_numbers]


def erase(factory: SessionFactory, dataset_id: str, *, now: datetime) -> Dataset:
    """Erase a deleted dataset if nothing was ever made from it or measured on it. Twice changes nothing."""
    with transaction(factory) as session:
        fingerprints.wait_for_others(session)
        dataset = session.get_one(Dataset, dataset_id, with_for_update=True, populate_existing=True)
        if dataset.state is DatasetState.DELETED and dataset.erased_at is None and not _was_used(session, dataset_id):
            _blank(dataset, now)
        free = _unread(session, dataset.account_id) if dataset.account_id is not None else []
    for each, attempt in free:
        fingerprints.forget(factory, each, attempt)
    return dataset


def _was_used(session: Session, dataset_id: str) -> bool:
    """Whether a job or sweep speaks of the dataset. One that read only numbers does not count when it has ended."""
    named = [Job.plan[("config", name)].as_string() == dataset_id for name in PUBLIC_DATASET_OPTIONS]
    over = and_(Job.kind.in_(_READS_NUMBERS), not_(Job.state.in_(UNFINISHED)))
    jobs = exists().where(or_(reads(dataset_id), Job.evaluation_dataset_id == dataset_id, *named), not_(over))
    return session.scalar(select(or_(jobs, exists().where(Sweep.dataset_id == dataset_id)))) is True


def _blank(dataset: Dataset, now: datetime) -> None:
    dataset.name, dataset.classes, dataset.erased_at = NAME, [], now
    dataset.height = dataset.width = dataset.channels = dataset.records_declared = 1
    dataset.subjects_declared = dataset.failure_code = None
    dataset.subjects_recognised = False
    dataset.format = dataset.content_sha256 = dataset.content_bytes = None


def _unread(session: Session, account_id: str) -> Sequence[tuple[str, int]]:
    """Let go of the fingerprints of an account that nothing has read, and whose datasets are all erased.

    From the commit on they no longer count, for they are of an upload before that which their row speaks of.

    Returns:
        Dataset and attempt of what is to be forgotten.
    """
    read = exists().where(EntryRow.account_id == account_id, EntryRow.kind.in_(_READING))
    kept = exists().where(_with_content(account_id), Dataset.erased_at.is_(None))
    if session.scalar(select(or_(read, kept))):
        return []
    own = Fingerprint.dataset_id == Dataset.id, Fingerprint.upload_attempt == Dataset.upload_attempt
    known = select(Dataset.id, Dataset.upload_attempt).where(_with_content(account_id), exists().where(*own))
    held = session.execute(known).all()
    freed = update(Dataset).where(Dataset.id.in_([dataset_id for dataset_id, _ in held]))
    session.execute(freed.values(upload_attempt=Dataset.upload_attempt + 1))
    return [(dataset_id, attempt) for dataset_id, attempt in held]


def _with_content(account_id: str) -> ColumnElement[bool]:
    return and_(Dataset.account_id == account_id, Dataset.ready_at.is_not(None))
