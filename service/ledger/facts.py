"""What entries commit to beside the log: trainings as they were ordered.

A training is bound when its hold is taken, and compared before its data are opened.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind
from service.db.base import Base
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Sweep
from service.errors import LedgerCorruption
from service.ledger.commitments import ORDER_COLUMNS, columns_of, order_digests, parts_of_order
from service.ledger.rows import entry_of_hold


def order_of(session: Session, job: Job, secret: str) -> dict[str, str]:
    """Return what the HOLD entry of a training commits to, by part.

    Args:
        job: with every column of the order; it need not be in the database yet.
        secret: of the job, as it is stored.
    """
    tables: dict[str, type[Base]] = {"datasets": Dataset, "sweeps": Sweep}
    order = {name: getattr(job, name) for name in ORDER_COLUMNS}
    parts = {}
    for part, (table, row_id) in parts_of_order(order).items():
        row = session.get(tables[table], row_id)
        if row is not None:
            parts[part] = (table, columns_of(row))
    return order_digests(order, secret, parts)


def require_as_held(session: Session, job: Job, secret: str) -> None:
    """Raise unless a training is what its hold was taken for. Call it before anything is armed.

    Raises:
        LedgerCorruption: something was changed since, or there is no such hold.
    """
    if job.hold_id is None:
        raise LedgerCorruption("Ledger: a training has no hold.", job_id=job.id)
    entry = entry_of_hold(session, job.hold_id, EntryKind.HOLD)
    held, expected = entry.details["order"], order_of(session, job, secret)
    changed = sorted(part for part in held.keys() | expected.keys() if held.get(part) != expected.get(part))
    if (entry.job_id, entry.account_id) != (job.id, job.account_id):
        changed.append("payer")
    if changed:
        raise LedgerCorruption(
            f"Ledger: a training is not what its hold was taken for: {', '.join(changed)}. Nothing was opened.",
            job_id=job.id,
            changed=changed,
        )
