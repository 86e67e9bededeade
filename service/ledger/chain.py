"""The hash chain of an account's log: an entry, what its hash is taken of, and the one spelling of JSON. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from obscura.wire.words import EntryKind
from service.db.base import canonical_text

CHAIN_VERSION = 1
GENESIS_HASH = "0" * 64  # what the first entry of a log links to


def canonical_json(value: object) -> bytes:
    """Return the one spelling of a JSON value: sorted keys, no spaces, ASCII, no NaN.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value is not JSON.
    """
    return canonical_text(value).encode("ascii")


def body_hash(value: object) -> str:
    """Return the SHA-256, as hex, of a JSON value's canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def utc_text(at: datetime) -> str:
    """Return an aware time as it is hashed: UTC with microseconds."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True, slots=True)
class Entry:
    """An immutable entry of an account's log, as it is stored, hashed, signed in receipts and shown.

    Attributes:
        sequence: 1 for the first entry of an account, then without a gap.
        hold_id: of the hold concerned, if any.
        job_id: of the job concerned, if any.
        amount_nano: of this entry.
        capacity_nano: the account's capacity after this entry, as are `spent_nano` and `held_nano`.
        details: further public JSON facts.
        previous_hash: of the entry before; GENESIS_HASH for the first.
        created_at: aware; hashed as UTC with microseconds.
        hash: as stored; empty until `hashed`.
    """

    account_id: str
    sequence: int
    kind: EntryKind
    hold_id: str | None
    job_id: str | None
    amount_nano: int
    capacity_nano: int
    spent_nano: int
    held_nano: int
    details: dict[str, Any]
    previous_hash: str
    created_at: datetime
    hash: str = ""

    def body(self) -> dict[str, Any]:
        """Return the JSON object that the hash is taken of: every field but the hash, and the chain's version."""
        body = {name: getattr(self, name) for name in _HASHED}
        return {"version": CHAIN_VERSION, **body, "kind": self.kind.value, "created_at": utc_text(self.created_at)}

    def hashed(self) -> Entry:
        """Return the entry with the hash that its contents demand."""
        return replace(self, hash=body_hash(self.body()))

    def is_intact(self) -> bool:
        """Tell whether the stored hash is the one that the contents demand."""
        return self.hash == body_hash(self.body())


_HASHED = tuple(field.name for field in fields(Entry) if field.name != "hash")
