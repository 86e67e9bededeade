"""Where an image was first counted, so that it cannot be given a second budget, nor come back as a public one.

A fingerprint is the first 16 bytes of the HMAC-SHA256 of an image's shape and decoded pixels, under a secret of this
installation. What they find is equality of decoded pixels, whatever the file format, the label or the order was; an
image in which one pixel differs is another image.

Those of an upload are written down in many short transactions, before it is accepted, and count from the moment at
which it is: the dataset's row says which upload that was. Uploads are accepted one at a time, each after a look at what
counts then, so of two that share an image one sees the other.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np
from sqlalchemy import CursorResult, LargeBinary, bindparam, exists, func, select, text
from sqlalchemy.orm import Session

from obscura.wire.words import Adjacency, Unit
from service.db.dataset_tables import Dataset, Fingerprint
from service.db.ledger_tables import AccountRow
from service.db.session import SessionFactory, transaction
from service.errors import InvalidInput

DIGEST_BYTES = 16
Fingerprints = frozenset[bytes]
Part = dict[str, Any]  # the parameters of one statement about some of them
Found = TypeVar("Found")
Images = np.ndarray[Any, np.dtype[np.uint8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
_SAMPLED_PIXEL = 5  # every so many in each direction are looked at first
DIGESTS_PER_TRANSACTION = 2**13  # a tenth of a second; other writers come in between
PARTS_AT_A_TIME = 2  # on PostgreSQL, where each connection has a process of its own
# Any constant will do that nothing else locks by.
_ACCEPTANCE_LOCK = 0x0B5C0F

# Digests travel as one value and are cut apart in the database: one parameter for each would take a minute a million.
_CUT = f"""WITH RECURSIVE positions(at) AS (
    SELECT 1 UNION ALL SELECT at + {DIGEST_BYTES} FROM positions WHERE at + {DIGEST_BYTES} <= :bytes
)"""
# A fingerprint counts if its upload was the accepted one. A public dataset that is gone or out of use forbids nothing.
_COUNTS = """datasets.id = fingerprints.dataset_id AND datasets.upload_attempt = fingerprints.upload_attempt
    AND datasets.ready_at IS NOT NULL
    AND (datasets.account_id IS NOT NULL OR datasets.state IN ('ready', 'deleting'))"""
_IS_DIGEST = f"digest = substr(:digests, at, {DIGEST_BYTES})"
# PostgreSQL is kept from reading the whole table, as it does while it has no statistics of it.
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


class KnownRefused(InvalidInput):
    """An upload was refused because images or subjects of it are known. The answer reveals that: see `quotas`."""

    code: ClassVar[str] = "upload_refused"


class OverlapRefused(KnownRefused):
    """The images are known, and no one account may pay for them. One reason, whatever was found."""

    def __init__(self) -> None:
        super().__init__(
            "Images of this upload are in other datasets already, and there is no single account that may pay for "
            "all of them: one of yours that takes new data, with the same unit, and with an epsilon and a delta that "
            "are at most those of the account you chose. Upload them apart from the rest, or into the account in which "
            "they were first; otherwise ask the operator. Nothing was stored.",
            fault="overlap",
        )


class KnownAsPrivate(KnownRefused):
    """A public upload holds an image that an account protects. It never says which, or how many, or whose."""

    def __init__(self) -> None:
        super().__init__(
            "Images of this upload are protected by an account here, so they cannot be public: an accuracy measured on "
            "them, or a basis computed from them, would be published without noise. Take out what was ever uploaded "
            "as private. Nothing was stored.",
            fault="known_as_private",
        )


class KnownAsPublic(KnownRefused):
    """A private upload holds an image of a public dataset. It never says which, or how many."""

    def __init__(self) -> None:
        super().__init__(
            "Images of this upload are in a public dataset here, by which releases are measured: that would tell about "
            "them without noise. Leave them out if they are public; if they are not, have the public dataset deleted "
            "first. Nothing was stored.",
            fault="known_as_public",
        )


class SubjectsKnown(KnownRefused):
    """Subjects of an upload are in another account. It never says which, or how many, or whose."""

    def __init__(self) -> None:
        super().__init__(
            "Subjects of this upload are in another account of this project already, and nobody has two budgets. Leave "
            "out what is theirs, and upload it into the account in which they are. Nothing was stored.",
            fault="known_subjects",
        )


class Terms(Protocol):
    """What an account promises about everything that it will ever publish."""

    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency


def at_least_as_strict(payer: Terms, other: Terms) -> bool:
    """Tell whether whoever was promised `other` loses nothing when `payer` pays for him instead.

    That is so when both speak of the same neighbours (unit and adjacency) and neither epsilon nor delta is larger.
    What is left of an account makes no difference: one without a rest publishes nothing more. Of terms of which one has
    the smaller epsilon and the other the smaller delta, neither is as strict as the other.
    """
    return (
        (payer.unit, payer.adjacency) == (other.unit, other.adjacency)
        and payer.epsilon <= other.epsilon
        and payer.delta <= other.delta
    )


@dataclass(frozen=True, slots=True)
class Known:
    """Where images and subjects are known, as of the moment at which so many uploads had been accepted. PRIVATE."""

    accounts: frozenset[str]
    public: bool
    accepted: int
    of_subjects: frozenset[str] = frozenset()  # accounts


def fingerprint(batches: Iterable[Images], key: bytes) -> Fingerprints:
    """Return the fingerprints of images. PRIVATE.

    An image of a single colour has none, because blank pages would join strangers: it may be in several accounts. A
    colour image whose channels are all equal has the fingerprint of its gray version.

    Args:
        batches: uint8 (n, height, width) or (n, height, width, 3).
        key: the secret of this installation, 32 bytes.
    """
    found: set[bytes] = set()
    for batch in batches:
        grays = batch if batch.ndim == 3 else batch[..., 0]
        is_gray = np.ones(len(batch), bool)
        if batch.ndim == 4:
            is_gray = _all_along(batch, lambda images: images == images[..., :1])
        is_blank = _all_along(batch, lambda images: images == images[:, :1, :1])
        starts = {channels: _start(key, (*batch.shape[1:3], channels)) for channels in (1, 3)}
        for index in np.flatnonzero(~is_blank):
            digest = starts[1 if is_gray[index] else 3].copy()
            digest.update(np.ascontiguousarray(grays[index] if is_gray[index] else batch[index]).data)
            found.add(digest.digest()[:DIGEST_BYTES])
    return frozenset(found)


def _all_along(images: Images, equal: Callable[[Images], Flags]) -> Flags:
    """Tell for each image whether all of its pixels are equal in some sense; a few of them show it of most.

    Args:
        images: uint8 (n, height, width) or (n, height, width, 3).
        equal: compares every pixel with the one that it should be like.
    """
    axes = tuple(range(1, images.ndim))
    answers: Flags = np.all(equal(images[:, ::_SAMPLED_PIXEL, ::_SAMPLED_PIXEL]), axis=axes)
    perhaps = np.flatnonzero(answers)
    answers[perhaps] = np.all(equal(images[perhaps]), axis=axes)
    return answers


def record(factory: SessionFactory, dataset_id: str, attempt: int, digests: Fingerprints) -> None:
    """Write down the fingerprints of an upload that is not accepted yet, in short transactions. Twice changes nothing.

    Args:
        dataset_id: whose images they are of.
        attempt: the upload's number.
        digests: of its images, also of those that are known in its account already: each dataset is to bear its own
            when another one is erased.
    """

    def write(part: Part) -> None:
        with transaction(factory) as session:
            if session.get_bind().dialect.name == "postgresql":
                # Nothing waits for the disk here: the acceptance that makes them count does, for all that came before.
                session.execute(text("SET LOCAL synchronous_commit = off"))
            session.execute(_RECORD, {**part, "dataset_id": dataset_id, "attempt": attempt})

    _with_each(factory, write, _in_parts(digests))


def forget(factory: SessionFactory, dataset_id: str, attempt: int) -> None:
    """Remove the fingerprints of uploads up to one that was not accepted, in short transactions.

    Those of a public dataset go like this, too, once it is deleted, and those of private images that nothing has read.
    """
    parameters = {"dataset_id": dataset_id, "attempt": attempt, "count": DIGESTS_PER_TRANSACTION}
    while True:
        with transaction(factory) as session:
            if cast(CursorResult[Any], session.execute(_FORGET, parameters)).rowcount == 0:
                return


def look_up(factory: SessionFactory, digests: Fingerprints, subjects: Fingerprints = frozenset()) -> Known:
    """Find out where images and subjects are known, without holding any lock."""
    with transaction(factory, read_only=True) as session:
        accepted = _accepted(session)  # before the images are looked up: whatever is accepted later is noticed

    def holders(part: Part) -> list[str | None]:
        with transaction(factory, read_only=True) as session:
            return _holders(session, part)

    return _known(accepted, *(_with_each(factory, holders, _in_parts(each)) for each in (digests, subjects)))


def settle(
    session: Session,
    dataset: Dataset,
    digests: Fingerprints,
    known: Known | None = None,
    subjects: Fingerprints = frozenset(),
) -> str | None:
    """Decide which account pays for a dataset whose upload is being accepted, or that it may be public.

    One image of another account is enough to join it. Where the dataset joins that account, everything else in it is
    new there. The own account counts as concerned when it has one of the images itself or, where the unit is a subject,
    when it has ever had content: its other records may be of the same people, whom two budgets would then answer for.
    The other account must promise at least as much as the own one: otherwise one image, which the uploader chose, would
    move all others to a laxer account. Who wants that nevertheless declares the dataset there. And
    it must be of the same project: nobody pays with what others have, and the refusal is the same for all reasons.

    Args:
        session: in the writing transaction that makes the dataset ready. Others that do the same wait until it ends.
        dataset: whose fingerprints are recorded.
        digests: of its images.
        known: what `look_up` found; looked up again, under the lock, if an upload was accepted since.
        subjects: the fingerprints of its subjects, where they are recognised. One of another account than that which
            pays is refused, and moves nothing: that account would pay for everybody who is new here.

    Returns:
        The id of the account that pays; None where the dataset is public.

    Raises:
        OverlapRefused: More than one account is concerned, or the other one is of another project, promises less or
            protects another unit.
        KnownAsPrivate: The dataset is public, and an account protects one of its images.
        KnownAsPublic: The dataset is private, and one of its images is public.
        SubjectsKnown: One of its subjects is in another account.
    """
    wait_for_others(session)
    accepted = _accepted(session)
    if known is None or known.accepted != accepted:
        found = [(_holders(session, part) for part in _in_parts(each)) for each in (digests, subjects)]
        known = _known(accepted, *found)
    if dataset.account_id is None:
        if known.accounts:
            raise KnownAsPrivate
        return None
    if known.public:
        raise KnownAsPublic
    concerned = set(known.accounts)
    own = session.get_one(AccountRow, dataset.account_id)
    if concerned - {own.id} and own.unit is Unit.SUBJECT and _has_had_content(session, own.id, besides=dataset.id):
        concerned.add(own.id)
    payer = session.get_one(AccountRow, concerned.pop()) if concerned else own
    if concerned or payer.project_id != own.project_id or not at_least_as_strict(payer, own):
        raise OverlapRefused
    if known.of_subjects - {payer.id}:
        raise SubjectsKnown
    return payer.id


def any_recorded(session: Session) -> bool:
    """Tell whether any image has been fingerprinted yet."""
    return session.scalar(select(exists().where(Fingerprint.dataset_id.is_not(None)))) is True


def wait_for_others(session: Session) -> None:
    """Let one transaction at a time look up and accept. SQLite has one writer at a time anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ACCEPTANCE_LOCK})


def _start(key: bytes, shape: Sequence[int]) -> hmac.HMAC:
    return hmac.new(key, b"obscura image 1 " + "x".join(map(str, shape)).encode() + b"\0", hashlib.sha256)


def _accepted(session: Session) -> int:
    """Count the accepted uploads, and those that were erased. It never decreases, and whatever makes fingerprints
    count, or no longer count, increases it."""
    counted = select(func.count() + func.count(Dataset.erased_at))
    return session.scalar(counted.where(Dataset.ready_at.is_not(None))) or 0


def _with_each(factory: SessionFactory, act: Callable[[Part], Found], parts: Iterable[Part]) -> list[Found]:
    """Act on each part in a transaction of its own, and return what that gives, in their order.

    On PostgreSQL it is the server that is busy, with a process for each connection, and this one waits: so several go
    on at a time. After an error the rest is not begun. On SQLite they take turns, as all writers do.
    """
    if factory.kw["bind"].dialect.name != "postgresql":
        return [act(part) for part in parts]
    with ThreadPoolExecutor(PARTS_AT_A_TIME, thread_name_prefix="obscura-fingerprints") as pool:
        return list(pool.map(act, parts))


def _holders(session: Session, part: Part) -> list[str | None]:
    return list(session.scalars(_HOLDERS[session.get_bind().dialect.name], part))


def _known(
    accepted: int, holders: Iterable[Iterable[str | None]], of_subjects: Iterable[Iterable[str | None]]
) -> Known:
    found = {holder for part in holders for holder in part}
    accounts = frozenset(holder for holder in found if holder is not None)
    known_in = frozenset(holder for part in of_subjects for holder in part if holder is not None)
    return Known(accounts, None in found, accepted, known_in)


def _in_parts(digests: Fingerprints) -> Iterator[Part]:
    """Yield the parameters of one statement after the other, the digests in the order of the index."""
    ordered = sorted(digests)
    for at in range(0, len(ordered), DIGESTS_PER_TRANSACTION):
        part = ordered[at : at + DIGESTS_PER_TRANSACTION]
        yield {"digests": b"".join(part), "bytes": len(part) * DIGEST_BYTES}


def _has_had_content(session: Session, account_id: str, *, besides: str) -> bool:
    others = Dataset.id != besides, Dataset.ready_at.is_not(None), Dataset.erased_at.is_(None)
    return session.scalar(select(exists().where(Dataset.account_id == account_id, *others))) is True
