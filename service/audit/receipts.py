"""Receipts: signed statements that a release was paid for, kept by whoever holds the release.

A receipt holds the whole CAPTURE entry, so its hash can be recomputed, and the hash covers every entry before it. The
newest receipt of each account is also kept as a file beside the database: a database that was restored from an older
backup contradicts it. `scripts/verify_receipt.py` checks a receipt without this package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind
from service.audit.signing import (
    DOCUMENT_BYTES_MAX,
    RECEIPTS,
    SignatureRefused,
    SigningKey,
    bytes_of,
    check_signed,
    keep_newer,
)
from service.db.job_tables import Release
from service.db.ledger_tables import AccountRow, Entry
from service.errors import LedgerCorruption
from service.ledger.chain import body_hash, entry_body
from service.logs import get_logger
from service.storage.interface import Storage

FORMAT = "obscura receipt"
VERSION = 1
_ACCOUNT_ID = re.compile(r"acc_[a-z2-7]{20}")
_SUFFIX = ".json"
_TERMS_BEFORE = {"filter", "filter_order"}  # of receipts from before accounts had a rate
TERMS = ("id", "epsilon", "delta", "unit", "adjacency", "rate", "base", "capacity_nano", "spent_nano")


@dataclass(frozen=True)
class Witness:
    """What somebody outside the log knows about it: that this entry stood there with this hash.

    Attributes:
        spent_nano: what was spent by then; None where only the hash is known.
    """

    account_id: str
    sequence: int
    hash: str
    source: str
    spent_nano: int | None = None


def make_receipt(session: Session, capture: Entry, *, release_id: str, key: SigningKey) -> dict[str, Any]:
    """Sign that a release was paid for. Call it in the transaction that has just captured the hold.

    Args:
        session: in the capturing transaction, which holds the account's lock.
        capture: the entry that paid, checked.
        key: the ledger's.
    """
    account = session.get_one(AccountRow, capture.account_id)
    terms = {name: getattr(account, name) for name in TERMS}
    return key.sign(
        {
            "format": FORMAT,
            "version": VERSION,
            "release_id": release_id,
            "artifact_sha256": capture.details["artifact_sha256"],
            "account": terms | {"capacity_nano": capture.capacity_nano, "spent_nano": capture.spent_nano},
            "entry": entry_body(capture),
            "entry_hash": capture.hash,
        }
    )


def check_receipt(document: object, trusted: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the statement of a receipt whose signature was checked and whose parts agree.

    Args:
        document: what was read, of any type.
        trusted: public keys by fingerprint.

    Raises:
        SignatureRefused: it is malformed, contradicts itself, or no trusted key has signed it.
    """
    statement = check_signed(document, format=FORMAT, version=VERSION, trusted=trusted)
    try:
        entry, account = statement["entry"], statement["account"]
        sound = (
            body_hash(entry) == statement["entry_hash"]
            and entry["kind"] == EntryKind.CAPTURE.value
            and entry["details"]["artifact_sha256"] == statement["artifact_sha256"]
            and entry["details"].get("release", {"id": statement["release_id"]})["id"] == statement["release_id"]
            and entry["account_id"] == account["id"]
            and (entry["capacity_nano"], entry["spent_nano"]) == (account["capacity_nano"], account["spent_nano"])
            and set(account) in (set(TERMS), set(TERMS) - {"rate", "base"} | _TERMS_BEFORE)
        )
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise SignatureRefused("Its parts contradict each other.")
    return statement


def witness_of(statement: Mapping[str, Any], source: str) -> Witness:
    """Return what a checked receipt says about the log of its account."""
    entry = statement["entry"]
    spent_nano = int(entry["spent_nano"])
    return Witness(str(entry["account_id"]), int(entry["sequence"]), str(statement["entry_hash"]), source, spent_nano)


def accounts_with_receipts(storage: Storage) -> list[str]:
    """Return the accounts whose newest receipt is kept beside the database."""
    return [account_id for name in storage.list(RECEIPTS) if (account_id := _account_of(name))]


def kept_receipts(storage: Storage) -> dict[str, bytes | None]:
    """Return what the files of these receipts hold, by account; None where it cannot be read.

    Of one that is longer than a signed document may be, so much is read that it is refused.
    """
    files = storage.read_all(RECEIPTS, "acc_", bytes_max=DOCUMENT_BYTES_MAX).items()
    return {account_id: content for name, content in files if (account_id := _account_of(name))}


def _account_of(name: str) -> str | None:
    """Return whose newest receipt a file of this name is; None for any other file."""
    stem = name.removesuffix(_SUFFIX)
    return stem if stem != name and _ACCOUNT_ID.fullmatch(stem) else None


def keep_receipt(storage: Storage, receipt: Mapping[str, Any]) -> bool:
    """Keep a receipt beside the database if it is newer than the one that is there. Call it after the commit.

    A process that dies between its commit and this leaves the file one receipt behind until `keep_newest` runs: what
    is detected is weaker by that receipt, and nothing is ever raised wrongly. A file that is newer than what it is
    given is left alone: it is the evidence that the database is too old.

    Returns:
        Whether the file was written.
    """
    entry = receipt["statement"]["entry"]
    if not _ACCOUNT_ID.fullmatch(entry["account_id"]):
        raise LedgerCorruption("Ledger: a receipt names no account of ours.")
    name = f"{entry['account_id']}{_SUFFIX}"
    # By spending, which never falls: after a restore sequences are given again.
    return keep_newer(storage, name, receipt, lambda kept: int(kept["statement"]["entry"]["spent_nano"]))


def keep_newest(session: Session, storage: Storage) -> int:
    """Bring the kept receipts up to the releases in the database; returns how many files were written."""
    kept = kept_receipts(storage)
    return sum(
        keep_receipt(storage, receipt)
        for receipt in _newest(session)
        if kept.get(receipt["statement"]["entry"]["account_id"]) != bytes_of(receipt)
    )


def _newest(session: Session) -> Iterable[dict[str, Any]]:
    """The receipt of the newest release of each account. One that was damaged is left to a full verification."""
    for account_id in session.scalars(select(Release.account_id).distinct()).all():
        latest = select(func.max(Release.created_at)).where(Release.account_id == account_id).scalar_subquery()
        query = select(Release.id, Release.receipt).where(Release.account_id == account_id)
        read: dict[int, dict[str, Any]] = {}  # several may be of one minute
        for row in session.execute(query.where(Release.created_at == latest)):
            _read_into(read, row.receipt, row.id)
        if read:
            yield read[max(read)]


def _read_into(read: dict[int, dict[str, Any]], receipt: Any, release_id: str) -> None:
    try:
        read[int(receipt["statement"]["entry"]["sequence"])] = receipt
    except (KeyError, TypeError, ValueError):
        get_logger(__name__).error("receipt_unreadable", release_id=release_id)
