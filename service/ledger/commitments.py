"""What entries commit to beside the log: orders of trainings, and releases. Pure.

An entry's details are hashed, so a digest in them covers a row of another table: whoever changes that row afterwards
contradicts the log. Digests are taken of the row's columns by name. Columns without a value are left out, so that
columns which are added later, empty, change no digest.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from privacy.plans.options import PUBLIC_DATASET_OPTIONS
from service.db.base import Base
from service.ledger.chain import body_hash, canonical_json, utc_text

# What is accepted with a training, and never changes; how it goes on is told by the hold and its entries.
ORDER_COLUMNS = (
    "id",
    "kind",
    "account_id",
    "dataset_id",
    "evaluation_dataset_id",
    "recipe",
    "epsilon",
    "options",
    "plan",
    "sweep_id",
    "created_at",
)
# What no entry commits to, by table: above all what changes later. The receipt holds that entry, and is signed.
CHANGING_COLUMNS: Mapping[str, frozenset[str]] = {
    # The log does not say whose an account is either; entries of older versions know of no project.
    # What is stored of a dataset changes when somebody withdraws; the log goes on saying what has arrived.
    "datasets": frozenset(
        {"state", "failure_code", "upload_lease_until", "erased_at", "project_id", "content_name", "content_key_id"}
    ),
    "releases": frozenset({"receipt"}),
    "sweeps": frozenset(),
}
_ORDER_LABEL = b"obscura order 1\0"


def columns_of(row: Base) -> dict[str, Any]:
    """Return the columns of a loaded row by name, but those that change later, and but a job's secret."""
    left_out = CHANGING_COLUMNS.get(row.__tablename__, frozenset({"secret"}))
    return {column.name: getattr(row, column.name) for column in row.__table__.columns if column.name not in left_out}


def row_digest(table: str, values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a row as hex.

    Args:
        table: its table's name.
        values: columns by name; what changes later is left out.
    """
    kept = {name: value for name, value in values.items() if name not in CHANGING_COLUMNS[table]}
    return body_hash({"table": table, "row": _facts(kept)})


def parts_of_order(job: Mapping[str, Any], further: Mapping[int, str]) -> dict[str, tuple[str, str]]:
    """Return table and id of the rows that a training is made from, by the name of the part.

    Args:
        job: its columns. The public dataset whose images it needs is named in its plan; here its part is
            called anchors.
        further: ids of the datasets that it reads together with its own, by their position.
    """
    config = job["plan"].get("config") if isinstance(job["plan"], dict) else None
    options = config if isinstance(config, dict) else {}
    named = {
        "dataset": ("datasets", job["dataset_id"]),
        "evaluation": ("datasets", job["evaluation_dataset_id"]),
        "anchors": ("datasets", next(filter(None, map(options.get, PUBLIC_DATASET_OPTIONS)), None)),
        "sweep": ("sweeps", job["sweep_id"]),
        **{f"dataset {place}": ("datasets", dataset_id) for place, dataset_id in further.items()},
    }
    return {part: place for part, place in named.items() if isinstance(place[1], str) and place[1]}


def order_digests(
    job: Mapping[str, Any], secret: str, parts: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> dict[str, str]:
    """Return what a HOLD entry commits to, by part: the job with its secret, and the rows that it was made from.

    Every digest is keyed by the secret, 256 random bits that never leave the database and the runner. So it tells
    nothing about a private dataset's content to those who can read the log, and it covers the secret itself.

    Args:
        job: its columns; those of an order count.
        secret: as it is stored.
        parts: table and columns of each further row, by the name of the part: dataset, evaluation, anchors, sweep.
    """
    key = _key(_ORDER_LABEL, secret)
    facts = {"job": _facts({name: job[name] for name in ORDER_COLUMNS})}
    facts |= {part: {"row": row_digest(table, values)} for part, (table, values) in parts.items()}
    return {
        part: hmac.new(key, canonical_json([part, said]), hashlib.sha256).hexdigest() for part, said in facts.items()
    }


def outcome_of(kind: str, details: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Return the state and the failure code of a job whose hold ended with this entry, as its reason tells them.

    None where the reason is not one that the jobs give.
    """
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


def _key(label: bytes, secret: str) -> bytes:
    return hashlib.sha256(label + secret.encode("utf-8", "surrogatepass")).digest()


def _facts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns as JSON; what is absent or false is left out."""
    plain = {name: _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not None and value is not False}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime):
        return utc_text(value)
    if isinstance(value, dict | list):
        return json.loads(canonical_json(value))
    return value
