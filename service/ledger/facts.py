"""What entries commit to beside the log: trainings as they were ordered.

A training is bound when its hold is taken, and compared before its data are opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind
from service.access import visible
from service.db.base import Base
from service.db.dataset_tables import Dataset
from service.db.job_tables import FurtherDataset, Job, Sweep
from service.errors import LedgerCorruption
from service.ledger.chain import Entry, body_hash
from service.ledger.commitments import ORDER_COLUMNS, columns_of, order_digests, parts_of_order
from service.ledger.rows import entry_of_hold
from service.ledger.statements import holds_of_job


def order_of(session: Session, job: Job, secret: str, further: Mapping[int, str]) -> dict[str, str]:
    """Return what the HOLD entry of a training commits to, by part.

    Args:
        job: with every column of the order; it need not be in the database yet.
        secret: of the job, as it is stored.
        further: ids of the datasets that it reads together with its own, by their position.
    """
    tables: dict[str, type[Base]] = {"datasets": Dataset, "sweeps": Sweep}
    order = {name: getattr(job, name) for name in ORDER_COLUMNS}
    parts = {}
    for part, (table, row_id) in parts_of_order(order, further).items():
        row = session.get(tables[table], row_id)
        if row is not None:
            parts[part] = (table, columns_of(row))
    return order_digests(order, secret, parts)


def require_as_held(session: Session, job: Job, secret: str) -> None:
    """Let a training pass that is what its hold was taken for, or each of its holds. Call it before anything is armed.

    Holds from before orders were bound say which dataset, recipe, epsilon and plan they are for: those are compared.

    Raises:
        LedgerCorruption: something was changed since, or there is no such hold.
    """
    if job.hold_id is None:
        raise LedgerCorruption("Ledger: a training has no hold.", job_id=job.id)
    further = further_datasets(session, job.id)
    found = order_of(session, job, secret, {row.position: row.dataset_id for row in further})
    entries = [entry_of_hold(session, hold_id, EntryKind.HOLD) for hold_id in holds_of_job(session, job.id)]
    changed = list(dict.fromkeys(part for entry in entries for part in _changed(entry, job, found)))
    payers = {entry.account_id for entry in entries if entry.job_id == job.id}
    of_job = [entry.account_id for entry in entries if entry.hold_id == job.hold_id]
    if of_job != [job.account_id] or payers != {job.account_id, *(row.account_id for row in further)}:
        changed.append("payer")
    if changed:
        raise LedgerCorruption(
            f"Ledger: a training is not what its hold was taken for: {', '.join(changed)}. Nothing was opened.",
            job_id=job.id,
            changed=changed,
        )


def further_datasets(session: Session, job_id: str) -> Sequence[FurtherDataset]:
    """Return the datasets that a training reads together with its own, in their order; none for most."""
    further = visible(session, FurtherDataset).where(FurtherDataset.job_id == job_id)
    return session.scalars(further.order_by(FurtherDataset.position)).all()


def _changed(entry: Entry, job: Job, found: Mapping[str, str]) -> list[str]:
    """Name what differs from the order that the entry of a hold commits to."""
    held = entry.details.get("order")
    if held is None:
        return [name for name, value in _before_orders(job).items() if entry.details.get(name, value) != value]
    return sorted(part for part in held.keys() | found.keys() if held.get(part) != found.get(part))


def _before_orders(job: Job) -> dict[str, Any]:
    facts = {"dataset_id": job.dataset_id, "recipe": job.recipe, "epsilon": job.epsilon}
    return {**facts, "plan_sha256": body_hash(job.plan)}
