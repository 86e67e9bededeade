"""What entries commit to beside the log: orders of trainings, releases, samples, and facts such as a dataset's. Pure.

An entry's details are hashed, so a digest in them covers a row of another table: whoever changes that row afterwards
contradicts the log. Digests are taken of the row's columns by name. Columns without a value are left out, so that
columns which are added later, empty, change no digest.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
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
# Of the job that has drawn a sample or measured a release, once it has ended.
DRAWING_COLUMNS = (*ORDER_COLUMNS, "release_id", "attempt", "state", "failure_code", "finished_at")
# What no entry commits to, by table: above all what changes later. The receipt holds that entry, and is signed.
CHANGING_COLUMNS: Mapping[str, frozenset[str]] = {
    # The log does not say whose an account is either; entries of older versions know of no project.
    # What is stored of a dataset changes when somebody withdraws; the log goes on saying what has arrived.
    "datasets": frozenset(
        {"state", "failure_code", "upload_lease_until", "erased_at", "project_id", "content_name", "content_key_id"}
    ),
    "evaluations": frozenset(),
    "releases": frozenset({"receipt"}),
    "samples": frozenset({"removed_at"}),
    "sweeps": frozenset(),
}
# What of a dataset on which nothing was ever trained is erased when it is deleted.
DECLARATION, FINGERPRINTS = "declaration", "fingerprints"
_ORDER_LABEL = b"obscura order 1\0"
_OUTCOME_LABEL = b"obscura outcome 1\0"
_FINGERPRINTS_LABEL = b"obscura fingerprints 1\0"


def columns_of(row: Base) -> dict[str, Any]:
    """Return the columns of a loaded row by name, but those that change later, and but a job's secret."""
    left_out = CHANGING_COLUMNS.get(row.__tablename__, frozenset({"secret"}))
    return {column.name: getattr(row, column.name) for column in row.__table__.columns if column.name not in left_out}


def row_digest(table: str, values: Mapping[str, Any], **more: Any) -> str:
    """Return the SHA-256 of a row as hex.

    Args:
        table: its table's name.
        values: columns by name; what changes later is left out.
        more: further facts that the digest covers.
    """
    kept = {name: value for name, value in values.items() if name not in CHANGING_COLUMNS[table]}
    return body_hash({"table": table, "row": _facts(kept), **more})


def parts_of_order(job: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return table and id of the rows that a training is made from, by the name of the part.

    Args:
        job: its columns. The public dataset whose images it needs is named in its plan; here its part is
            called anchors.
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


def sample_digest(sample: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """Return the digest of a sample's row and of its job, which has ended."""
    return row_digest("samples", sample, job=_facts({name: job[name] for name in DRAWING_COLUMNS}))


def evaluation_digest(evaluation: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """Return the digest of an evaluation's row and of its job, which has ended."""
    return row_digest("evaluations", evaluation, job=_facts({name: job[name] for name in DRAWING_COLUMNS}))


def keyed_digest(digest: str, secret: str) -> str:
    """Return what an entry says of a sample or an evaluation: its digest under a key made from its job's secret.

    Everything else in such a row can be seen or guessed, so whoever knew the digest itself could try at which moment
    its job ended. Entries from before say the digest.

    Args:
        digest: `sample_digest` or `evaluation_digest`.
        secret: of the job, as it is stored.
    """
    return hmac.new(_key(_OUTCOME_LABEL, secret), digest.encode("ascii"), hashlib.sha256).hexdigest()


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


def dataset_facts(values: Mapping[str, Any], digests: Iterable[bytes]) -> dict[str, str]:
    """Return what an entry says of a private dataset whose content has arrived.

    The id of its key is among what is hashed, and is nowhere shown: without it nobody can try what content gives the
    digest.

    Args:
        values: the columns of its row.
        digests: the fingerprints of its images, in their order. PRIVATE.
    """
    return {
        "table": "datasets",
        "id": str(values["id"]),
        "sha256": row_digest("datasets", values),
        "fingerprints": fingerprints_digest(values["vault_key_id"], digests),
    }


def erased_facts(dataset_id: str, what: str) -> dict[str, str]:
    """Return what an entry says of a private dataset that was written down, and is erased since.

    Args:
        what: DECLARATION or FINGERPRINTS.
    """
    return {"table": "datasets", "id": dataset_id, "erased": what}


def fingerprints_digest(vault_key_id: object, digests: Iterable[bytes]) -> str:
    """Return the keyed digest of a dataset's fingerprints, in their order."""
    message = _FINGERPRINTS_LABEL + b"".join(digests)
    return hmac.new(str(vault_key_id).encode(), message, hashlib.sha256).hexdigest()


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
