"""Entries that cost nothing and commit to rows beside the log: samples of a release, datasets, and facts to come."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.db.words import EntryKind
from service.ledger.rows import append, lock_account
from service.ledger.statements import has_sample


def record_sample(
    session: Session,
    *,
    account_id: str,
    job_id: str,
    release_id: str,
    now: datetime,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Record, at no cost, that a release was sampled again. Recording the same job twice changes nothing.

    Args:
        session: in a writing transaction.
        account_id: of the release.
        job_id: that has drawn the sample.
        release_id: that it was drawn from.
        now: aware.
        details: what else the entry commits to.
    """
    account = lock_account(session, account_id)
    if not has_sample(session, job_id):
        said = {"release_id": release_id, **(details or {})}
        append(session, account, EntryKind.SAMPLE, None, job_id=job_id, details=said, now=now)


def record_fact(session: Session, *, account_id: str, fact: Mapping[str, str], now: datetime) -> None:
    """Record, at no cost, a row beside the log that never changes from now on, so that no change of it is silent.

    Args:
        session: in a writing transaction, which has written the row.
        account_id: in whose log.
        fact: `table`, `id` and `sha256` of the row (`commitments.row_digest`), and what else there is to commit to.
        now: aware.
    """
    account = lock_account(session, account_id)
    append(session, account, EntryKind.FACT, None, details=fact, now=now)
