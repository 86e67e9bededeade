"""Receive uploads, from the lease to READY, and end uploads whose process has died.

An upload belongs to the process that began it, while that process renews the lease. Database changes are fenced by the
upload's number, and files under the dataset's name are written in a transaction that has checked this number. So a slow
process whose lease has expired can neither publish nor destroy anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import select
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from obscura.wire.schemas import DatasetRequest
from obscura.wire.words import DatasetState
from service import quotas
from service.datasets import deletion, fingerprints, parts, reading, states, withdrawal
from service.datasets.parts import Parts
from service.datasets.vault import DatasetContext, Vault
from service.db.dataset_tables import Dataset
from service.db.ledger_tables import Account
from service.db.session import SessionFactory, transaction
from service.disk import require_room
from service.errors import Conflict, ObscuraError, Unauthorized
from service.identity.auth import find_usable
from service.identity.recording import Act, record
from service.ledger.stops import require_unlocked
from service.logs import get_logger
from service.settings import Settings
from service.storage.journals import Uploaded, read_uploaded, write_uploaded

PAUSE_SECONDS = 1.0  # between two tries to accept an upload


def receive(context: DatasetContext, dataset_id: str, sent: reading.Sent, *, by: str | None = None) -> Dataset:
    """Receive the content of a declared dataset. After a rejected upload, the dataset remains declared.

    Return the ready dataset, which may have joined another account. While the database is down, retry the acceptance
    for the duration of one lease.

    Args:
        by: id of the uploader's key, which must still be valid after everything was read; None on the service's own
            machine.
    """
    settings = context.settings
    require_room(settings)
    with transaction(context.factory) as session:
        now = context.clock()
        snapshot = states.begin_upload(
            session,
            dataset_id,
            now=now,
            lease_seconds=settings.lease_seconds,
            subjects_key_check=sent.subjects_key_check,
        )
        if by is not None:
            quotas.require_known_uploads(session, snapshot.project_id, by, settings.known_uploads_per_day, now=now)
    try:
        with (
            _leased(context, snapshot, sent.blocks) as blocks,
            reading.staged(context, snapshot, replace(sent, blocks=blocks)) as content,
        ):
            until = time.monotonic() + settings.lease_seconds
            while True:
                try:
                    dataset = accept(context, content, by=by)
                    break
                except OperationalError:
                    if time.monotonic() + PAUSE_SECONDS > until:
                        raise
                    time.sleep(PAUSE_SECONDS)
    except BaseException:
        try:
            with transaction(context.factory) as session:
                states.end_upload(session, context.vault, dataset_id, snapshot.upload_attempt)
            fingerprints.forget(context.factory, dataset_id, snapshot.upload_attempt)
        except (OperationalError, ObscuraError) as error:  # the upload ends when its lease expires
            get_logger(__name__).error("upload_not_refused", dataset_id=dataset_id, error=type(error).__name__)
        raise
    _journal(context.vault, dataset, sent.subjects_key_check or "")
    return withdrawal.left_out(context, dataset)


def receive_parts(
    context: DatasetContext, upload: Parts, sent: reading.Sent, declared: DatasetRequest | str, *, by: str
) -> Dataset:
    """Receive an upload that has arrived in parts, into a declared dataset or a new one. Idempotent.

    After a rejection, neither the parts nor a declaration by this upload remain. A failure of the service keeps the
    parts, so that the request can be repeated.
    """
    remove = partial(deletion.delete, context.settings, context.factory, cancel_jobs=True, now=context.clock())
    if upload.dataset_id is not None:  # the answer was lost, or a process has died
        with transaction(context.factory, read_only=True) as session:
            earlier = session.get(Dataset, upload.dataset_id)
        if earlier is not None and earlier.ready_at is not None:  # whatever has happened to it since
            return earlier
        if earlier is not None:
            remove(earlier.id)
    dataset_id = declared if isinstance(declared, str) else ""
    if not isinstance(declared, str):
        with transaction(context.factory) as session:
            dataset_id = states.declare(session, context.settings, declared, now=context.clock()).id
            upload.note(dataset_id)  # before the commit
    try:
        received = receive(context, dataset_id, sent, by=by)
    except BaseException as error:
        try:
            if dataset_id != declared:
                remove(dataset_id)
        except (ObscuraError, SQLAlchemyError, OSError) as other:
            name = type(other).__name__
            get_logger(__name__).error("declaration_not_removed", dataset_id=dataset_id, error=name)
        if isinstance(error, ObscuraError) and error.code == reading.UploadRefused.code:
            upload.remove(keep_note=False)
        raise
    upload.note(dataset_id)
    upload.remove(keep_note=True)
    return received


def keep_journal(vault: Vault, factory: SessionFactory) -> None:
    """Append to the journal the accepted uploads that are missing because of a crash after their commit."""
    written = read_uploaded(vault.storage)
    accepted = select(Dataset, Account.subjects_key_check).join(Account, Account.id == Dataset.account_id)
    with transaction(factory, read_only=True) as session:
        rows = session.execute(accepted.where(Dataset.ready_at.is_not(None))).all()
    for dataset, check in rows:
        if dataset.id not in written:
            _journal(vault, dataset, check)


def _journal(vault: Vault, dataset: Dataset, check: str | None) -> None:
    if dataset.account_id is None:
        return
    recognised = dataset.subjects_recognised
    upload = Uploaded(dataset.account_id, recognised, check if recognised else None)
    try:
        write_uploaded(vault.storage, dataset.id, upload)
    except OSError as error:  # already committed; the next start writes the line
        get_logger(__name__).error("upload_not_journalled", dataset_id=dataset.id, error=type(error).__name__)


def accept(context: DatasetContext, content: reading.Content, *, by: str | None = None) -> Dataset:
    """Record content and its fingerprints, and publish it. Safe to retry after an error.

    An answer that reveals known images or subjects is counted for the key `by` and its project, and is recorded in the
    audit log. After too many such answers on one day, the upload is rejected before any look-up.
    """
    factory, now = context.factory, context.clock()
    snapshot, images, subjects = content.dataset, content.private_fingerprints, content.private_subjects
    fingerprints.forget(factory, snapshot.id, snapshot.upload_attempt - 1)  # left by an expired upload
    known = fingerprints.look_up(factory, images, subjects)
    fingerprints.record(factory, snapshot.id, snapshot.upload_attempt, images | subjects)
    refusal: fingerprints.KnownRefused | None = None
    with transaction(factory) as session:
        require_unlocked(session)
        if by is not None:
            if find_usable(session, by, now=now) is None:
                raise Unauthorized("The key that began this upload was revoked or has expired. Nothing was changed.")
            fingerprints.wait_for_others(session)  # so that concurrent uploads are counted one by one
            most = context.settings.known_uploads_per_day
            quotas.require_known_uploads(session, snapshot.project_id, by, most, now=now)
        try:
            with session.begin_nested():
                dataset = states.accept_upload(session, content, known, now=now)
                content.publish()
        except fingerprints.KnownRefused as error:
            refusal = error
        if refusal is not None or dataset.joined:
            act = Act.UPLOAD_JOINED if refusal is None else Act.UPLOAD_KNOWN
            record(session, act, snapshot.id, project_id=snapshot.project_id)
            if by is not None:
                quotas.count_known_upload(session, snapshot.project_id, by, now=now)
    if refusal is not None:
        raise refusal
    return dataset


def clean_up(settings: Settings, factory: SessionFactory, *, now: datetime) -> int:
    """End uploads whose lease has expired, remove their files, and return their number. Safe to run concurrently."""
    with transaction(factory, read_only=True) as session:  # usually there are none, and no write lock is needed
        expired = states.uploads(session, expired_at=now)
    ended = 0
    for dataset_id, attempt in expired:
        with transaction(factory) as session:
            ended += states.end_upload(session, Vault.of(settings), dataset_id, attempt, expired_at=now)
        fingerprints.forget(factory, dataset_id, attempt)

    def live() -> set[tuple[str, int]]:
        with transaction(factory, read_only=True) as session:
            return states.uploads(session)

    reading.sweep(settings, live)
    for idle in parts.expired(settings, now=now):
        with transaction(factory, read_only=True) as session:
            left = session.get(Dataset, idle.dataset_id) if idle.dataset_id is not None else None
        if left is not None and left.state is DatasetState.DECLARED:  # by an upload whose process has died
            deletion.delete(settings, factory, left.id, cancel_jobs=True, now=now)
    return ended


@contextmanager
def _leased(context: DatasetContext, snapshot: Dataset, blocks: Iterator[bytes]) -> Iterator[Iterator[bytes]]:
    """Renew an upload's lease inside the `with` block. Yield the body, which raises Conflict once the lease is lost."""
    lost, over = threading.Event(), threading.Event()
    settings = context.settings

    def renew() -> None:
        while not over.wait(settings.heartbeat_seconds):
            try:
                with transaction(context.factory) as session:
                    until = context.clock() + timedelta(seconds=settings.lease_seconds)
                    ours = states.receiving(snapshot.upload_attempt)
                    if not states.move(session, snapshot.id, DatasetState.RECEIVING, ours, upload_lease_until=until):
                        lost.set()
                        return
            except OperationalError as error:  # the next renewal may succeed in time
                get_logger(__name__).warning("upload_lease_not_renewed", error=type(error).__name__)

    def still_ours() -> Iterator[bytes]:
        for block in blocks:
            if lost.is_set():
                raise Conflict("The upload was aborted, because its lease could not be renewed in time. Upload again.")
            yield block

    thread = threading.Thread(target=renew, name="obscura-upload-lease", daemon=True)
    thread.start()
    try:
        yield still_ours()
    finally:
        over.set()
        thread.join()
