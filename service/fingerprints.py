"""Which account an image was first counted in, so that the same images cannot be given a second budget.

A fingerprint is the first 16 bytes of the HMAC-SHA256 of an image's shape and decoded pixels, under a secret of this
installation. Fingerprints outlive their dataset and never leave the database. What they find is equality of decoded
pixels, whatever the file format, the label or the order was; an image in which one pixel differs is another image.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from sqlalchemy import LargeBinary, bindparam, exists, select, text
from sqlalchemy.orm import Session

from service.db.tables import Account, Dataset, Fingerprint, Unit
from service.errors import InvalidInput

DIGEST_BYTES = 16
Fingerprints = frozenset[bytes]
_DIGESTS_PER_STATEMENT = 2**16

# Digests travel as one value and are cut apart in the database: one parameter for each would take a minute a million.
_CUT = f"""WITH RECURSIVE positions(at) AS (
    SELECT 1 UNION ALL SELECT at + {DIGEST_BYTES} FROM positions WHERE at + {DIGEST_BYTES} <= :bytes
)"""
_HOLDERS = text(
    f"""{_CUT} SELECT DISTINCT account_id
    FROM positions JOIN fingerprints ON digest = substr(:digests, at, {DIGEST_BYTES})"""
).bindparams(bindparam("digests", type_=LargeBinary))
_REMEMBER = text(
    f"""INSERT INTO fingerprints (digest, account_id) {_CUT}
    SELECT substr(:digests, at, {DIGEST_BYTES}), :account_id FROM positions WHERE true ON CONFLICT DO NOTHING"""
).bindparams(bindparam("digests", type_=LargeBinary))


class OverlapRefused(InvalidInput):
    """The images are known, and no one account could pay for them. One reason, whatever was found."""

    code: ClassVar[str] = "upload_refused"

    def __init__(self) -> None:
        super().__init__(
            "Images of this upload are in other datasets already, and there is no single account that could pay for "
            "all of them. Upload them apart from the rest, or into the account in which they were first; otherwise "
            "ask the operator. Nothing was stored.",
            fault="overlap",
        )


def fingerprint(batches: Iterable[np.ndarray[Any, np.dtype[np.uint8]]], key: bytes) -> Fingerprints:
    """Return the fingerprints of images. PRIVATE.

    An image of one colour throughout has none: it shows nobody, and blank pages would join strangers. A colour image
    whose channels are all equal has the fingerprint of its gray version.

    Args:
        batches: uint8 (n, height, width) or (n, height, width, 3).
        key: the secret of this installation, 32 bytes.
    """
    found: set[bytes] = set()
    for batch in batches:
        gray = batch if batch.ndim == 3 else batch[..., 0]
        as_gray = (batch == gray[..., None]).all(axis=(1, 2, 3)) if batch.ndim == 4 else np.ones(len(batch), bool)
        blank = (batch == batch[:, :1, :1]).all(axis=tuple(range(1, batch.ndim)))
        starts = {channels: _start(key, (*batch.shape[1:3], channels)) for channels in (1, 3)}
        for index in np.flatnonzero(~blank):
            digest = starts[1 if as_gray[index] else 3].copy()
            digest.update((gray[index] if as_gray[index] else batch[index]).tobytes())
            found.add(digest.digest()[:DIGEST_BYTES])
    return frozenset(found)


def settle(session: Session, dataset: Dataset, digests: Fingerprints) -> str:
    """Decide which account pays for a private dataset from now on, and remember its images there.

    One image of another account is enough. Where the dataset joins that account, everything else in it is new there.
    The own account counts as concerned when it has one of the images itself or, where the unit is a subject, when it
    has ever had content: its other records may be of the same people, whom two budgets would then answer for.

    Args:
        session: in the writing transaction that makes the dataset ready. Others that do the same wait until it ends.
        dataset: private.
        digests: of its images.

    Returns:
        The id of the account.

    Raises:
        OverlapRefused: More than one account is concerned, or the other one protects another unit.
    """
    assert dataset.account_id is not None
    _wait_for_others(session)
    parts = _in_parts(digests)
    concerned = {holder for part in parts for holder in session.scalars(_HOLDERS, part)}
    own = session.get_one(Account, dataset.account_id)
    if concerned - {own.id} and own.unit is Unit.SUBJECT and _has_had_content(session, own.id, besides=dataset.id):
        concerned.add(own.id)
    payer = session.get_one(Account, concerned.pop()) if concerned else own
    if concerned or (payer.unit, payer.adjacency) != (own.unit, own.adjacency):
        raise OverlapRefused
    for part in parts:
        session.execute(_REMEMBER, {**part, "account_id": payer.id})
    return payer.id


def known(session: Session) -> bool:
    """Tell whether any image has been fingerprinted yet."""
    return session.scalar(select(exists().where(Fingerprint.account_id.is_not(None)))) is True


def _start(key: bytes, shape: Sequence[int]) -> hmac.HMAC:
    return hmac.new(key, b"obscura image 1 " + "x".join(map(str, shape)).encode() + b"\0", hashlib.sha256)


def _wait_for_others(session: Session) -> None:
    """Let one transaction at a time look up and insert. SQLite has one writer at a time anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("LOCK TABLE fingerprints IN SHARE ROW EXCLUSIVE MODE"))


def _in_parts(digests: Fingerprints) -> list[dict[str, Any]]:
    """Return the parameters of one statement after the other, the digests in the order of the index."""
    ordered = sorted(digests)
    parts = [ordered[at : at + _DIGESTS_PER_STATEMENT] for at in range(0, len(ordered), _DIGESTS_PER_STATEMENT)]
    return [{"digests": b"".join(part), "bytes": len(part) * DIGEST_BYTES} for part in parts]


def _has_had_content(session: Session, account_id: str, *, besides: str) -> bool:
    others = (Dataset.account_id == account_id) & (Dataset.id != besides) & Dataset.ready_at.is_not(None)
    return session.scalar(select(exists().where(others))) is True
