"""A training is what its hold was taken for: bound when it is accepted, compared before its data are opened."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.base import Base
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Sweep
from service.db.ledger_tables import EntryRow
from service.db.words import EntryKind
from service.errors import LedgerCorruption
from service.ledger import records
from service.ledger.chain import body_hash
from service.ledger.checks import check_entry
from service.ledger.commitments import ORDER_COLUMNS, anchors_of, columns_of, order_digests


def order_of(session: Session, job: Job, secret: str) -> dict[str, str]:
    """Return what the HOLD entry of a training commits to, by part.

    Args:
        session: any transaction.
        job: with every column of the order; it need not be in the database yet.
        secret: of the job, as it is stored.
    """
    rows: dict[str, tuple[type[Base], str | None]] = {
        "dataset": (Dataset, job.dataset_id),
        "evaluation": (Dataset, job.evaluation_dataset_id),
        "anchors": (Dataset, anchors_of(job.plan)),
        "sweep": (Sweep, job.sweep_id),
    }
    parts = {}
    for part, (table, row_id) in rows.items():
        row = None if row_id is None else session.get(table, row_id)
        if row is not None:
            parts[part] = (str(table.__tablename__), columns_of(row))
    return order_digests({name: getattr(job, name) for name in ORDER_COLUMNS}, secret, parts)


def require_as_held(session: Session, job: Job, secret: str) -> None:
    """Let a training pass that is what its hold was taken for. Call it before anything is armed.

    Holds from before orders were bound say which dataset, recipe, epsilon and plan they are for: those are compared.

    Raises:
        LedgerCorruption: something was changed since, or there is no such hold.
    """
    row = session.execute(
        select(*EntryRow.__table__.c).where(EntryRow.hold_id == job.hold_id, EntryRow.kind == EntryKind.HOLD)
    ).one_or_none()
    if row is None:
        raise LedgerCorruption("Ledger: a training has no entry that holds its price.", job_id=job.id)
    entry = records.Entry(*row)
    check_entry(entry)
    held = entry.details.get("order")
    if held is None:
        changed = [name for name, value in _before_orders(job).items() if entry.details.get(name, value) != value]
    else:
        found = order_of(session, job, secret)
        changed = sorted(part for part in held.keys() | found.keys() if held.get(part) != found.get(part))
    if (entry.account_id, entry.job_id) != (job.account_id, job.id):
        changed.append("payer")
    if changed:
        raise LedgerCorruption(
            f"Ledger: a training is not what its hold was taken for: {', '.join(changed)}. Nothing was opened.",
            job_id=job.id,
            changed=changed,
        )


def _before_orders(job: Job) -> dict[str, Any]:
    facts = {"dataset_id": job.dataset_id, "recipe": job.recipe, "epsilon": job.epsilon}
    return {**facts, "plan_sha256": body_hash(job.plan)}
