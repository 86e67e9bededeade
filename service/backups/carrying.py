"""Carrying forward: what journals and receipts show to be spent, and a restored database does not know, is taken off
the limits of its accounts, and what shows it is moved aside, for it is accounted for.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.budgets import EPSILON_LEAST
from obscura.wire.words import UNFINISHED
from service import jobs, ledger
from service.audit import carried
from service.audit.arming import clear_stops
from service.audit.checkpoints import CHECKPOINT_FILE
from service.audit.data_folder import (
    DataFolder,
    counts_missing,
    not_counted,
    published_since,
    read_data_folder,
    unknown_to,
)
from service.audit.findings import FindingCode, Report
from service.audit.receipts import check_receipt, kept_receipts
from service.audit.restrictions import forgotten, keep_restrictions
from service.audit.shortfalls import limit_without
from service.audit.signing import RECEIPTS, document_in, trusted_keys
from service.backups.manifest import BackupRefused
from service.db.job_tables import Job
from service.db.session import SessionFactory, transaction
from service.errors import NotFound
from service.inspection import follow_up, inspect_ledger
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import Storage
from service.storage.restrictions import Restriction, read_restrictions

_CARRIED = {  # what is found where a database is older than its files, and nothing else is wrong
    FindingCode.JOURNAL_UNKNOWN,
    FindingCode.JOURNAL_AHEAD,
    FindingCode.RELEASE_UNKNOWN,
    FindingCode.OLDER_THAN_RECEIPT,
    FindingCode.OLDER_THAN_CHECKPOINT,
    FindingCode.CHECKPOINT_MISSING,
    FindingCode.RESTRICTION_FORGOTTEN,
}


@dataclass(frozen=True)
class Carried:
    """What was taken off the accounts.

    Attributes:
        missing_nano: by account, what the database did not count.
        limits: by account, the limit now.
        aside: keys of the storage under which lies what was moved.
        report: of the verification afterwards; where it is clean, no stop stands.
    """

    missing_nano: dict[str, int]
    limits: dict[str, float]
    aside: list[str]
    report: Report


def carry_forward(settings: Settings, factory: SessionFactory, *, now: datetime) -> Carried:
    """Lower each account's limit by what was spent since its database was copied, and discard the trainings concerned.

    An account of which nothing is left is frozen at the lowest limit that there is. No service may run.

    Raises:
        BackupRefused: something is wrong that this does not mend, or an account is not in the database, or a journal
            of an earlier version does not name its account. Nothing was changed.
    """
    storage, trusted = storage_of(settings), trusted_keys(settings.ledger_key_path)
    _finish(storage, factory)
    found = inspect_ledger(settings, factory).findings
    others = sorted({finding.code.value for finding in found} - {code.value for code in _CARRIED})
    if others:
        raise BackupRefused(f"Found besides what is carried forward: {', '.join(others)}. Mend that first.")
    receipts = {
        str(statement["account"]["id"]): statement["entry"]
        for statement in (check_receipt(document_in(content), trusted) for content in kept_receipts(storage).values())
    }
    folder, restricted = read_data_folder(storage), read_restrictions(storage)
    stamp = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    with transaction(factory) as session:
        unknown = unknown_to(session, folder)
        missing = not_counted(session, storage, folder, unknown)
        newer = {account_id for account_id, entry in receipts.items() if not _knows(session, account_id, entry)}
        together = Counter[str]()
        for job_id, shares in missing.items():
            for share in shares:
                if share.account_id is None and share.missing_nano:
                    raise BackupRefused(f"The journal of job {job_id} does not name its account: see docs/backups.md.")
                together[str(share.account_id)] += share.missing_nano
        counts = counts_missing(session, folder)
        together.update(counts)
        for account_id in newer:
            spent_nano = int(receipts[account_id]["spent_nano"])
            account = _account(session, account_id)
            together[account_id] = max(together[account_id], spent_nano - account.spent_nano)
        taken = {account_id: nano for account_id, nano in together.items() if nano > 0}
        limits = {}
        for before in folder.carried:  # in the database that was lost
            for account_id, nano in carried.forgotten(session, before):
                limits[account_id] = _lower(session, account_id, nano, before.stamp, now)
                together[account_id] += nano
        for account_id, restriction in forgotten(session, restricted).items():  # there, too: both have been taken off
            limits[account_id] = _restrict(session, account_id, restriction, now)
        limits |= {account_id: _lower(session, account_id, nano, stamp, now) for account_id, nano in taken.items()}
        for job_id in missing.keys() - unknown.journals:
            _discard(session, job_id, now)
        since = published_since(session, folder, missing).values()
        unknown = replace(unknown, releases=unknown.releases.union(since))
        keys = [f"journals/{account_id}.jsonl" for account_id in counts]
        keys += _to_move(storage, missing.keys(), unknown, newer, found)
        note = carried.Note(stamp, taken, keys)
        if taken:
            carried.write_note(storage, note)
    with transaction(factory, read_only=True) as session:
        keep_restrictions(session, storage)
    aside = [_move(storage, key, stamp) for key in keys]
    if taken:
        carried.write_note(storage, replace(note, keys=()))
    taken = {account_id: nano for account_id, nano in together.items() if nano > 0}
    report = inspect_ledger(settings, factory, thorough=True)
    follow_up(factory, report, now=now)
    if not report.stops:
        with transaction(factory) as session:
            clear_stops(session)
    return Carried(taken, limits, aside, report)


def _account(session: Session, account_id: str) -> ledger.Account:
    try:
        return ledger.get_account(session, account_id)
    except NotFound:
        raise BackupRefused(
            f"Account {account_id} was opened after the backup, so the database does not know it, and its spending "
            "cannot be taken off anything. Open no other account for the same people; see docs/backups.md."
        ) from None


def _knows(session: Session, account_id: str, entry: dict[str, Any]) -> bool:
    account = _account(session, account_id)
    return account.head_sequence >= int(entry["sequence"])


def _finish(storage: Storage, factory: SessionFactory) -> None:
    """Move aside what an earlier time has accounted for and did not come to move, so that it is not counted twice."""
    for note in carried.read_notes(storage):
        if not note.keys:  # all was moved; what lies there now is of later
            continue
        there = [key for key in note.keys if storage.holds(key)]
        with transaction(factory, read_only=True) as session:
            known = not any(carried.forgotten(session, note))
        if not known and len(there) == len(note.keys):
            carried.remove_note(storage, note)  # it ended before anything was committed
        elif known:
            for key in there:
                _move(storage, key, note.stamp)
            carried.write_note(storage, replace(note, keys=()))


def _lower(session: Session, account_id: str, nano: int, stamp: str, now: datetime) -> float:
    account: Any = _account(session, account_id)
    reason = f"{nano} {ledger.CARRIED} ({stamp})"
    epsilon = max(limit_without(account, nano), EPSILON_LEAST)
    if epsilon < account.epsilon:
        ledger.lower_limit(session, account_id=account_id, epsilon=epsilon, reason=reason, now=now)
    if epsilon == EPSILON_LEAST:
        ledger.set_frozen(session, account_id=account_id, frozen=True, reason=reason, now=now)
    return epsilon


def _restrict(session: Session, account_id: str, restriction: Restriction, now: datetime) -> float:
    """Lower a limit, and freeze an account, as people had done after the backup."""
    facts: Any = {"account_id": account_id, "reason": "decided after the backup that was restored", "now": now}
    account = _account(session, account_id)
    if restriction.epsilon < account.epsilon:
        account = ledger.lower_limit(session, epsilon=restriction.epsilon, **facts)
    if restriction.frozen:
        account = ledger.set_frozen(session, frozen=True, **facts)
    return account.epsilon


def _discard(session: Session, job_id: str, now: datetime) -> None:
    if session.scalar(select(Job.id).where(Job.id == job_id, Job.state.in_(UNFINISHED))) is not None:
        jobs.request_cancel(session, job_id=job_id, now=now, discard=True)


def _to_move(
    storage: Storage, job_ids: Any, unknown: DataFolder, newer: set[str], found: tuple[Any, ...]
) -> Iterator[str]:
    for job_id in sorted(job_ids):
        yield f"journals/{job_id}.jsonl"
        if storage.holds(f"work/{job_id}"):
            yield f"work/{job_id}"
    yield from (f"releases/{name}" for name in sorted(unknown.releases))
    yield from (f"samples/{name}" for name in sorted(unknown.samples))
    yield from (f"{RECEIPTS}/{account_id}.json" for account_id in sorted(newer))
    of_checkpoint = (FindingCode.OLDER_THAN_CHECKPOINT, FindingCode.CHECKPOINT_MISSING)
    checkpoint = f"{RECEIPTS}/{CHECKPOINT_FILE}"
    if any(finding.code in of_checkpoint for finding in found) and storage.holds(checkpoint):
        yield checkpoint


def _move(storage: Storage, key: str, stamp: str) -> str:
    target = f"{carried.ASIDE}/{stamp}.{key.replace('/', '.')}"
    storage.move(key, target)
    return target
