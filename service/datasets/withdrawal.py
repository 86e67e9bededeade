"""Withdrawal of subjects: destroy their images in all datasets of their account with `subjects_recognised`.

READY -> WITHDRAWING -> READY. The first commit records the withdrawn subjects; from then on no training on these
datasets can be requested. Once no process has a dataset open, it is rewritten without the subjects, under a new key and
name. The next commit switches to the new content. Then the old key and files are destroyed, as in a deletion. So a
dataset always has either the old or the new content, complete, and `go_on` resumes an interrupted withdrawal. Entries,
holds, releases, receipts and fingerprints remain, and no budget returns.

All these datasets of the account, and all later uploads, are rewritten even if they do not contain the subjects. So
observers learn that someone has withdrawn, but not who was in which dataset. Before anything is destroyed, withdrawals
are also recorded beside the journals, so that a database restored from an older backup learns of them (`recall`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import ColumnElement, exists, select
from sqlalchemy.orm import Session

from obscura.wire.uploads import Refused, SubjectId
from obscura.wire.words import DatasetState, Unit
from service import dependencies, disk
from service.datasets import deletion, fingerprints, reading, states, vault
from service.db.dataset_tables import Dataset, WithdrawnSubject
from service.db.ledger_tables import Account
from service.db.session import SessionFactory, transaction
from service.errors import InvalidInput, ObscuraError
from service.failpoints import failpoint
from service.identity.access import find, require_project, visible
from service.ingest.array_files import subject_numbers
from service.logs import get_logger
from service.settings import Settings
from service.storage import journals, storage_of

_STORED = (DatasetState.READY, DatasetState.WITHDRAWING)
_LOCK = "withdrawals.lock"  # next to the keys, in a folder shared by all processes that create or destroy keys


@dataclass(frozen=True)
class Withdrawal:
    """The public effects of a withdrawal. They do not depend on the subjects in the datasets."""

    account_id: str
    dataset_ids: tuple[str, ...]  # to rewrite
    not_recognised: tuple[str, ...]  # the account's datasets where no subject can be found
    waiting: bool = False  # some images can only be destroyed after trainings have stopped


def withdraw(
    settings: Settings,
    factory: SessionFactory,
    account_id: str,
    private_ids: Sequence[SubjectId],
    *,
    cancel_jobs: bool,
    now: datetime,
    subjects_key_check: str | None = None,
) -> Withdrawal:
    """Destroy the images of subjects, in a few transactions, and remove them from later uploads. Idempotent.

    With `cancel_jobs`, cancel the jobs that need the account's datasets, as `deletion.delete` does. The images are
    destroyed after the processes of these jobs have stopped.
    """
    key = reading.secret_of_fingerprints(settings)
    with dependencies.calling("storage"):
        with transaction(factory) as session:
            require_project(session)
            account = find(session, Account, account_id)
            if account.unit is not Unit.SUBJECT:
                raise InvalidInput(
                    f"Account '{account.name}' protects single records, so the service does not know the subject of an "
                    "image. Delete the dataset with the image, and push it again without the image. Spent budget stays "
                    "spent."
                )
            recognised = visible(session, Dataset, select(Dataset.id)).where(*_of(account), Dataset.subjects_recognised)
            if session.scalar(recognised.limit(1)) is None:
                raise InvalidInput(
                    f"No dataset of account '{account.name}' recognises subjects, because subject ids were not kept. "
                    "Delete each dataset with images of these subjects. Push it again without them and with "
                    "--subjects-key (API: subjects_recognised), so that later withdrawals can find subjects. Spent "
                    "budget stays spent."
                )
            states.require_same_key(session, account_id, subjects_key_check)
            try:
                hashes = subject_numbers(private_ids, len(private_ids), recognised=True)
            except Refused:
                raise InvalidInput(
                    'A subject id is a placeholder, such as "unknown": no upload can contain it. Send the ids as they '
                    "were pushed."
                ) from None
            numbers = fingerprints.recognise(hashes, account.project_id, key)[0].tolist()
            begun = _begin(session, account, numbers, cancel_jobs=cancel_jobs, now=now)
            everyone = _withdrawn_from(session, account_id)
        failpoint("withdraw.after")
        context = vault.DatasetContext(settings, factory, lambda: now)
        journals.note_withdrawn(context.vault.storage, account_id, everyone)
        done = [_try(context, dataset_id) for dataset_id in begun.dataset_ids]
    return replace(begun, waiting=not all(done))


def _of(account: Account) -> tuple[ColumnElement[bool], ...]:
    return Dataset.account_id == account.id, Dataset.subjects_declared.is_not(None), Dataset.state.not_in(deletion.GONE)


def _begin(
    session: Session, account: Account, numbers: Collection[int], *, cancel_jobs: bool, now: datetime
) -> Withdrawal:
    """Record withdrawn subjects. After the commit, no training can read the datasets until the withdrawal is complete.

    Lock order: uploads, datasets by id, jobs, accounts by id.
    """
    fingerprints.wait_for_others(session)  # so one of a withdrawal and a concurrent acceptance sees the other
    own = visible(session, Dataset).where(*_of(account)).order_by(Dataset.id).with_for_update()
    rows = session.scalars(own.execution_options(populate_existing=True)).all()
    stored = tuple(row.id for row in rows if row.subjects_recognised and row.state in _STORED)
    for dataset_id in stored:
        states.move(session, dataset_id, DatasetState.WITHDRAWING)
    whose = f"A dataset of account '{account.name}'"
    deletion.cancel_readers(session, stored, may_cancel=cancel_jobs, whose=whose, act="withdrawal", now=now)
    new = set(numbers) - _withdrawn_from(session, account.id)
    session.add_all(WithdrawnSubject(account_id=account.id, number=number) for number in sorted(new))
    others = tuple(row.id for row in rows if not row.subjects_recognised and row.ready_at is not None)
    return Withdrawal(account.id, stored, others)


def complete(context: vault.DatasetContext, dataset_id: str, *, patient: bool = True) -> bool:
    """Rewrite a dataset without its withdrawn subjects. Idempotent. Return False if that must wait for a training.

    If another process is rewriting, wait for it if `patient`; otherwise leave the work to that process.
    """
    with _alone(context.vault.keys_path, patient=patient) as alone:
        while alone:
            with transaction(context.factory, read_only=True) as session:
                dataset = session.get_one(Dataset, dataset_id)
                if dataset.state is not DatasetState.WITHDRAWING:
                    return True
                if dataset.account_id is None or session.scalar(select(exists().where(deletion.needs(dataset_id)))):
                    return False
                numbers = _withdrawn_from(session, dataset.account_id)
            disk.require_room(context.settings)
            journals.note_withdrawn(context.vault.storage, dataset.account_id, numbers)
            target, key = context.vault.rewrite(dataset.content, dataset.id, numbers)
            failpoint("anew.before")
            with transaction(context.factory) as session:
                fingerprints.wait_for_others(session)
                if _withdrawn_from(session, dataset.account_id) != numbers:
                    continue  # more subjects have withdrawn meanwhile
                rewritten = {"content_name": target, "content_key_id": vault.key_id_of(key)}
                still = Dataset.state == DatasetState.WITHDRAWING
                moved = states.move(session, dataset.id, DatasetState.READY, still, **rewritten)
            failpoint("anew.after")
            if moved:
                context.vault.shred_all(dataset.id, kept=target)
            else:  # the dataset is being deleted
                context.vault.shred(target)
            return True
    return False


def left_out(context: vault.DatasetContext, dataset: Dataset) -> Dataset:
    """Remove withdrawn subjects from an upload that was just accepted.

    Raises no error: it would reveal that one of the subjects has withdrawn, and would block all other images.
    """
    if dataset.state is not DatasetState.WITHDRAWING:
        return dataset
    _try(context, dataset.id)
    with transaction(context.factory, read_only=True) as session:
        return session.get_one(Dataset, dataset.id)


def go_on(settings: Settings, factory: SessionFactory) -> None:
    """Resume withdrawals that wait for a training or were interrupted, and destroy outdated content. Idempotent."""
    with transaction(factory, read_only=True) as session:
        waiting = session.scalars(select(Dataset.id).where(Dataset.state == DatasetState.WITHDRAWING)).all()
        newest = dict(session.execute(deletion.REWRITTEN).all())
    context = vault.DatasetContext(settings, factory, lambda: datetime.now(UTC))
    for dataset_id in waiting:
        _try(context, dataset_id, patient=False)
    for name in sorted(context.vault.stored_names()) if newest else ():
        if deletion.is_outdated(name, newest):  # a process died between the commit and the destruction
            context.vault.shred(name)


def recall(settings: Settings, factory: SessionFactory, *, now: datetime) -> None:
    """At start-up, record withdrawals missing from a restored database, and cancel trainings on their datasets."""
    storage = storage_of(settings)
    for account_id in journals.accounts_withdrawn_from(storage):
        noted = journals.read_withdrawn(storage, account_id)
        with transaction(factory, read_only=True) as session:
            account = session.get(Account, account_id)
            known = account is None or noted <= _withdrawn_from(session, account_id)
        if account is None or known:
            continue
        get_logger(__name__).warning("withdrawals_recalled", account_id=account_id)
        with transaction(factory) as session:
            _begin(session, session.get_one(Account, account_id), noted, cancel_jobs=True, now=now)


def _withdrawn_from(session: Session, account_id: str) -> set[int]:
    """Return the stored numbers of an account's withdrawn subjects. PRIVATE."""
    return set(session.scalars(select(WithdrawnSubject.number).where(WithdrawnSubject.account_id == account_id)))


def _try(context: vault.DatasetContext, dataset_id: str, *, patient: bool = True) -> bool:
    """Call `complete`; on an error, log it and return False. `go_on` retries later."""
    try:
        return complete(context, dataset_id, patient=patient)
    except (ObscuraError, OSError) as error:
        get_logger(__name__).error("withdrawal_delayed", dataset_id=dataset_id, error=type(error).__name__)
        return False


@contextmanager
def _alone(keys_path: Path, *, patient: bool) -> Iterator[bool]:
    """Yield whether this process holds the lock for rewriting. A crash releases the lock."""
    with open(os.open(keys_path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "rb") as lock:
        held = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB))
        except BlockingIOError:
            held = False
        yield held
