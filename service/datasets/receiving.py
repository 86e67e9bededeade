"""The life of one upload, from its lease to READY, and what is done about uploads whose process is gone.

An upload belongs to the process that began it for as long as that renews the lease. Whatever it does in the database
carries its number, and whatever lies under the dataset's own name is written in a transaction that has checked the
number: a process that was given up, and was only slow, can neither publish nor destroy anything.
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

from obscura.wire.words import DatasetState
from service import quotas
from service.datasets import fingerprints, reading, states, vault, withdrawal
from service.datasets.reading import Content, Sent, Upload
from service.db.dataset_tables import Dataset
from service.db.session import SessionFactory, transaction
from service.disk import require_room
from service.errors import Conflict, ObscuraError
from service.identity.access import find
from service.identity.auth import require_usable
from service.identity.recording import Act, record
from service.logs import get_logger
from service.settings import Settings

_PAUSE_SECONDS = 1.0  # between two tries of a database that is away

Clock = Callable[[], datetime]


def receive(
    settings: Settings, factory: SessionFactory, dataset_id: str, sent: Sent, *, clock: Clock, by: str | None = None
) -> Dataset:
    """Receive the content of a declared dataset, or change nothing: a refused upload leaves it declared.

    Args:
        settings: Limits, folders and the length of a lease.
        dataset_id: Whose content it is.
        sent: The body.
        clock: The time, aware.
        by: Id of the key whose holder sends it, and which must open something still when all of it has come and was
            read; None on the service's own machine.

    Returns:
        The dataset, ready, perhaps joined to another account.

    Raises:
        NotFound, Conflict, AccountClosed: As `states.begin_upload`; also where somebody else took over meanwhile.
        InvalidInput, UploadRefused, UploadTooLarge, UploadFailed: As `reading.staged`.
        OverlapRefused, KnownAsPrivate, KnownAsPublic, SubjectsKnown: As `fingerprints.settle`.
        OperationalError: The database was away for longer than a lease. The upload is given up when that has run out.
        OutOfDisk: There is too little room; nothing was read.
        QuotaExceeded: The key or its project has learned too often today that images are known.
        Unauthorized: The key was revoked, or has expired, meanwhile.
    """
    require_room(settings)
    with transaction(factory) as session:
        upload = states.begin_upload(
            session,
            dataset_id,
            now=clock(),
            lease_seconds=settings.lease_seconds,
            subjects_key_check=sent.subjects_key_check,
        )
        if by is not None:
            quotas.require_known_uploads(session, upload.project_id, by, settings.known_uploads_per_day, now=clock())
    try:
        with _kept(settings, factory, upload, clock) as lost:
            ours = replace(sent, blocks=_while_ours(sent.blocks, lost))
            with reading.staged(settings, upload, ours) as content:
                limit = settings.known_uploads_per_day
                dataset = _patiently(
                    settings, lambda: accept(factory, content, now=clock(), by=by, known_uploads_max=limit)
                )
    except BaseException:
        _refuse(settings, factory, upload)
        raise
    return withdrawal.left_out(settings, factory, dataset)


def accept(
    factory: SessionFactory, content: Content, *, now: datetime, by: str | None = None, known_uploads_max: int = 0
) -> Dataset:
    """Record content and its fingerprints, and publish it. May be done again after an error.

    An answer that reveals that images or subjects are known is counted for the key and its project, and recorded.

    Args:
        by: id of the key whose holder sent it; None on the service's own machine, which no limit binds.
        known_uploads_max: such answers that the key may get per day.

    Raises:
        Conflict: Somebody else took over.
        Unauthorized: The key that it came with opens nothing any more.
        OverlapRefused, KnownAsPrivate, KnownAsPublic, SubjectsKnown: As `fingerprints.settle`.
        QuotaExceeded: There were too many such answers today; nothing was looked up for this one.
    """
    upload, images, subjects = content.upload, content.private_fingerprints, content.private_subjects
    fingerprints.forget(factory, upload.dataset_id, upload.attempt - 1)  # one that was given up may have left some
    known = fingerprints.look_up(factory, images, subjects)
    fingerprints.record(factory, upload.dataset_id, upload.attempt, images | subjects)
    refusal: fingerprints.KnownRefused | None = None
    with transaction(factory) as session:
        if by is not None:
            require_usable(session, by, now=now)
            fingerprints.wait_for_others(session)  # so that uploads that end together are counted one by one
            quotas.require_known_uploads(session, upload.project_id, by, known_uploads_max, now=now)
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
    """End the uploads whose lease has run out and remove what they left. Those of other processes go on.

    May run at any time, in several processes at once.

    Returns:
        How many uploads were ended.
    """
    with transaction(factory, read_only=True) as session:  # the usual case takes no write lock
        expired = states.expired_uploads(session, now=now)
    ended = 0
    for dataset_id, attempt in expired:
        with transaction(factory) as session:
            ended += states.end_expired_upload(session, settings, dataset_id, attempt, now=now)
        fingerprints.forget(factory, dataset_id, attempt)

    def live() -> set[tuple[str, int]]:
        with transaction(factory, read_only=True) as session:
            return states.live_uploads(session)

    reading.sweep(settings, live)
    return ended


def check_public(settings: Settings, factory: SessionFactory) -> None:
    """Compare the public datasets that nobody has compared with private images yet: those from before that was done.

    Until then, and for ever if an account protects one of their images, no training may use them. Call at start-up.
    """
    waiting = select(Dataset.id).where(Dataset.unchecked, Dataset.state == DatasetState.READY)
    with transaction(factory, read_only=True) as session:
        dataset_ids = session.scalars(waiting).all()
    for dataset_id in dataset_ids:
        try:
            _check_public(settings, factory, dataset_id)
        except (ObscuraError, OSError) as error:  # nobody uses it; the next start tries again
            get_logger(__name__).error("public_dataset_unchecked", dataset_id=dataset_id, error=type(error).__name__)


def _check_public(settings: Settings, factory: SessionFactory, dataset_id: str) -> None:
    key = vault.read_key(vault.fingerprint_key_path(settings))
    with vault.open_images(settings, dataset_id) as images:
        digests = fingerprints.fingerprint(images.batches(), key)
    fingerprints.record(factory, dataset_id, 0, digests)
    with transaction(factory) as session:
        dataset = find(session, Dataset, dataset_id)
        try:
            fingerprints.settle(session, dataset, digests)
        except fingerprints.KnownAsPrivate:
            states.move(session, dataset_id, DatasetState.FAILED, Dataset.unchecked, failure_code=states.REFUSED)
            get_logger(__name__).error("public_dataset_withdrawn", dataset_id=dataset_id)
        else:
            dataset.unchecked = False


@contextmanager
def _kept(settings: Settings, factory: SessionFactory, upload: Upload, clock: Clock) -> Iterator[threading.Event]:
    """Renew an upload's lease for the time of a block. Yields an event that is set when somebody has taken over."""
    lost, over = threading.Event(), threading.Event()

    def renew() -> None:
        while not over.wait(settings.heartbeat_seconds):
            try:
                with transaction(factory) as session:
                    if not states.renew_upload(session, upload, now=clock(), lease_seconds=settings.lease_seconds):
                        lost.set()
                        return
            except OperationalError as error:  # the next beat may be in time yet
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


def _patiently(settings: Settings, act: Callable[[], Dataset]) -> Dataset:
    """Do what needs the database, again and again for as long as the lease may last while the database is away."""
    until = time.monotonic() + settings.lease_seconds
    while True:
        try:
            return act()
        except OperationalError:
            if time.monotonic() + _PAUSE_SECONDS > until:
                raise
            time.sleep(_PAUSE_SECONDS)


def _refuse(settings: Settings, factory: SessionFactory, upload: Upload) -> None:
    try:
        with transaction(factory) as session:
            states.refuse_upload(session, settings, upload.dataset_id, upload.attempt)
        fingerprints.forget(factory, upload.dataset_id, upload.attempt)
    except (OperationalError, ObscuraError) as error:  # the end of the lease ends the upload, too
        get_logger(__name__).error("upload_not_refused", dataset_id=upload.dataset_id, error=type(error).__name__)
