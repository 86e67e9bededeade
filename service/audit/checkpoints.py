"""Signed checkpoints: the heads of all accounts at one moment, chained, so that no log can be rewritten before them.

The newest checkpoint is also kept as a file beside the database: a database that was restored from an older backup
does not contain what the file says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from service.audit.findings import Finding, FindingCode
from service.audit.receipts import Witness
from service.audit.rows import checkpoints_after, moment
from service.audit.signing import RECEIPTS, SignatureRefused, SigningKey, check_signed, keep_newer, read_document
from service.db.ledger_tables import AccountRow, Checkpoint
from service.ledger.chain import GENESIS_HASH, body_hash, canonical_json, utc_text
from service.storage.interface import Storage
from service.times import to_the_hour

FORMAT = "obscura checkpoint"
VERSION = 1
CHECKPOINT_HOURS = 1.0
CHECKPOINT_ENTRIES = 1000
CHECKPOINT_FILE = "checkpoint.json"
_MISSING = (
    "Checkpoint {}, which is kept beside the database, is not in it. Checkpoints were removed, or the database is "
    "older than what was signed, and what was spent since would be spent again."
)


@dataclass(frozen=True)
class Signed:
    """A checkpoint whose signature was checked. `heads` maps an account's id to [sequence, hash of that entry,
    spent by then]."""

    sequence: int
    hash: str
    heads: dict[str, Any]

    def witnesses(self, source: str) -> Iterator[Witness]:
        """Yield what it says about the logs."""
        for account_id, (sequence, digest, spent_nano) in self.heads.items():
            yield Witness(account_id, int(sequence), str(digest), f"{source} {self.sequence}", int(spent_nano))


def newest_checkpoint(session: Session) -> Checkpoint | None:
    """Return the newest checkpoint, unchecked."""
    return session.scalar(select(Checkpoint).order_by(Checkpoint.sequence.desc()).limit(1))


def checkpoint_due(session: Session, *, now: datetime) -> bool:
    """Tell whether a checkpoint should be written: heads have moved, and the hour has ended or many entries came."""
    try:
        newest = newest_checkpoint(session)
    except ValueError:  # it cannot be read: verification says so
        return True
    accounts, entries = session.execute(select(func.count(AccountRow.id), func.sum(AccountRow.head_sequence))).one()
    if newest is None:
        return bool(accounts)
    moved = int(entries or 0) - sum(int(head[0]) for head in newest.heads.values())
    return moved != 0 and (moved >= CHECKPOINT_ENTRIES or now - newest.created_at >= timedelta(hours=CHECKPOINT_HOURS))


def write_checkpoint(session: Session, *, heads: Mapping[str, Any], key: SigningKey, now: datetime) -> Checkpoint:
    """Sign heads that were just verified. Two writers at once meet in the table's key: one of them fails to commit.

    Args:
        heads: by account, [sequence, hash, spent_nano] at the newest entry that was verified.
        key: the ledger's.

    Raises:
        sqlalchemy.exc.IntegrityError: another process has written this checkpoint.
    """
    newest = newest_checkpoint(session)
    sequence, previous_hash = (newest.sequence + 1, newest.hash) if newest else (1, GENESIS_HASH)
    # To the hour, as entries are: an exact time would say how far a training had come by then.
    signed_at = to_the_hour(now) if newest is None else max(to_the_hour(now), newest.created_at)
    signed = key.sign(_statement(sequence, heads, previous_hash, utc_text(signed_at)))
    checkpoint = Checkpoint(
        sequence=sequence,
        heads=dict(heads),
        previous_hash=previous_hash,
        hash=body_hash(signed["statement"]),
        key_id=key.key_id,
        signature=signed["signature"],
        created_at=signed_at,
    )
    session.add(checkpoint)
    session.flush()
    return checkpoint


def keep_checkpoint(storage: Storage, checkpoint: Checkpoint, trusted: Mapping[str, bytes]) -> bool:
    """Keep a committed checkpoint beside the database if it is newer than the one that is there.

    Returns:
        Whether the file was written.
    """
    document = document_of(checkpoint, trusted)
    if document is None:
        return False
    return keep_newer(storage, CHECKPOINT_FILE, document, _age)


def _age(document: Mapping[str, Any]) -> tuple[str, int]:
    """Order signed checkpoints: after a restore numbers are given again, but times go on."""
    return str(document["statement"]["created_at"]), int(document["statement"]["sequence"])


def document_of(checkpoint: Checkpoint, trusted: Mapping[str, bytes]) -> dict[str, Any] | None:
    """Return a committed checkpoint as it is kept outside of the database; None where its key is not trusted here."""
    public = trusted.get(checkpoint.key_id)
    if public is None:
        return None
    created_at = utc_text(checkpoint.created_at)
    statement = _statement(checkpoint.sequence, checkpoint.heads, checkpoint.previous_hash, created_at)
    return _document(statement | {"key_id": checkpoint.key_id}, public, checkpoint.signature)


def check_checkpoints(
    session: Session, trusted: Mapping[str, bytes], kept: Signed | None = None, *, newest_alone: bool = False
) -> tuple[list[Witness], list[Finding], Signed | None]:
    """Check the hashes, links and signatures of the checkpoints.

    Args:
        trusted: public keys by fingerprint.
        kept: the checkpoint that is kept beside the database, which must be among them.
        newest_alone: leave out those before the newest, and its link to them.

    Returns:
        What sound checkpoints say about the logs (each head once), what is wrong, and the newest sound checkpoint.
    """
    witnesses: dict[tuple[str, int, str], Witness] = {}
    findings: list[Finding] = []
    last, missing = Signed(0, GENESIS_HASH, {}), kept
    if newest_alone:
        last = Signed((session.scalar(select(func.max(Checkpoint.sequence))) or 1) - 1, "", {})
        missing = kept if kept is not None and kept.sequence > last.sequence else None
    first = last
    while not findings and (rows := checkpoints_after(session, last.sequence)):
        for row in rows:
            try:
                last = _check(row, last, trusted)
            except SignatureRefused as why:
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


def read_checkpoint_file(storage: Storage, trusted: Mapping[str, bytes]) -> Signed | None:
    """Return the checkpoint that is kept beside the database; None when no such file exists.

    Raises:
        SignatureRefused: it cannot be read, or no trusted key has signed it.
    """
    if not storage.holds(f"{RECEIPTS}/{CHECKPOINT_FILE}"):
        return None
    return signed_checkpoint(read_document(storage.open(RECEIPTS, CHECKPOINT_FILE)), trusted)


def signed_checkpoint(document: object, trusted: Mapping[str, bytes]) -> Signed:
    """Return a checkpoint that is kept outside of the database.

    Raises:
        SignatureRefused: it is not one, or no trusted key has signed it.
    """
    statement = check_signed(document, format=FORMAT, version=VERSION, trusted=trusted)
    return Signed(int(statement["sequence"]), body_hash(statement), dict(statement["heads"]))


def _statement(sequence: int, heads: Mapping[str, Any], previous_hash: str, created_at: str | None) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "sequence": sequence,
        "heads": dict(heads),
        "previous_hash": previous_hash,
        "created_at": created_at,
    }


def _document(statement: Mapping[str, Any], public: bytes, signature: str) -> dict[str, Any]:
    return {"statement": dict(statement), "public_key": public.hex(), "signature": signature}


def _check(row: Row[Any], before: Signed, trusted: Mapping[str, bytes]) -> Signed:
    """Return a sound checkpoint as it was signed.

    Raises:
        SignatureRefused: it is not sound.
    """
    if row.sequence != before.sequence + 1:
        raise SignatureRefused("is missing")
    public = trusted.get(row.key_id)
    if public is None:
        raise SignatureRefused("is signed by a key that is not trusted here")
    try:
        heads = json.loads(row.heads)
        canonical = canonical_json(heads).decode("ascii") == row.heads
        statement = _statement(row.sequence, heads, row.previous_hash, moment(row.created_at)) | {"key_id": row.key_id}
        digest = body_hash(statement)
    except (TypeError, ValueError, AttributeError, RecursionError):
        raise SignatureRefused("cannot be understood") from None
    if not canonical or digest != row.hash:
        raise SignatureRefused("does not match its hash")
    try:
        check_signed(_document(statement, public, row.signature), format=FORMAT, version=VERSION, trusted=trusted)
    except SignatureRefused:
        raise SignatureRefused("does not carry the signature of its key") from None
    if row.previous_hash != before.hash and before.hash:
        raise SignatureRefused("does not link to the one before it")
    return Signed(row.sequence, digest, heads)
