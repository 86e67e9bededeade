"""Signed proofs of spending: a receipt for each release, and checkpoints of the newest entry of every account.

A receipt contains the whole CAPTURE entry, whose hash covers every earlier entry. Checkpoints are chained, so the log
before a checkpoint cannot be rewritten unnoticed. The newest receipt of each account and the newest checkpoint are also
stored as files outside the database. So they reveal a database that was restored from an older backup.
`scripts/verify_receipt.py` checks a receipt without this package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind
from service.audit import signing
from service.audit.findings import Finding, FindingCode
from service.audit.rows import checkpoint_rows, moment
from service.db.job_tables import Release
from service.db.ledger_tables import Account, Checkpoint, Entry
from service.errors import LedgerCorruption
from service.ledger.chain import GENESIS_HASH, body_hash, canonical_json, entry_body, utc_text
from service.logs import get_logger
from service.storage.interface import Storage
from service.times import to_the_hour

RECEIPT_FORMAT, CHECKPOINT_FORMAT, VERSION = "obscura receipt", "obscura checkpoint", 1
CHECKPOINT_HOURS = 1.0
CHECKPOINT_ENTRIES = 1000
CHECKPOINT_FILE = "checkpoint.json"
TERMS = ("id", "epsilon", "delta", "unit", "adjacency", "rate", "base", "capacity_nano", "spent_nano")
RECEIPT_NAME = re.compile(r"(acc_[a-z2-7]{20})\.json")
_MISSING = (
    "Checkpoint {} is stored beside the database, but is not in the database. Checkpoints were removed, or the "
    "database is older than the signed checkpoint, so later spending could be repeated."
)


@dataclass(frozen=True)
class Witness:
    """A signed log entry, with the account's spending so far, if known. `source` names its document in messages."""

    account_id: str
    sequence: int
    hash: str
    source: str
    spent_nano: int | None = None


def make_receipt(session: Session, capture: Entry, *, release_id: str, key: signing.SigningKey) -> dict[str, Any]:
    """Return a signed statement that an entry paid for a release. Call it in the transaction that captured the hold."""
    account = session.get_one(Account, capture.account_id)
    terms = {name: getattr(account, name) for name in TERMS}
    return key.sign(
        {
            "format": RECEIPT_FORMAT,
            "version": VERSION,
            "release_id": release_id,
            "artifact_sha256": capture.details["artifact_sha256"],
            "account": terms | {"capacity_nano": capture.capacity_nano, "spent_nano": capture.spent_nano},
            "entry": entry_body(capture),
            "entry_hash": capture.hash,
        }
    )


def check_receipt(document: object, trusted: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the statement of a receipt, after checking its type, signature and consistency.

    Raise SignatureRefused if it is malformed or contradictory, or no trusted key (by fingerprint) has signed it.
    """
    statement = signing.check_signed(document, format=RECEIPT_FORMAT, version=VERSION, trusted=trusted)
    try:
        entry, account = statement["entry"], statement["account"]
        sound = (
            body_hash(entry) == statement["entry_hash"]
            and entry["kind"] == EntryKind.CAPTURE.value
            and entry["details"]["artifact_sha256"] == statement["artifact_sha256"]
            and entry["details"]["release"]["id"] == statement["release_id"]
            and entry["account_id"] == account["id"]
            and (entry["capacity_nano"], entry["spent_nano"]) == (account["capacity_nano"], account["spent_nano"])
            and set(account) == set(TERMS)
        )
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise signing.SignatureRefused("The fields of the receipt contradict each other.")
    return statement


def kept_receipts(storage: Storage) -> dict[str, bytes | None]:
    """Return the stored receipts by account; None for an unreadable file. Too large a file is truncated."""
    files = storage.read_all(signing.RECEIPTS, "acc_", bytes_max=signing.DOCUMENT_BYTES_MAX).items()
    return {match[1]: content for name, content in files if (match := RECEIPT_NAME.fullmatch(name))}


def keep_receipt(storage: Storage, receipt: Mapping[str, Any]) -> bool:
    """Store a receipt beside the database unless a newer one is stored; return True if it was written.

    Call it after the commit. After a crash in between, the file is one receipt behind until `keep_newest` runs; that
    is not a finding. A newer file is not overwritten, because it proves that the database is too old.
    """
    name = f"{receipt['statement']['entry']['account_id']}.json"
    if not RECEIPT_NAME.fullmatch(name):
        raise LedgerCorruption("Ledger: a receipt has an invalid account id.")
    # Ordered by spending, which never decreases: after a restore, sequence numbers are reused.
    return signing.keep_newer(storage, name, receipt, lambda kept: int(kept["statement"]["entry"]["spent_nano"]))


def keep_newest(session: Session, storage: Storage) -> int:
    """Store newer receipts of releases beside the database; return the number of files written."""
    kept, written = kept_receipts(storage), 0
    for account_id in session.scalars(select(Release.account_id).distinct()).all():
        latest = select(func.max(Release.created_at)).where(Release.account_id == account_id).scalar_subquery()
        query = select(Release.id, Release.receipt).where(Release.account_id == account_id)
        receipts: dict[int, dict[str, Any]] = {}  # several releases can have the same time
        for row in session.execute(query.where(Release.created_at == latest)):
            try:
                receipts[int(row.receipt["statement"]["entry"]["sequence"])] = row.receipt
            except (KeyError, TypeError, ValueError):  # a full verification reports it
                get_logger(__name__).error("receipt_unreadable", release_id=row.id)
        if receipts and kept.get(account_id) != signing.bytes_of(receipts[max(receipts)]):
            written += keep_receipt(storage, receipts[max(receipts)])
    return written


@dataclass(frozen=True)
class Signed:
    """A checkpoint with a valid signature; `heads` is [sequence, hash, spent_nano] of the newest entry, by account."""

    sequence: int
    hash: str
    heads: dict[str, Any]

    def witnesses(self, source: str) -> Iterator[Witness]:
        """Yield the entries that the checkpoint proves."""
        for account_id, (sequence, digest, spent_nano) in self.heads.items():
            yield Witness(account_id, int(sequence), str(digest), f"{source} {self.sequence}", int(spent_nano))


def newest_checkpoint(session: Session) -> Checkpoint | None:
    """Return the newest checkpoint without checking it."""
    return session.scalar(select(Checkpoint).order_by(Checkpoint.sequence.desc()).limit(1))


def checkpoint_due(session: Session, *, now: datetime) -> bool:
    """Return whether there are CHECKPOINT_ENTRIES new entries, or a new entry CHECKPOINT_HOURS after the last one."""
    try:
        newest = newest_checkpoint(session)
    except ValueError:  # unreadable, which verification reports
        return True
    accounts, entries = session.execute(select(func.count(Account.id), func.sum(Account.head_sequence))).one()
    if newest is None:
        return bool(accounts)
    moved = int(entries or 0) - sum(int(head[0]) for head in newest.heads.values())
    return moved != 0 and (moved >= CHECKPOINT_ENTRIES or now - newest.created_at >= timedelta(hours=CHECKPOINT_HOURS))


def write_checkpoint(
    session: Session, *, heads: Mapping[str, Any], key: signing.SigningKey, now: datetime
) -> Checkpoint:
    """Sign and store verified heads: a map from account id to [sequence, hash, spent_nano] of the newest entry.

    Raise IntegrityError if another process has written this checkpoint.
    """
    newest = newest_checkpoint(session)
    sequence, previous_hash = (newest.sequence + 1, newest.hash) if newest else (1, GENESIS_HASH)
    # Rounded to the hour, like entries: an exact time would reveal a training's progress.
    signed_at = to_the_hour(now) if newest is None else max(to_the_hour(now), newest.created_at)
    checkpoint = Checkpoint(sequence=sequence, heads=dict(heads), previous_hash=previous_hash, created_at=signed_at)
    checkpoint.key_id = key.key_id
    signed = key.sign(_statement(checkpoint, checkpoint.heads, utc_text(signed_at)))
    checkpoint.hash, checkpoint.signature = body_hash(signed["statement"]), signed["signature"]
    session.add(checkpoint)
    session.flush()
    return checkpoint


def keep_checkpoint(storage: Storage, checkpoint: Checkpoint, trusted: Mapping[str, bytes]) -> bool:
    """Store a committed checkpoint beside the database, if its key is trusted and it is newer than the stored one."""
    public = trusted.get(checkpoint.key_id)
    if public is None:
        return False
    statement = _statement(checkpoint, checkpoint.heads, utc_text(checkpoint.created_at))
    document = {"statement": statement, "public_key": public.hex(), "signature": checkpoint.signature}
    # Ordered by time first: after a restore, numbers are reused.
    ages = itemgetter("created_at", "sequence")
    return signing.keep_newer(storage, CHECKPOINT_FILE, document, lambda kept: ages(kept["statement"]))


@dataclass
class Proofs:
    """Signed statements from outside the database."""

    witnesses: list[Witness] = field(default_factory=list)  # the entries that receipts prove
    kept: Signed | None = None  # the checkpoint beside the database
    terms: dict[str, Any] = field(default_factory=dict)  # terms of accounts, from their newest receipts
    findings: list[Finding] = field(default_factory=list)  # rejected receipts and checkpoints


def read_proofs(storage: Storage, trusted: Mapping[str, bytes], given: Sequence[Path] = ()) -> Proofs:
    """Read the stored receipts and checkpoint, and the receipts in `given`. Call it before the database's snapshot."""
    proofs = Proofs()
    receipts = [(f"{of}.json", of, partial(signing.document_in, held)) for of, held in kept_receipts(storage).items()]
    others = [(path.name, None, partial(signing.read_document, path)) for path in given]
    for name, account_id, read in (*receipts, *others):
        try:
            statement = check_receipt(read(), trusted)
        except signing.SignatureRefused as error:
            message = f"The receipt {name} is refused. {error.message}"
            stops = account_id is not None
            proofs.findings.append(Finding(FindingCode.RECEIPT_REFUSED, message, account_id, stops=stops))
            continue
        entry = statement["entry"]
        place = str(entry["account_id"]), int(entry["sequence"]), str(statement["entry_hash"])
        proofs.witnesses.append(Witness(*place, f"the receipt {name}", int(entry["spent_nano"])))
        proofs.terms[statement["account"]["id"]] = statement["account"]
    try:
        if storage.holds(f"{signing.RECEIPTS}/{CHECKPOINT_FILE}"):
            document = signing.read_document(storage.open(signing.RECEIPTS, CHECKPOINT_FILE))
            statement = signing.check_signed(document, format=CHECKPOINT_FORMAT, version=VERSION, trusted=trusted)
            proofs.kept = Signed(int(statement["sequence"]), body_hash(statement), dict(statement["heads"]))
    except signing.SignatureRefused as error:
        message = f"The checkpoint that is stored beside the database is refused. {error.message}"
        proofs.findings.append(Finding(FindingCode.CHECKPOINT_FILE_REFUSED, message))
    return proofs


def check_checkpoints(
    session: Session, trusted: Mapping[str, bytes], kept: Signed | None = None, *, newest_alone: bool = False
) -> tuple[list[Witness], list[Finding], Signed | None]:
    """Check the hashes, links and signatures of the checkpoints.

    Return the entries that valid checkpoints prove, each once; the findings; and the newest valid checkpoint.

    Args:
        kept: the checkpoint stored beside the database, which the database must also contain.
        newest_alone: check only the newest checkpoint, without its link to older checkpoints.
    """
    witnesses: dict[tuple[str, int, str], Witness] = {}
    findings: list[Finding] = []
    last, missing = Signed(0, GENESIS_HASH, {}), kept
    if newest_alone:
        last = Signed((session.scalar(select(func.max(Checkpoint.sequence))) or 1) - 1, "", {})
        missing = kept if kept is not None and kept.sequence > last.sequence else None
    first = last
    for row in checkpoint_rows(session, last.sequence):
        try:
            last = _check_checkpoint(row, last, trusted)
        except signing.SignatureRefused as why:
            message = f"Checkpoint {last.sequence + 1} {why.message}."
            findings = [Finding(FindingCode.CHECKPOINT_BROKEN, message)]
            break
        for witness in last.witnesses("checkpoint"):
            witnesses.setdefault((witness.account_id, witness.sequence, witness.hash), witness)
        if missing is not None and (missing.sequence, missing.hash) == (last.sequence, last.hash):
            missing = None
    if missing is not None and not findings:
        findings = [Finding(FindingCode.CHECKPOINT_MISSING, _MISSING.format(missing.sequence))]
    return list(witnesses.values()), findings, None if last is first else last


def _statement(row: Checkpoint | Row[Any], heads: Mapping[str, Any], created_at: str | None) -> dict[str, Any]:
    copied = {name: getattr(row, name) for name in ("sequence", "previous_hash", "key_id")}
    return copied | {"format": CHECKPOINT_FORMAT, "version": VERSION, "heads": dict(heads), "created_at": created_at}


def _check_checkpoint(row: Row[Any], before: Signed, trusted: Mapping[str, bytes]) -> Signed:
    if row.sequence != before.sequence + 1:
        raise signing.SignatureRefused("is missing")
    public = trusted.get(row.key_id)
    if public is None:
        raise signing.SignatureRefused("is signed by a key that this service does not trust")
    try:
        heads = json.loads(row.heads)
        canonical = canonical_json(heads).decode("ascii") == row.heads
        statement = _statement(row, heads, moment(row.created_at))
        digest = body_hash(statement)
    except (TypeError, ValueError, AttributeError, RecursionError):
        raise signing.SignatureRefused("is malformed") from None
    if not canonical or digest != row.hash:
        raise signing.SignatureRefused("does not match its hash")
    try:
        document = {"statement": statement, "public_key": public.hex(), "signature": row.signature}
        signing.check_signed(document, format=CHECKPOINT_FORMAT, version=VERSION, trusted=trusted)
    except signing.SignatureRefused:
        raise signing.SignatureRefused("has no valid signature by the key that it names") from None
    if row.previous_hash != before.hash and before.hash:
        raise signing.SignatureRefused("does not contain the hash of the checkpoint before it")
    return Signed(row.sequence, digest, heads)
