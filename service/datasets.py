"""Declared datasets and what became of their uploads. Takes a session, never commits.

DECLARED -> RECEIVING -> READY, or back to DECLARED when the content was refused; content never changes once ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy import CursorResult, select, update
from sqlalchemy.orm import Session

from service import fingerprints, vault
from service.db.base import new_id
from service.db.tables import Account, Dataset, DatasetState, Unit, Visibility
from service.errors import Conflict, InvalidInput, NotFound
from service.settings import Settings
from service.uploads import DatasetFacts, ReceivedContent

REFUSED = "upload_refused"  # which rule was broken is told to the uploader alone


def declare(
    session: Session,
    settings: Settings,
    *,
    name: str,
    account_id: str | None,
    visibility: str,
    classes: Sequence[str],
    height: int,
    width: int,
    channels: int,
    records_declared: int,
    subjects_declared: int | None,
    now: datetime,
) -> Dataset:
    """Declare a dataset. Everything declared is public.

    Args:
        session: In a writing transaction.
        settings: For the limits.
        name: For people; need not be unique.
        account_id: The population that a private dataset belongs to; None for a public one.
        visibility: "private" or "public".
        classes: Distinct names in label order.
        height: Pixels.
        width: Pixels.
        channels: 1 or 3.
        records_declared: Upper bound on the records; the guarantee is computed from it.
        subjects_declared: Upper bound on the subjects, for a dataset of an account whose unit is the subject: there
            the guarantee is computed from it. None for every other dataset.
        now: Aware.

    Raises:
        InvalidInput: The declaration contradicts itself or a limit.
        NotFound: There is no such account.
    """
    kind = Visibility(visibility)
    if (kind is Visibility.PRIVATE) != (account_id is not None):
        raise InvalidInput("A private dataset names the account of its people; a public dataset names none.")
    if len(set(classes)) != len(classes):
        raise InvalidInput("The class names must be distinct.")
    if len(classes) > settings.classes_max:
        raise InvalidInput(f"At most {settings.classes_max} classes.", classes_max=settings.classes_max)
    if height * width > settings.pixels_max:
        raise InvalidInput(f"At most {settings.pixels_max} pixels an image.", pixels_max=settings.pixels_max)
    if records_declared > settings.images_max:
        raise InvalidInput(f"At most {settings.images_max} records.", images_max=settings.images_max)
    _check_subjects(session, account_id, records_declared, subjects_declared)
    dataset = Dataset(
        id=new_id("ds"),
        account_id=account_id,
        name=name,
        visibility=kind,
        classes=list(classes),
        height=height,
        width=width,
        channels=channels,
        records_declared=records_declared,
        subjects_declared=subjects_declared,
        state=DatasetState.DECLARED,
        created_at=now,
    )
    session.add(dataset)
    session.flush()
    return dataset


def _check_subjects(
    session: Session, account_id: str | None, records_declared: int, subjects_declared: int | None
) -> None:
    """Hold the declared number of subjects to the account's unit.

    Raises:
        InvalidInput: It is missing, out of range, or there is no use for it.
        NotFound: There is no such account.
    """
    if account_id is None:
        if subjects_declared is not None:
            raise InvalidInput("A public dataset protects nobody, so it declares no subjects.")
        return
    account = session.get(Account, account_id)
    if account is None:
        raise NotFound(f"There is no account {account_id}.")
    if account.unit is not Unit.SUBJECT:
        if subjects_declared is not None:
            raise InvalidInput(
                f"Account *{account.name}* protects single records, and would go on protecting single records "
                "whatever the subjects are. Leave subjects_declared out and the ids out of the upload; to protect all "
                "records of a subject together, use an account whose unit is the subject."
            )
        return
    if subjects_declared is None:
        raise InvalidInput(
            f"Account *{account.name}* protects all records of one subject, so its datasets declare "
            "subjects_declared, a public upper bound on the number of subjects, and their uploads say whose each "
            "record is."
        )
    if not 1 <= subjects_declared <= records_declared:
        raise InvalidInput(
            f"subjects_declared is between 1 and records_declared ({records_declared}); {subjects_declared} was given.",
            subjects_declared=subjects_declared,
            records_declared=records_declared,
        )


def find(session: Session, dataset_id: str) -> Dataset:
    """Read a dataset.

    Raises:
        NotFound: There is none with this identifier.
    """
    dataset = session.get(Dataset, dataset_id)
    if dataset is None:
        raise NotFound(f"There is no dataset {dataset_id}.")
    return dataset


def begin_upload(session: Session, dataset_id: str) -> DatasetFacts:
    """Claim the right to receive content; one uploader at a time.

    Raises:
        NotFound: There is no such dataset.
        Conflict: It has content already, is receiving it, or was deleted.
    """
    dataset = find(session, dataset_id)
    if not _move(session, dataset_id, DatasetState.DECLARED, DatasetState.RECEIVING, failure_code=None):
        reasons = {
            DatasetState.READY: "has its content already, which never changes. Declare a new dataset",
            DatasetState.RECEIVING: "is receiving an upload. Wait for it to end",
        }
        reason = reasons.get(dataset.state, f"is {dataset.state.value} and takes no content")
        raise Conflict(f"Dataset {dataset_id} {reason}.", state=dataset.state.value)
    return DatasetFacts(
        dataset_id=dataset.id,
        classes=tuple(dataset.classes),
        height=dataset.height,
        width=dataset.width,
        channels=dataset.channels,
        records_declared=dataset.records_declared,
        subjects_declared=dataset.subjects_declared,
        public=dataset.visibility is Visibility.PUBLIC,
    )


def accept_upload(session: Session, received: ReceivedContent, *, now: datetime) -> Dataset:
    """Record that the content was accepted and stored, and which account pays for it.

    A private dataset that holds images of another account joins that account (`service.fingerprints`).

    Raises:
        Conflict: The upload was given up in the meantime.
        OverlapRefused: Its images are known, and no one account can pay for them.
    """
    values = {"format": received.format, "content_sha256": received.sha256, "content_bytes": received.bytes}
    if not _move(session, received.dataset_id, DatasetState.RECEIVING, DatasetState.READY, ready_at=now, **values):
        raise Conflict(f"Dataset {received.dataset_id} is no longer receiving. Upload again.")
    session.expire_all()
    dataset = find(session, received.dataset_id)
    if dataset.account_id is not None:
        payer_id = fingerprints.settle(session, dataset, received.private_fingerprints)
        if payer_id != dataset.account_id:
            dataset.account_id, dataset.joined = payer_id, True
            session.flush()
    return dataset


def refuse_upload(session: Session, settings: Settings, dataset_id: str) -> None:
    """Go back to DECLARED after a refused or broken upload, and destroy what it may have stored."""
    if _move(session, dataset_id, DatasetState.RECEIVING, DatasetState.DECLARED, failure_code=REFUSED):
        vault.shred(settings, dataset_id)  # before the commit: afterwards, another upload may have begun


def reset_interrupted(session: Session, settings: Settings) -> int:
    """Go back to DECLARED for every upload that a stopped process left open. Call at start-up only.

    Returns:
        The number of datasets concerned.
    """
    interrupted = list(session.scalars(select(Dataset.id).where(Dataset.state == DatasetState.RECEIVING)))
    for dataset_id in interrupted:
        refuse_upload(session, settings, dataset_id)
    return len(interrupted)


def _move(session: Session, dataset_id: str, before: DatasetState, after: DatasetState, **values: Any) -> bool:
    statement = update(Dataset).where(Dataset.id == dataset_id, Dataset.state == before).values(state=after, **values)
    result = cast(CursorResult[Any], session.execute(statement, execution_options={"synchronize_session": False}))
    return result.rowcount == 1
