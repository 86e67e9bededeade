"""Define the hashes of log entries, and of the rows in other tables that entries commit to. Pure functions.

An entry's details are hashed. So if they contain the digest of a row, a later change of that row contradicts the log.
Digests omit empty columns, so adding an empty column to a table changes no digest.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from privacy.plans.options import PUBLIC_DATASET_OPTIONS
from service.db.base import Base, canonical_text
from service.db.ledger_tables import Entry

CHAIN_VERSION = 1
GENESIS_HASH = "0" * 64  # the `previous_hash` of the first entry
_HASHED = (
    *("account_id", "sequence", "hold_id", "job_id", "amount_nano", "capacity_nano", "spent_nano", "reserved_nano"),
    *("details", "previous_hash"),
)
# Columns of a training that never change after acceptance. The hold and its entries record its progress.
ORDER_COLUMNS = (
    *("id", "kind", "account_id", "dataset_id", "evaluation_dataset_id", "recipe", "epsilon", "options", "plan"),
    *("sweep_id", "created_at"),
)
# Columns by table that change later, so no entry commits to them. A receipt is signed later and contains its entry.
CHANGING_COLUMNS: Mapping[str, frozenset[str]] = {
    # A withdrawal changes the stored content of a dataset; the log keeps the digest of the content that was uploaded.
    # The log records no project, not even an account's.
    "datasets": frozenset(
        {"state", "failure_code", "upload_lease_until", "erased_at", "project_id", "content_name", "content_key_id"}
    ),
    "releases": frozenset({"receipt"}),
    "sweeps": frozenset(),
}
_ORDER_LABEL = b"obscura order 1\0"


def canonical_json(value: object) -> bytes:
    """Serialize a JSON value canonically: sorted keys, no spaces, ASCII. Raise ValueError for NaN."""
    return canonical_text(value).encode("ascii")


def body_hash(value: object) -> str:
    """Return the SHA-256, as hex, of a JSON value's canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def utc_text(at: datetime) -> str:
    """Format a timezone-aware time for hashing: UTC with microseconds."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def entry_body(entry: Entry) -> dict[str, Any]:
    """Return the JSON object that an entry's hash covers: the chain's version, and every column except the hash."""
    body = {name: getattr(entry, name) for name in _HASHED}
    return body | {"version": CHAIN_VERSION, "kind": entry.kind.value, "created_at": utc_text(entry.created_at)}


def entry_hash(entry: Entry) -> str:
    return body_hash(entry_body(entry))


def columns_of(row: Base) -> dict[str, Any]:
    """Return the columns of a loaded row by name, without a job's secret and without columns that change later."""
    left_out = CHANGING_COLUMNS.get(row.__tablename__, frozenset({"secret"}))
    return {column.name: getattr(row, column.name) for column in row.__table__.columns if column.name not in left_out}


def row_digest(table: str, values: Mapping[str, Any]) -> str:
    """Return the SHA-256, as hex, of a row's columns by name, without columns that change later."""
    kept = {name: value for name, value in values.items() if name not in CHANGING_COLUMNS[table]}
    return body_hash({"table": table, "row": _facts(kept)})


def parts_of_order(job: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the table and id of each row that a training uses, by part: dataset, evaluation, anchors, sweep.

    `anchors` is the public dataset that the job's plan names.
    """
    config = job["plan"].get("config") if isinstance(job["plan"], dict) else None
    options = config if isinstance(config, dict) else {}
    named = {
        "dataset": ("datasets", job["dataset_id"]),
        "evaluation": ("datasets", job["evaluation_dataset_id"]),
        "anchors": ("datasets", next(filter(None, map(options.get, PUBLIC_DATASET_OPTIONS)), None)),
        "sweep": ("sweeps", job["sweep_id"]),
    }
    return {part: place for part, place in named.items() if isinstance(place[1], str) and place[1]}


def order_digests(
    job: Mapping[str, Any], secret: str, parts: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> dict[str, str]:
    """Return the digests in a HOLD entry, by part: the job with its secret, and the rows that it uses.

    Every digest is keyed by the secret: 256 random bits that never leave the database and the runner. So the digests
    reveal nothing about a private dataset's content to readers of the log, and they commit to the secret.
    """
    key = hashlib.sha256(_ORDER_LABEL + secret.encode("utf-8", "surrogatepass")).digest()
    facts = {"job": _facts({name: job[name] for name in ORDER_COLUMNS})}
    facts |= {part: {"row": row_digest(table, values)} for part, (table, values) in parts.items()}
    return {
        part: hmac.new(key, canonical_json([part, value]), hashlib.sha256).hexdigest() for part, value in facts.items()
    }


def outcome_of(kind: str, details: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Return the job's state and failure code implied by the entry that ended its hold; None for an unknown reason."""
    reason = details.get("reason")
    if kind == "capture" and details.get("artifact_sha256") is not None:
        return "succeeded", None
    if not isinstance(reason, str):
        return None
    if reason.startswith("cancelled"):
        return "cancelled", None
    if reason.startswith("worker lost"):
        return "failed", "worker_lost"
    return ("failed", reason.removeprefix("failed: ")) if reason.startswith("failed: ") else None


def _facts(values: Mapping[str, Any]) -> dict[str, Any]:
    facts = {}
    for name, value in values.items():
        if isinstance(value, enum.Enum):
            facts[name] = value.value
        elif isinstance(value, datetime):
            facts[name] = utc_text(value)
        elif isinstance(value, dict | list):
            facts[name] = json.loads(canonical_json(value))
        elif value is not None and value is not False:
            facts[name] = value
    return facts
