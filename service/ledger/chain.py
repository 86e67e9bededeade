"""The hash chain of an account's entries: canonical JSON, SHA-256, pure functions over plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

CHAIN_VERSION = 1
GENESIS_HASH = "0" * 64
_ENCODE = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


def canonical_json(value: object) -> bytes:
    """Return the one spelling of a JSON value: sorted keys, no spaces, ASCII, no NaN.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value is not JSON.
    """
    return _ENCODE(value).encode("ascii")


def body_hash(value: object) -> str:
    """Return the SHA-256, as hex, of a JSON value's canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def entry_hash(
    *,
    account_id: str,
    sequence: int,
    kind: str,
    hold_id: str | None,
    job_id: str | None,
    amount_nano: int,
    capacity_nano: int,
    spent_nano: int,
    held_nano: int,
    details: Mapping[str, Any],
    previous_hash: str,
    created_at: datetime,
) -> str:
    """Return the hash of one entry, which covers all its fields and the hash of the entry before it.

    Args:
        account_id: whose log it is.
        sequence: 1 for the first entry, then without a gap.
        kind: the entry kind, by value.
        hold_id: of the hold concerned, if any.
        job_id: of the job concerned, if any.
        amount_nano: of this entry.
        capacity_nano: the account's capacity after this entry.
        spent_nano: the account's spent amount after this entry.
        held_nano: the account's held amount after this entry.
        details: further JSON facts.
        previous_hash: of the entry before, GENESIS_HASH for the first.
        created_at: aware; hashed as UTC with microseconds.
    """
    return body_hash(
        entry_body(
            account_id=account_id,
            sequence=sequence,
            kind=kind,
            hold_id=hold_id,
            job_id=job_id,
            amount_nano=amount_nano,
            capacity_nano=capacity_nano,
            spent_nano=spent_nano,
            held_nano=held_nano,
            details=details,
            previous_hash=previous_hash,
            created_at=created_at,
        )
    )


def entry_body(*, created_at: datetime, details: Mapping[str, Any], **fields: str | int | None) -> dict[str, Any]:
    """Return the JSON object that an entry's hash is taken of: every field but the hash, and the chain's version."""
    return {
        "version": CHAIN_VERSION,
        **fields,
        "details": dict(details),
        "created_at": created_at.astimezone(UTC).isoformat(timespec="microseconds"),
    }
