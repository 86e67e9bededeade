"""Receive uploads, from the lease to READY, and end those whose process has died.

An upload belongs to the process that began it while that renews the lease. Its changes in the database carry its
number, and files under the dataset's own name are written in a transaction that has checked the number. So a slow
process whose lease has expired can neither publish nor destroy anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service import quotas
from service.datasets import fingerprints, reading, states, withdrawal
from service.datasets.reading import Content, Sent, Upload
from service.datasets.vault import DatasetContext, Vault
from service.db.dataset_tables import Dataset
from service.db.ledger_tables import Account
from service.db.session import SessionFactory, transaction
from service.disk import require_room
from service.errors import Conflict, ObscuraError
from service.identity.auth import require_usable
from service.identity.recording import Act, record
from service.logs import get_logger
from service.settings import Settings
from service.storage.journals import Uploaded, read_uploaded, write_uploaded

_PAUSE_SECONDS = 1.0  # between two tries while the database is away


def receive(context: DatasetContext, dataset_id: str, sent: Sent, *, by: str | None = None) -> Dataset:
    """Receive the content of a declared dataset. A refused upload leaves it declared.

    Args:
        by: id of the uploader's key, which must still be valid when everything was read; None on the service's own
            machine.

    Returns:
        The dataset, ready, perhaps joined to another account.

    Raises:
        NotFound, Conflict, AccountClosed: as `states.begin_upload`; also if another upload took over meanwhile.
        InvalidInput, UploadRefused, UploadTooLarge, UploadFailed: as `reading.staged`.
        OverlapRefused, KnownAsPrivate, KnownAsPublic, SubjectsKnown: as `fingerprints.settle`.
        OperationalError: the database was away for longer than a lease.
        OutOfDisk: there is too little room; nothing was read.
        QuotaExceeded: the key or its project has learned too often today that images are known.
        Unauthorized: the key was revoked, or expired, meanwhile.
    """
    settings = context.settings
    require_room(settings)
    with transaction(context.factory) as session:
        upload = states.begin_upload(
            session,
            dataset_id,
            now=context.clock(),
            lease_seconds=settings.lease_seconds,
            subjects_key_check=sent.subjects_key_check,
        )
        _require_known_uploads(session, context, upload, by)
    try:
        with _kept(context, upload) as lost:
            ours = replace(sent, blocks=_while_ours(sent.blocks, lost))
            with reading.staged(context, upload, ours) as content:
                dataset = _patiently(settings.lease_seconds, lambda: accept(context, content, by=by))
    except BaseException:
        _refuse(context, upload)
        raise
    _journal(context, dataset)
    return withdrawal.left_out(context, dataset)


def keep_journal(context: DatasetContext) -> None:
    """Append accepted uploads that the journal lacks because of a crash after their commit."""
    written = read_uploaded(context.vault.storage)
    accepted = select(Dataset).where(Dataset.account_id.is_not(None), Dataset.ready_at.is_not(None))
    with transaction(context.factory, read_only=True) as session:
        missing = [dataset for dataset in session.scalars(accepted) if dataset.id not in written]
    for dataset in missing:
        _journal(context, dataset)


def _journal(context: DatasetContext, dataset: Dataset) -> None:
    """Append an accepted upload to the journal, with which a restored database is compared."""
    if dataset.account_id is None:
        return
    with transaction(context.factory, read_only=True) as session:
        check = session.get_one(Account, dataset.account_id).subjects_key_check
    upload = Uploaded(dataset.account_id, dataset.subjects_recognised, check if dataset.subjects_recognised else None)
    try:
        write_uploaded(context.vault.storage, dataset.id, upload)
    except OSError as error:  # it is committed; the next start writes the line
        get_logger(__name__).error("upload_not_journalled", dataset_id=dataset.id, error=type(error).__name__)


def accept(context: DatasetContext, content: Content, *, by: str | None = None) -> Dataset:
    """Record content and its fingerprints, and publish it. May be repeated after an error.

    An answer that reveals known images or subjects is counted for the key and its project, and recorded.

    Args:
        by: id of the uploader's key; None on the service's own machine, which has no limit.

    Raises:
        Conflict: another upload took over.
        Unauthorized: the uploader's key is no longer valid.
        OverlapRefused, KnownAsPrivate, KnownAsPublic, SubjectsKnown: as `fingerprints.settle`.
        QuotaExceeded: there were too many such answers today; nothing was looked up for this one.
    """
    factory, now = context.factory, context.clock()
    upload, images, subjects = content.upload, content.private_fingerprints, content.private_subjects
    fingerprints.forget(factory, upload.dataset_id, upload.attempt - 1)  # left by an expired upload
    known = fingerprints.look_up(factory, images, subjects)
    fingerprints.record(factory, upload.dataset_id, upload.attempt, images | subjects)
    refusal: fingerprints.KnownRefused | None = None
    with transaction(factory) as session:
        if by is not None:
            require_usable(session, by, now=now)
            fingerprints.wait_for_others(session)  # so that uploads that end together are counted one by one
            _require_known_uploads(session, context, upload, by)
        try:
            with session.begin_nested():
                dataset = states.accept_upload(session, content, known, now=now)
                content.publish()
        except fingerprints.KnownRefused as error:
            refusal = error
        if refusal is not None or dataset.joined:
            act = Act.UPLOAD_JOINED if refusal is None else Act.UPLOAD_KNOWN
            record(session, act, upload.dataset_id, project_id=upload.project_id)
            if by is not None:
                quotas.count_known_upload(session, upload.project_id, by, now=now)
    if refusal is not None:
        raise refusal
    return dataset


def clean_up(settings: Settings, factory: SessionFactory, *, now: datetime) -> int:
    """End the uploads whose lease has expired, remove their files, and return their number.

    May run at any time, in several processes at once.
    """
    with transaction(factory, read_only=True) as session:  # usually there are none, and no write lock is needed
        expired = states.expired_uploads(session, now=now)
    ended = 0
    for dataset_id, attempt in expired:
        with transaction(factory) as session:
            ended += states.end_expired_upload(session, Vault.of(settings), dataset_id, attempt, now=now)
        fingerprints.forget(factory, dataset_id, attempt)

    def live() -> set[tuple[str, int]]:
        with transaction(factory, read_only=True) as session:
            return states.live_uploads(session)

    reading.sweep(settings, live)
    return ended


def _require_known_uploads(session: Session, context: DatasetContext, upload: Upload, by: str | None) -> None:
    if by is not None:
        most = context.settings.known_uploads_per_day
        quotas.require_known_uploads(session, upload.project_id, by, most, now=context.clock())


@contextmanager
def _kept(context: DatasetContext, upload: Upload) -> Iterator[threading.Event]:
    """Renew an upload's lease during a block. Yield an event that is set when another upload has taken over."""
    lost, over = threading.Event(), threading.Event()
    settings = context.settings

    def renew() -> None:
        while not over.wait(settings.heartbeat_seconds):
            try:
                with transaction(context.factory) as session:
                    now = context.clock()
                    if not states.renew_upload(session, upload, now=now, lease_seconds=settings.lease_seconds):
                        lost.set()
                        return
            except OperationalError as error:  # the next renewal may be in time
                get_logger(__name__).warning("upload_lease_not_renewed", error=type(error).__name__)

    thread = threading.Thread(target=renew, name="obscura-upload-lease", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        over.set()
        thread.join()


def _while_ours(chunks: Iterator[bytes], lost: threading.Event) -> Iterator[bytes]:
    for chunk in chunks:
        if lost.is_set():
            raise Conflict("The upload was given up, because its lease could not be renewed in time. Upload again.")
        yield chunk


def _patiently(lease_seconds: float, act: Callable[[], Dataset]) -> Dataset:
    """Retry while the database is away, for as long as the lease may last."""
    until = time.monotonic() + lease_seconds
    while True:
        try:
            return act()
        except OperationalError:
            if time.monotonic() + _PAUSE_SECONDS > until:
                raise
            time.sleep(_PAUSE_SECONDS)


def _refuse(context: DatasetContext, upload: Upload) -> None:
    try:
        with transaction(context.factory) as session:
            states.refuse_upload(session, context.vault, upload.dataset_id, upload.attempt)
        fingerprints.forget(context.factory, upload.dataset_id, upload.attempt)
    except (OperationalError, ObscuraError) as error:  # the upload then ends with its lease
        get_logger(__name__).error("upload_not_refused", dataset_id=upload.dataset_id, error=type(error).__name__)
