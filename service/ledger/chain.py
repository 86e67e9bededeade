"""The hash chain of an account's log: canonical JSON, and what the hash of an entry covers. Pure."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from service.db.base import canonical_text
from service.db.ledger_tables import Entry

CHAIN_VERSION = 1
GENESIS_HASH = "0" * 64  # the `previous_hash` of the first entry
_HASHED = (
    *("account_id", "sequence", "hold_id", "job_id", "amount_nano", "capacity_nano", "spent_nano", "held_nano"),
    *("details", "previous_hash"),
)


def canonical_json(value: object) -> bytes:
    """Serialize a JSON value canonically: sorted keys, no spaces, ASCII, no NaN.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value is not JSON.
    """
    return canonical_text(value).encode("ascii")


def body_hash(value: object) -> str:
    """Return the SHA-256, as hex, of a JSON value's canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def utc_text(at: datetime) -> str:
    """Format an aware time as it is hashed: UTC with microseconds."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def entry_body(entry: Entry) -> dict[str, Any]:
    """Return the JSON object that an entry's hash covers: every column except the hash, and the chain's version."""
    body = {name: getattr(entry, name) for name in _HASHED}
    return body | {"version": CHAIN_VERSION, "kind": entry.kind.value, "created_at": utc_text(entry.created_at)}


def entry_hash(entry: Entry) -> str:
    """Return the hash that an entry's contents require."""
    return body_hash(entry_body(entry))
