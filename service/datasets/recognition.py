"""Recognition of subjects: the same number in every dataset of a project, and no second budget.

What the confined process hands over is a hash of each id, which whoever knows the id could compute. In its place
goes a half of an HMAC under this installation's secret, 32 bytes that no upload ever meets: the number under which the
subject's records are stored. Its fingerprint is an HMAC of that number. A subject's number depends on its own id alone,
so one more subject changes nobody else's. To whoever does not have the secret the numbers of an upload are as random
as if they had been drawn (`privacy.mechanisms.partition`).

Ids are scoped to a project: in another one, the same id is another subject.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from obscura.wire.faults import Refused
from obscura.wire.subjects import SubjectId
from service import ledger
from service.datasets.fingerprints import DIGEST_BYTES, Fingerprints
from service.db.dataset_tables import WithdrawnSubject
from service.errors import InvalidInput
from service.ingest.subjects import hashed_numbers

Numbers = np.ndarray[Any, np.dtype[np.int64]]
_LABEL = b"obscura recognised subject 1\0"
_FINGERPRINT_LABEL = b"obscura fingerprint of a subject 1\0"
_NUMBER_BYTES = 8


def recognise(private_hashes: Numbers, project_id: str, key: bytes) -> tuple[Numbers, Fingerprints]:
    """Return the stored number of each record's subject (n,), and the fingerprints of the subjects. PRIVATE.

    Args:
        private_hashes: (n,) what `service.ingest.subjects.hashed_numbers` made of the ids.
        project_id: in which the ids mean something.
        key: the secret of this installation, 32 bytes.

    Raises:
        ValueError: two subjects would have one number, which is as unlikely as guessing one.
    """
    subjects, of_record = np.unique(private_hashes, return_inverse=True)
    start = hmac.new(key, _LABEL + project_id.encode() + b"\0", hashlib.sha256)
    digests = []
    for subject in subjects.astype(">i8"):
        each = start.copy()
        each.update(subject.tobytes())
        digests.append(each.digest())
    numbers = np.array([int.from_bytes(digest[:_NUMBER_BYTES], "big") >> 1 for digest in digests], np.int64)
    if len(np.unique(numbers)) != len(numbers):
        raise ValueError
    return numbers[of_record], fingerprints_of(numbers, project_id, key)


def fingerprints_of(private_numbers: Numbers, project_id: str, key: bytes) -> Fingerprints:
    """Return the fingerprints of the subjects that are stored under these numbers. PRIVATE.

    A fingerprint follows from the stored number, so it can be computed again where a database has lost it.
    """
    start = hmac.new(key, _FINGERPRINT_LABEL + project_id.encode() + b"\0", hashlib.sha256)
    found = set()
    for number in np.unique(private_numbers).astype(">i8"):
        each = start.copy()
        each.update(number.tobytes())
        found.add(each.digest()[:DIGEST_BYTES])
    return frozenset(found)


def numbers_of(private_ids: Sequence[SubjectId], project_id: str, key: bytes) -> set[int]:
    """Return the numbers under which uploads of a project store the subjects with these ids. PRIVATE.

    Raises:
        InvalidInput: an id is a placeholder, such as "unknown".
    """
    try:
        hashes = hashed_numbers(private_ids, len(private_ids))
    except Refused:
        raise InvalidInput(
            "A subject id stands for nobody: no upload can have held it. Send the ids as they were pushed."
        ) from None
    return set(recognise(hashes, project_id, key)[0].tolist())


def withdrawn_from(session: Session, account_id: str) -> set[int]:
    """Return the numbers of the subjects who have withdrawn from an account. PRIVATE."""
    return set(session.scalars(select(WithdrawnSubject.number).where(WithdrawnSubject.account_id == account_id)))


def require_recognised(session: Session, account_id: str, *, recognised: bool) -> None:
    """Raise InvalidInput if subjects have withdrawn from the account and the dataset does not recognise subjects."""
    if not recognised and has_withdrawals(session, account_id):
        raise InvalidInput(
            "Subjects have withdrawn from this account, so its datasets recognise subjects: otherwise images of theirs "
            "could come back. Declare subjects_recognised, or push with the same --subjects-key."
        )


def require_same_key(session: Session, account_id: str, check: str | None) -> None:
    """Keep the check value of an account's first upload of recognised subjects, and refuse any other later.

    Under another key every subject has another number, so a withdrawal would destroy nothing.

    Args:
        check: of the client's key; None for plain ids, which only go together with plain ids.

    Raises:
        InvalidInput: it differs from the first one.
    """
    sent = check or ""
    name, kept = ledger.keep_subjects_key_check(session, account_id, sent)
    if kept == sent:
        return
    if kept == "":
        wrong = "sends ids as they are, and this request has the check value of a key. Leave --subjects-key out"
    elif sent == "":
        wrong = (
            f"recognises subjects under a key with the check value {kept}, and this request has "
            "none. Key the ids with --subjects-key, or send subjects_key_check if they are keyed already"
        )
    else:
        wrong = (
            f"recognises subjects under a key with the check value {kept}, and this request's "
            f"is {sent}. Use the same --subjects-key, and --join-subjects if that was used, as in its first upload"
        )
    raise InvalidInput(f"Account *{name}* {wrong}. No subject would be found, so nothing was changed.")


def has_withdrawals(session: Session, account_id: str) -> bool:
    """Return whether any subject has withdrawn from an account."""
    return session.scalar(select(exists().where(WithdrawnSubject.account_id == account_id))) is True
