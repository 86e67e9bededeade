"""Declaration of datasets, and their state machine. Functions take a session and never commit.

DECLARED -> RECEIVING -> READY, or back to DECLARED if the content was rejected. Ready content changes only because of
withdrawals. An upload has a number and a lease, which fence its steps.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import ColumnElement, ColumnExpressionArgument, CursorResult, and_, exists, or_, select, true, update
from sqlalchemy.orm import Session

from obscura.wire.schemas import DatasetRequest
from obscura.wire.words import DatasetState, Unit, Visibility
from service import ledger
from service.datasets import fingerprints, reading
from service.datasets.vault import Vault
from service.db.base import new_id
from service.db.dataset_tables import KEY_MISSING, Dataset, WithdrawnSubject
from service.db.ledger_tables import Account
from service.errors import AccountClosed, Conflict, InvalidInput
from service.identity import projects
from service.identity.access import find, require_project
from service.logs import get_logger
from service.settings import Settings
from service.storage.interface import key_of

REFUSED = "upload_refused"  # only the uploader sees which rule was broken
# The allowed transitions. Only `move` changes a state.
FOLLOWING = {
    DatasetState.DECLARED: {DatasetState.RECEIVING, DatasetState.DELETING},
    DatasetState.RECEIVING: {DatasetState.READY, DatasetState.DECLARED, DatasetState.RECEIVING},  # by another upload
    DatasetState.READY: {DatasetState.WITHDRAWING, DatasetState.DELETING, DatasetState.FAILED},
    DatasetState.WITHDRAWING: {
        *(DatasetState.READY, DatasetState.WITHDRAWING, DatasetState.DELETING),
        DatasetState.FAILED,
    },
    DatasetState.FAILED: {DatasetState.READY, DatasetState.DELETING},
    DatasetState.DELETING: {DatasetState.DELETED},
    DatasetState.DELETED: set[DatasetState](),
}


def declare(session: Session, settings: Settings, request: DatasetRequest, *, now: datetime) -> Dataset:
    """Declare a dataset. Everything declared is public."""
    visibility, subjects, records = Visibility(request.visibility), request.subjects_declared, request.records_declared
    if (visibility is Visibility.PRIVATE) != (request.account_id is not None):
        raise InvalidInput("A private dataset needs an account; a public dataset must have none.")
    if len(set(request.classes)) < len(request.classes):  # all in Unicode form C, see `clean_text`
        raise InvalidInput("Two class names are the same, or differ only in how their accents are stored. Rename one.")
    if len(request.classes) > settings.classes_max:
        raise InvalidInput(
            f"A dataset has at most {settings.classes_max} classes; this one has {len(request.classes)}.",
            classes_max=settings.classes_max,
        )
    if request.height * request.width > settings.pixels_max:
        raise InvalidInput(f"An image has at most {settings.pixels_max} pixels.", pixels_max=settings.pixels_max)
    if records > settings.images_max:
        raise InvalidInput(f"A dataset has at most {settings.images_max} records.", images_max=settings.images_max)
    require_project(session)
    if request.account_id is None:
        project_id = projects.choose(session)
        if subjects is not None:
            raise InvalidInput("A public dataset protects no subjects. Leave out subjects_declared.")
    else:
        account = find(session, Account, request.account_id)
        ledger.require_open(account)
        project_id = account.project_id
        if account.unit is not Unit.SUBJECT and subjects is not None:
            raise InvalidInput(
                f"Account '{account.name}' protects single records, so subject ids would change nothing. Leave out "
                "subjects_declared, and leave the ids out of the upload. To protect all records of a subject together, "
                "use an account whose unit is the subject."
            )
        if account.unit is Unit.SUBJECT:
            if subjects is None:
                raise InvalidInput(
                    f"Account '{account.name}' protects all records of one subject. Its datasets must declare "
                    "subjects_declared, a public upper bound on the number of subjects. Their uploads must contain the "
                    "subject of each record."
                )
            if subjects > records:
                raise InvalidInput(
                    f"subjects_declared must be between 1 and records_declared ({records}); {subjects} was given.",
                    subjects_declared=subjects,
                    records_declared=records,
                )
            require_recognised(session, account.id, recognised=request.subjects_recognised)
    if request.subjects_recognised and subjects is None:
        raise InvalidInput("Only a dataset that declares subjects can recognise them. Add subjects_declared.")
    declared = request.model_dump() | {"visibility": visibility, "project_id": project_id}
    dataset = Dataset(id=new_id("ds"), created_at=now, **declared)
    session.add(dataset)
    session.flush()
    return dataset


def move(
    session: Session,
    dataset_id: str,
    state: DatasetState,
    which: ColumnExpressionArgument[bool] = true(),
    **values: Any,
) -> bool:
    """Change a row if the transition is allowed and `which` holds; return whether it changed. Refresh no object."""
    before = [known for known, following in FOLLOWING.items() if state in following]
    statement = update(Dataset).where(Dataset.id == dataset_id, Dataset.state.in_(before), which)
    statement = statement.values(state=state, **values).execution_options(synchronize_session=False)
    return cast(CursorResult[Any], session.execute(statement)).rowcount == 1


def begin_upload(
    session: Session, dataset_id: str, *, now: datetime, lease_seconds: float, subjects_key_check: str | None = None
) -> Dataset:
    """Begin an upload with a new `upload_attempt`, and a lease after which another upload may take over."""
    dataset = find(session, Dataset, dataset_id)
    begun = {"upload_attempt": Dataset.upload_attempt + 1, "upload_lease_until": now + timedelta(seconds=lease_seconds)}
    free = or_(Dataset.state == DatasetState.DECLARED, receiving(expired_at=now))
    if not move(session, dataset_id, DatasetState.RECEIVING, free, failure_code=None, **begun):
        reasons = {
            DatasetState.READY: "already has its content, which never changes. Declare a new dataset",
            DatasetState.RECEIVING: "is receiving an upload. Wait for it to end. If its service died, another upload "
            f"may begin after {lease_seconds:.0f} seconds",
        }
        reason = reasons.get(dataset.state, f"is {dataset.state.value} and accepts no content")
        raise Conflict(f"Dataset {dataset_id} {reason}.", state=dataset.state.value)
    session.refresh(dataset)
    if dataset.account_id is not None:
        account = session.get_one(Account, dataset.account_id)
        ledger.require_open(account)
        if dataset.subjects_recognised and account.subjects_key_check is not None:
            require_same_key(session, account.id, subjects_key_check)
    if subjects_key_check is not None and not dataset.subjects_recognised:
        raise InvalidInput("subjects_key_check is only for datasets that recognise subjects (subjects_recognised).")
    return dataset


def accept_upload(session: Session, content: reading.Content, known: fingerprints.Known, *, now: datetime) -> Dataset:
    """Record accepted content and the account that pays. The caller publishes the content in the same transaction.

    Its fingerprints count from the commit on. A private dataset with images of another account joins that account, or
    raises KnownRefused if the account does not accept it. If any subject has withdrawn from the account, the dataset
    becomes WITHDRAWING, even if it lacks those subjects.
    """
    session.expire_all()
    attempt = content.dataset.upload_attempt
    dataset = find(session, Dataset, content.dataset.id)
    if dataset.state in (DatasetState.READY, DatasetState.WITHDRAWING) and dataset.upload_attempt == attempt:
        return dataset  # already accepted; the answer was lost
    own_id = dataset.account_id
    if own_id is not None:  # before any look-up, so that this error does not depend on the content
        ledger.require_open(session.get_one(Account, own_id))
    images, subjects = content.private_fingerprints, content.private_subjects
    payer_id = fingerprints.settle(session, dataset, images, known, subjects)
    values = {"format": content.sent.format, "content_sha256": content.sha256, "content_bytes": content.bytes}
    values |= {"account_id": payer_id, "joined": payer_id != own_id, "vault_key_id": content.vault_key_id}
    values |= {"ready_at": now, "upload_lease_until": None}
    if not move(session, dataset.id, DatasetState.READY, receiving(attempt), **values):
        raise Conflict(f"Dataset {dataset.id} is no longer receiving this upload. Upload again.")
    session.refresh(dataset)
    if payer_id is None:
        return dataset
    try:
        ledger.require_open(ledger.lock_account(session, payer_id))
        require_recognised(session, payer_id, recognised=dataset.subjects_recognised)
        if dataset.subjects_recognised:
            require_same_key(session, payer_id, content.sent.subjects_key_check)
    except (AccountClosed, InvalidInput):
        if payer_id != own_id:  # one error for all reasons reveals nothing about the other account
            raise fingerprints.KnownRefused("overlap") from None
        raise
    if move(session, dataset.id, DatasetState.WITHDRAWING, exists().where(WithdrawnSubject.account_id == payer_id)):
        session.refresh(dataset)
    return dataset


def check_keys(session: Session, settings: Settings, *, contents: bool = True) -> None:
    """Mark every stored dataset without a key as FAILED (KEY_MISSING), and make it READY once its key is back.

    With `contents`, also check that the storage has the contents, with one request for each. If the folder of keys is
    missing, nothing changes: its disk may not be mounted.
    """
    if not (settings.keys_path / "datasets").is_dir():
        return
    vault = Vault.of(settings)
    keys = vault.stored_keys()

    def opens(name: str, *, contents: bool = contents) -> bool:
        return name in keys and (not contents or vault.storage.holds(key_of(name)))

    marked = and_(Dataset.state == DatasetState.FAILED, Dataset.failure_code == KEY_MISSING)
    stored = or_(Dataset.state.in_((DatasetState.READY, DatasetState.WITHDRAWING)), marked)
    for dataset in session.scalars(select(Dataset).where(stored)).all():
        if dataset.state is DatasetState.FAILED:
            if opens(dataset.content, contents=True):
                move(session, dataset.id, DatasetState.READY, marked, failure_code=None)
        # There may be newer content from a withdrawal that a restored database lacks.
        elif (
            not opens(dataset.content)
            and not any(map(opens, vault.contents_of(dataset.id)))
            and move(session, dataset.id, DatasetState.FAILED, failure_code=KEY_MISSING)
        ):
            get_logger(__name__).error("dataset_key_missing", dataset_id=dataset.id)


def uploads(session: Session, *, expired_at: datetime | None = None) -> set[tuple[str, int]]:
    """Return the id and attempt of every upload in progress, or only of those whose lease has expired."""
    rows = session.execute(select(Dataset.id, Dataset.upload_attempt).where(receiving(expired_at=expired_at)))
    return {(dataset_id, attempt) for dataset_id, attempt in rows}


def end_upload(
    session: Session, vault: Vault, dataset_id: str, attempt: int, *, expired_at: datetime | None = None
) -> bool:
    """Return a dataset to DECLARED and destroy its content: the upload was rejected, was interrupted or lost its lease.

    Return False if the upload has already ended, or its lease has not expired by `expired_at`, if given.
    """
    ended = {"failure_code": REFUSED, "upload_lease_until": None}
    if not move(session, dataset_id, DatasetState.DECLARED, receiving(attempt, expired_at=expired_at), **ended):
        return False
    vault.shred(dataset_id)  # before the commit, because another upload may begin after it
    return True


def require_recognised(session: Session, account_id: str, *, recognised: bool) -> None:
    """Raise InvalidInput if subjects have withdrawn from the account, but the dataset does not recognise subjects."""
    if not recognised and session.scalar(select(exists().where(WithdrawnSubject.account_id == account_id))):
        raise InvalidInput(
            "Subjects have withdrawn from this account, so its datasets must recognise subjects. Otherwise images of "
            "those subjects could come back. Declare subjects_recognised, or push with the same --subjects-key."
        )


def require_same_key(session: Session, account_id: str, check: str | None) -> None:
    """Store the check value of the account's first upload of recognised subjects; reject any other check value later.

    Under another key, every subject would have another number, so a withdrawal would find and destroy nothing. The
    check value of plain ids is None; an account cannot mix both.
    """
    sent = check or ""
    name, kept = ledger.keep_subjects_key_check(session, account_id, sent)
    if kept == sent:
        return
    if kept == "":
        wrong = "gets plain subject ids, but this request has the check value of a key. Leave out --subjects-key"
    else:
        other = f" has {sent}. Use the same --subjects-key, and --join-subjects if the account's first upload used it"
        if sent == "":
            other = " has none. Key the ids with --subjects-key, or send subjects_key_check if they are keyed already"
        wrong = f"recognises subjects under a key with the check value {kept}, but this request{other}"
    raise InvalidInput(f"Account '{name}' {wrong}. Otherwise no subject would be found. Nothing was changed.")


def receiving(attempt: int | None = None, *, expired_at: datetime | None = None) -> ColumnElement[bool]:
    """Select datasets with an upload in progress.

    `attempt` restricts them to one upload, and `expired_at` to uploads whose lease has expired by then.
    """
    numbered = true() if attempt is None else Dataset.upload_attempt == attempt
    expired = true() if expired_at is None else Dataset.upload_lease_until <= expired_at
    return and_(Dataset.state == DatasetState.RECEIVING, numbered, expired)
