"""Fingerprints of images and subjects, which prevent second budgets and uploads of private images as public.

A fingerprint is the first 16 bytes of the HMAC-SHA256 of an image's shape and decoded pixels, under a secret of this
installation. It finds equal decoded pixels in any file format, and with any label or order. An image that differs in
one pixel has another fingerprint.

Recognised subjects have permanent numbers instead of ids. The confined process returns a hash of each id, which anyone
who knows the id could compute. Each hash is replaced by a number: 63 bits of its HMAC under the same secret, which the
confined process does not have. The subject's fingerprint is an HMAC of that number. A number depends only on its id, so
one more subject changes no other number. Without the secret, the numbers are indistinguishable from random numbers
(`privacy.mechanisms.partition`). Ids are scoped to a project: in another project, the same id is another subject.

The fingerprints of an upload are inserted in many short transactions before the upload is accepted. Look-ups ignore
them until its acceptance, which the dataset's row records. Uploads are accepted one at a time, each after a new
look-up. So if two uploads share an image, the later upload finds it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from sqlalchemy import CursorResult, LargeBinary, bindparam, exists, func, select, text
from sqlalchemy.orm import Session

from obscura.wire.words import Unit
from service.db.dataset_tables import Dataset, Fingerprint
from service.db.ledger_tables import Account
from service.db.session import SessionFactory, transaction
from service.errors import InvalidInput

DIGEST_BYTES = 16
Fingerprints = frozenset[bytes]
Part = dict[str, Any]  # the parameters of one statement about some fingerprints
T = TypeVar("T")
Images = np.ndarray[Any, np.dtype[np.uint8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
_SAMPLED_PIXEL = 5  # the stride of the first check
DIGESTS_PER_TRANSACTION = 2**13  # a tenth of a second, so that other writers can proceed
PARTS_AT_A_TIME = 2  # on PostgreSQL, where each connection has its own process
_SUBJECT_LABEL = b"obscura recognised subject 1\0"
_SUBJECT_FINGERPRINT_LABEL = b"obscura fingerprint of a subject 1\0"
_ACCEPTANCE_LOCK = 0x0B5C0F  # an arbitrary constant, unique to this lock

# All digests are one parameter, which the database splits. One parameter per digest would take a minute per million.
_CUT = f"""WITH RECURSIVE positions(at) AS (
    SELECT 1 UNION ALL SELECT at + {DIGEST_BYTES} FROM positions WHERE at + {DIGEST_BYTES} <= :bytes
)"""
# A fingerprint counts if its upload was accepted. A deleted or failed public dataset blocks nothing.
_COUNTS = """datasets.id = fingerprints.dataset_id AND datasets.upload_attempt = fingerprints.upload_attempt
    AND datasets.ready_at IS NOT NULL
    AND (datasets.account_id IS NOT NULL OR datasets.state IN ('ready', 'deleting'))"""
_IS_DIGEST = f"digest = substr(:digests, at, {DIGEST_BYTES})"
# Without the lateral join, PostgreSQL would read the whole table while it has no statistics.
_MATCHED = {
    "sqlite": f"JOIN fingerprints ON {_IS_DIGEST}",
    "postgresql": f"""CROSS JOIN LATERAL (
        SELECT dataset_id, upload_attempt FROM fingerprints WHERE {_IS_DIGEST} OFFSET 0
    ) AS fingerprints""",
}
_HOLDERS = {
    dialect: text(
        f"{_CUT} SELECT DISTINCT datasets.account_id FROM positions {matched} JOIN datasets ON {_COUNTS}"
    ).bindparams(bindparam("digests", type_=LargeBinary))
    for dialect, matched in _MATCHED.items()
}
_RECORD = text(
    f"""INSERT INTO fingerprints (digest, dataset_id, upload_attempt) {_CUT}
    SELECT substr(:digests, at, {DIGEST_BYTES}), :dataset_id, :attempt FROM positions WHERE true
    ON CONFLICT DO NOTHING"""
).bindparams(bindparam("digests", type_=LargeBinary))
_FORGET = text(
    """DELETE FROM fingerprints WHERE dataset_id = :dataset_id AND upload_attempt <= :attempt AND digest IN (
        SELECT digest FROM fingerprints WHERE dataset_id = :dataset_id AND upload_attempt <= :attempt LIMIT :count
    )"""
)


# The messages of `KnownRefused`. They never state which images or subjects, how many, or whose.
_REFUSALS = {
    # No single account may pay for them. The message is the same for all reasons.
    "overlap": "Images of this upload are in other datasets already, and no single account can pay for all of them. "
    "Such an account must be yours, accept new data and have the same unit. Its epsilon and delta must not exceed "
    "those of the account you chose. Upload the known images separately, or into the account that was the first to get "
    "them; otherwise ask the operator. Nothing was stored.",
    "known_as_private": "Images of this upload are protected by an account here, so they cannot be public: an accuracy "
    "measured on them, or a basis computed from them, would be published without noise. Leave out all images that "
    "were ever uploaded as private. Nothing was stored.",
    "known_as_public": "Images of this upload are in a public dataset here, on which releases are measured without "
    "noise. Leave them out if they are public; if they are not, have the public dataset deleted first. Nothing was "
    "stored.",
    "known_subjects": "Subjects of this upload are already in another account of this project, and no subject can have "
    "two budgets. Upload their images into that account, and leave them out here. Nothing was stored.",
}


class KnownRefused(InvalidInput):
    """Images or subjects of an upload are already known. The error reveals this, so `quotas` limits such errors."""

    code: ClassVar[str] = "upload_refused"

    def __init__(self, fault: str) -> None:
        super().__init__(_REFUSALS[fault], fault=fault)


@dataclass(frozen=True, slots=True)
class Known:
    """The accounts and public datasets in which images or subjects of an upload are known. PRIVATE."""

    accounts: frozenset[str]  # with one of the images
    public: bool  # True if a public dataset has one of the images
    accepted: int  # `_accepted` before the look-up
    of_subjects: frozenset[str] = frozenset()  # accounts with one of the subjects


def at_least_as_strict(payer: Account, other: Account) -> bool:
    """Return whether `payer` has the same unit and adjacency as `other`, and no larger epsilon or delta.

    The remaining budget does not matter: an account without budget publishes nothing more.
    """
    return (
        (payer.unit, payer.adjacency) == (other.unit, other.adjacency)
        and payer.epsilon <= other.epsilon
        and payer.delta <= other.delta
    )


def fingerprint(batches: Iterable[Images], key: bytes) -> Fingerprints:
    """Return the fingerprints of images, uint8 (n, height, width) or (n, height, width, 3). PRIVATE.

    An image of a single colour has no fingerprint: blank pages would join unrelated accounts. A colour image with equal
    channels has the fingerprint of its gray version. `key` is this installation's secret, 32 bytes.
    """
    digests: set[bytes] = set()
    for batch in batches:
        grays = batch if batch.ndim == 3 else batch[..., 0]
        is_gray = np.ones(len(batch), bool)
        if batch.ndim == 4:
            is_gray = _all_along(batch, lambda images: images == images[..., :1])
        is_blank = _all_along(batch, lambda images: images == images[:, :1, :1])
        started = {}
        for channels in (1, 3):
            shape = "x".join(map(str, (*batch.shape[1:3], channels)))
            started[channels] = hmac.new(key, f"obscura image 1 {shape}\0".encode(), hashlib.sha256)
        for index in np.flatnonzero(~is_blank):
            digest = started[1 if is_gray[index] else 3].copy()
            digest.update(np.ascontiguousarray(grays[index] if is_gray[index] else batch[index]).data)
            digests.add(digest.digest()[:DIGEST_BYTES])
    return frozenset(digests)


def _all_along(images: Images, equal: Callable[[Images], Flags]) -> Flags:
    """Return, for each image, whether `equal` is true for all pixels. For most images, a sample of pixels decides."""
    axes = tuple(range(1, images.ndim))
    answers: Flags = np.all(equal(images[:, ::_SAMPLED_PIXEL, ::_SAMPLED_PIXEL]), axis=axes)
    perhaps = np.flatnonzero(answers)
    answers[perhaps] = np.all(equal(images[perhaps]), axis=axes)
    return answers


def recognise(private_hashes: Numbers, project_id: str, key: bytes) -> tuple[Numbers, Fingerprints]:
    """Return the stored number of each record's subject (n,), and the fingerprints of the subjects. PRIVATE.

    `private_hashes` (n,) are from `service.ingest.array_files.subject_numbers`. Raise ValueError if two subjects would
    get the same number, which is as unlikely as guessing a number.
    """
    subjects, of_record = np.unique(private_hashes, return_inverse=True)
    halves = [digest[:8] for digest in _digests_of(subjects, _SUBJECT_LABEL, project_id, key)]
    numbers = np.array([int.from_bytes(half, "big") >> 1 for half in halves], np.int64)
    if len(np.unique(numbers)) != len(numbers):
        raise ValueError
    return numbers[of_record], subject_fingerprints(numbers, project_id, key)


def subject_fingerprints(private_numbers: Numbers, project_id: str, key: bytes) -> Fingerprints:
    """Return the fingerprints of subjects by their stored numbers. PRIVATE."""
    digests = _digests_of(np.unique(private_numbers), _SUBJECT_FINGERPRINT_LABEL, project_id, key)
    return frozenset(digest[:DIGEST_BYTES] for digest in digests)


def _digests_of(numbers: Numbers, label: bytes, project_id: str, key: bytes) -> Iterator[bytes]:
    start = hmac.new(key, label + project_id.encode() + b"\0", hashlib.sha256)
    for number in numbers.astype(">i8"):
        digest = start.copy()
        digest.update(number.tobytes())
        yield digest.digest()


def record(factory: SessionFactory, dataset_id: str, attempt: int, digests: Fingerprints) -> None:
    """Insert the fingerprints of an upload, also known ones: other datasets with them may be erased. Idempotent."""

    def write(part: Part) -> None:
        with transaction(factory) as session:
            if session.get_bind().dialect.name == "postgresql":
                # Not durable yet; the acceptance, after which they count, waits for the disk.
                session.execute(text("SET LOCAL synchronous_commit = off"))
            session.execute(_RECORD, {**part, "dataset_id": dataset_id, "attempt": attempt})

    _with_each(factory, write, digests)


def forget(factory: SessionFactory, dataset_id: str, attempt: int) -> None:
    """Remove the fingerprints of a dataset's uploads up to number `attempt`, in short transactions. Idempotent."""
    parameters = {"dataset_id": dataset_id, "attempt": attempt, "count": DIGESTS_PER_TRANSACTION}
    while True:
        with transaction(factory) as session:
            if cast(CursorResult[Any], session.execute(_FORGET, parameters)).rowcount == 0:
                return


def look_up(factory: SessionFactory, digests: Fingerprints, subjects: Fingerprints) -> Known:
    """Return the accounts that know the images and subjects. Holds no lock."""
    with transaction(factory, read_only=True) as session:
        accepted = _accepted(session)  # read first, so that later acceptances are detected

    def holders(part: Part) -> set[str | None]:
        with transaction(factory, read_only=True) as session:
            return set(session.scalars(_HOLDERS[session.get_bind().dialect.name], part))

    return _known(accepted, _with_each(factory, holders, digests), _with_each(factory, holders, subjects))


def settle(
    session: Session, dataset: Dataset, digests: Fingerprints, known: Known, subjects: Fingerprints
) -> str | None:
    """Return the id of the account that pays for an upload being accepted; None if the dataset is public.

    An account is concerned if it has one of the images. The dataset's own account is also concerned if its unit is the
    subject and it has had content, which may be of the same people. If exactly one account is concerned, the dataset
    joins it. That account must be in the same project and at least as strict. Otherwise the uploader could move a
    dataset to a laxer account by including one image. The error is the same for all reasons.

    A known subject never makes the dataset join an account, because all other subjects would move too.

    Args:
        session: session of the transaction that makes the dataset ready. Other acceptances wait for its end.
        known: result of `look_up`, which is repeated under the lock if another upload was accepted since.

    Raises:
        KnownRefused: with one of four codes. overlap: several accounts are concerned, or the one to join is in another
            project, less strict, or protects another unit. known_as_private: the dataset is public, and an account
            protects one of its images. known_as_public: the dataset is private, and one of its images is public.
            known_subjects: one of its subjects is in another account.
    """
    wait_for_others(session)
    accepted = _accepted(session)
    if known.accepted != accepted:
        holders = _HOLDERS[session.get_bind().dialect.name]
        found = ([set(session.scalars(holders, part)) for part in _parts(each)] for each in (digests, subjects))
        known = _known(accepted, *found)
    if dataset.account_id is None:
        if known.accounts:
            raise KnownRefused("known_as_private")
        return None
    if known.public:
        raise KnownRefused("known_as_public")
    concerned = set(known.accounts)
    own = session.get_one(Account, dataset.account_id)
    if concerned - {own.id} and own.unit is Unit.SUBJECT:
        others = Dataset.id != dataset.id, Dataset.ready_at.is_not(None), Dataset.erased_at.is_(None)
        if session.scalar(select(exists().where(Dataset.account_id == own.id, *others))):
            concerned.add(own.id)
    payer = session.get_one(Account, concerned.pop()) if concerned else own
    if concerned or payer.project_id != own.project_id or not at_least_as_strict(payer, own):
        raise KnownRefused("overlap")
    if known.of_subjects - {payer.id}:
        raise KnownRefused("known_subjects")
    return payer.id


def any_recorded(session: Session) -> bool:
    return session.scalar(select(exists().where(Fingerprint.dataset_id.is_not(None)))) is True


def wait_for_others(session: Session) -> None:
    """Serialize acceptances until the transaction ends. SQLite has one writer at a time anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ACCEPTANCE_LOCK})


def _accepted(session: Session) -> int:
    """Return a number that increases whenever fingerprints start or stop counting: acceptances plus erasures."""
    counted = select(func.count() + func.count(Dataset.erased_at))
    return session.scalar(counted.where(Dataset.ready_at.is_not(None))) or 0


def _with_each(factory: SessionFactory, act: Callable[[Part], T], digests: Fingerprints) -> list[T]:
    """Call `act` for each part in its own transaction; on PostgreSQL, several at a time."""
    if factory.kw["bind"].dialect.name != "postgresql":
        return [act(part) for part in _parts(digests)]
    with ThreadPoolExecutor(PARTS_AT_A_TIME, thread_name_prefix="obscura-fingerprints") as pool:
        return list(pool.map(act, _parts(digests)))


def _parts(digests: Fingerprints) -> Iterator[Part]:
    """Yield the parameters of statements, with digests in index order."""
    ordered = sorted(digests)
    for at in range(0, len(ordered), DIGESTS_PER_TRANSACTION):
        part = ordered[at : at + DIGESTS_PER_TRANSACTION]
        yield {"digests": b"".join(part), "bytes": len(part) * DIGEST_BYTES}


def _known(accepted: int, of_images: list[set[str | None]], of_subjects: list[set[str | None]]) -> Known:
    images, people = (set[str | None]().union(*each) for each in (of_images, of_subjects))
    return Known(frozenset(filter(None, images)), None in images, accepted, frozenset(filter(None, people)))
