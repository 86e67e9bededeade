"""Findings of a verification (a closed set of codes), and stops: no job of a stopped account can open private data."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from obscura.wire.words import NoticeKind, VerificationKind
from service.db.ledger_tables import EVERYWHERE, LOCKING, Account, ArmingStop, Verification
from service.notices import notify

FINDINGS_MAX = 100
Value = TypeVar("Value")


class FindingCode(enum.StrEnum):
    # One account's log
    ENTRY_MISSING = "entry_missing"
    LOG_UNREADABLE = "log_unreadable"
    HASH_MISMATCH = "hash_mismatch"
    CHAIN_BROKEN = "chain_broken"
    ENTRY_MALFORMED = "entry_malformed"
    TRANSITION_REFUSED = "transition_refused"
    AMOUNT_MISMATCH = "amount_mismatch"
    BALANCE_MISMATCH = "balance_mismatch"
    OVERSPENT = "overspent"
    PRICE_MISMATCH = "price_mismatch"
    PRICE_UNKNOWN = "price_unknown"
    CAPACITY_MISMATCH = "capacity_mismatch"
    RAISE_UNAPPROVED = "raise_unapproved"
    # Rows beside the log
    ACCOUNT_MISMATCH = "account_mismatch"
    HOLD_MISMATCH = "hold_mismatch"
    HOLD_REPEATED = "hold_repeated"
    ORPHAN_ENTRIES = "orphan_entries"
    ORPHAN_HOLD = "orphan_hold"
    JOB_MISMATCH = "job_mismatch"
    RELEASE_UNPAID = "release_unpaid"
    RECEIPT_MISMATCH = "receipt_mismatch"
    ARTIFACT_MISMATCH = "artifact_mismatch"
    CARD_MISMATCH = "card_mismatch"
    RELEASE_MISMATCH = "release_mismatch"
    # Signed statements
    CHECKPOINT_BROKEN = "checkpoint_broken"
    CHECKPOINT_MISSING = "checkpoint_missing"
    CHECKPOINT_FILE_REFUSED = "checkpoint_file_refused"
    RECEIPT_REFUSED = "receipt_refused"
    OLDER_THAN_CHECKPOINT = "older_than_checkpoint"
    OLDER_THAN_RECEIPT = "older_than_receipt"
    # The data folder beside the database
    INSTALLATION_MISMATCH = "installation_mismatch"
    JOURNAL_UNKNOWN = "journal_unknown"
    JOURNAL_AHEAD = "journal_ahead"
    RELEASE_UNKNOWN = "release_unknown"
    DATASET_UNKNOWN = "dataset_unknown"
    RESTORED = "restored"
    # The verification itself, and the database below it
    NOT_VERIFIABLE = "not_verifiable"
    DATABASE_DAMAGED = "database_damaged"
    TRIGGER_MISSING = "trigger_missing"


_KEPT = LOCKING | {FindingCode.INSTALLATION_MISMATCH.value}  # a mismatch explains the other locking findings


@dataclass(frozen=True)
class Finding:
    """An inconsistency that a verification found."""

    code: FindingCode
    message: str  # for an operator; public facts only
    account_id: str | None = None  # None: it concerns no account, or all accounts
    sequence: int | None = None  # of the first bad entry, if there is one
    stops: bool = True  # stops arming; False if only a supplied file is in doubt


@dataclass(frozen=True)
class Report:
    """The result of a verification: the numbers of items read, and the findings."""

    full: bool  # every entry was read; otherwise only entries since the newest checkpoint
    accounts: int = 0
    entries: int = 0
    holds: int = 0
    releases: int = 0  # number compared with the capture that paid for them
    checkpoints: int = 0
    witnesses: int = 0  # number of receipts and heads, from outside the log, that were looked up in it
    artifacts: int = 0  # number of release folders whose digest was recomputed
    findings: tuple[Finding, ...] = ()  # at most FINDINGS_MAX; empty for a sound ledger
    # [sequence, hash, spent_nano] of the newest verified entry, by account
    heads: dict[str, list[Any]] = field(default_factory=dict, repr=False)

    @property
    def clean(self) -> bool:
        return not self.findings

    @property
    def stops(self) -> bool:
        return any(finding.stops for finding in self.findings)


@dataclass(eq=False)
class Fault(Exception):
    """The first bad entry of a log. If `sequence` is None, this is the entry after the last replayed entry."""

    code: FindingCode
    message: str
    sequence: int | None = None


def require(condition: bool, code: FindingCode, message: str) -> None:
    if not condition:
        raise Fault(code, message)


def exactly(kind: type[Value], value: Any) -> Value:
    """Return a value of exactly this type; raise TypeError for any other type."""
    if type(value) is not kind:
        raise TypeError
    return value


def stop_arming(session: Session, findings: Iterable[Finding], *, now: datetime) -> int:
    """Stop the accounts that the findings concern; return the number of new stops.

    A stop keeps its first finding, unless a later one locks the installation (LOCKING) and the first is not `_KEPT`.
    """
    new = 0
    for finding in findings:
        if not finding.stops:
            continue
        scope = finding.account_id or EVERYWHERE
        stop = session.get(ArmingStop, scope)
        if stop is None:
            code = finding.code.value
            session.add(ArmingStop(scope=scope, code=code, sequence=finding.sequence, found_at=now))
            session.flush()
            project_id = session.scalar(select(Account.project_id).where(Account.id == finding.account_id))
            facts = {"state": "stopped"} | ({} if project_id is None else {"account_id": scope})
            notify(session, NoticeKind.TRAININGS_STOPPED, project_id, facts, now=now)
            new += 1
        elif finding.code in LOCKING and stop.code not in _KEPT:
            stop.code, stop.sequence = finding.code.value, finding.sequence
    return new


def stop_restored(session: Session, *, now: datetime) -> None:
    """Stop every account of a database restored without its files. `end_restored` lifts the stop of one account."""
    message = "The database was restored without its files: spending after the backup is missing."
    accounts = session.scalars(select(Account.id).order_by(Account.id)).all()
    stop_arming(session, [Finding(FindingCode.RESTORED, message, account_id) for account_id in accounts], now=now)


def end_restored(session: Session, account_id: str) -> None:
    """Lift the stop that `stop_restored` put on an account. Call it once admins have accepted what the restore lost."""
    restored = ArmingStop.scope == account_id, ArmingStop.code == FindingCode.RESTORED.value
    session.execute(delete(ArmingStop).where(*restored))


def clear_stops(session: Session) -> int:
    """Remove the stops and return their number. Call it only after a full verification without a stopping finding.

    Stops set by `stop_restored` remain, because no verification can find lost entries.
    """
    found = delete(ArmingStop).where(ArmingStop.code != FindingCode.RESTORED.value)
    return len(session.scalars(found.returning(ArmingStop.scope)).all())


def record_verification(session: Session, report: Report, *, now: datetime) -> None:
    """Record the result and the time of a verification."""
    kind = VerificationKind.FULL if report.full else VerificationKind.RECENT
    row = session.get(Verification, kind) or Verification(kind=kind)
    row.verified_at, row.entries, row.findings = now, report.entries, len(report.findings)
    session.add(row)


def verifications(session: Session) -> list[Verification]:
    """Return the newest verification of each kind."""
    return list(session.scalars(select(Verification).order_by(Verification.kind)))
