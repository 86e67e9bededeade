"""What must hold between the ledger and the rows around it: holds, jobs and releases. Reads only, in the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Row, Text, and_, bindparam, cast, func, or_, select
from sqlalchemy.orm import Session

from obscura.wire.words import DecisionAction, DecisionState, EntryKind
from service.audit.findings import FINDINGS_MAX, Finding, FindingCode
from service.audit.receipts import check_receipt
from service.audit.rows import RowReader, read_object
from service.audit.signing import SignatureRefused
from service.db.access_tables import Decision
from service.db.job_tables import Job, Release
from service.db.ledger_tables import ENDS_A_HOLD, AccountRow, EntryRow, HoldRow

_PAGE_ROWS = 500
_WITHOUT_ACCOUNT = (
    select(EntryRow.account_id, func.min(EntryRow.sequence).label("sequence"))
    .where(~select(AccountRow.id).where(AccountRow.id == EntryRow.account_id).exists())
    .group_by(EntryRow.account_id)
    .limit(FINDINGS_MAX)
)
_OPENED_TWICE = (
    select(func.min(EntryRow.account_id).label("account_id"), func.max(EntryRow.sequence).label("sequence"))
    .where(EntryRow.kind == EntryKind.HOLD)
    .group_by(EntryRow.hold_id)
    .having(func.count() > 1)
    .limit(FINDINGS_MAX)
)
_NEVER_OPENED = (
    select(HoldRow.id, HoldRow.account_id)
    .outerjoin(
        EntryRow,
        and_(
            EntryRow.hold_id == HoldRow.id,
            EntryRow.kind == EntryKind.HOLD,
            EntryRow.account_id == HoldRow.account_id,
        ),
    )
    .where(EntryRow.hold_id.is_(None))
    .limit(FINDINGS_MAX)
)
_STRAYED_JOBS = (
    select(Job.id, Job.account_id)
    .outerjoin(HoldRow, HoldRow.id == Job.hold_id)
    .where(
        Job.hold_id.is_not(None),
        or_(
            HoldRow.id.is_(None),
            HoldRow.account_id != Job.account_id,
            HoldRow.job_id != Job.id,
            HoldRow.attempt != Job.attempt,
        ),
    )
    .limit(FINDINGS_MAX)
)
_LIMITS = select(EntryRow.account_id, EntryRow.sequence, cast(EntryRow.details, Text).label("details")).where(
    EntryRow.kind == EntryKind.LIMIT
)
_HOUR = len("2030-01-02T03")
_RELEASES: Any = (
    select(
        Release.id,
        Release.account_id,
        Release.artifact_sha256,
        cast(Release.receipt, Text).label("receipt"),
        EntryRow.account_id.label("payer"),
        EntryRow.sequence,
        EntryRow.hash,
        cast(EntryRow.details, Text).label("details"),
    )
    .outerjoin(Job, Job.id == Release.job_id)
    .outerjoin(EntryRow, and_(EntryRow.hold_id == Job.hold_id, ENDS_A_HOLD, EntryRow.kind == EntryKind.CAPTURE))
    .where(Release.id > bindparam("after"))
    .order_by(Release.id)
    .limit(_PAGE_ROWS)
)
# What an entry says about a raise, and the request's column that must say the same.
_RAISE = {
    "epsilon_before": "epsilon_before",
    "epsilon": "epsilon",
    "reason": "reason",
    "requested_by": "asked_with",
    "approved_by": "decided_with",
}
_PEOPLE = {"requested_by_admin": "asked_by", "approved_by_admin": "decided_by"}
_COLUMNS = [getattr(Decision, name) for name in ("id", "account_id", *_RAISE.values(), *_PEOPLE.values())]
_APPROVED = select(*_COLUMNS).where(Decision.action == DecisionAction.RAISE, Decision.state == DecisionState.APPROVED)


def find_orphans(session: Session) -> Iterator[Finding]:
    """Yield entries without an account, holds without an entry, holds that were opened twice."""
    for row in session.execute(_WITHOUT_ACCOUNT):
        message = f"There are entries of account {row.account_id}, which does not exist."
        yield Finding(FindingCode.ORPHAN_ENTRIES, message, row.account_id, row.sequence)
    for row in session.execute(_OPENED_TWICE):
        message = f"Entry {row.sequence} of account {row.account_id} opens a hold that was opened before."
        yield Finding(FindingCode.HOLD_REPEATED, message, row.account_id, row.sequence)
    for hold_id, account_id in session.execute(_NEVER_OPENED):
        message = f"Hold {hold_id} has a row, but account {account_id} has no entry that opened it."
        yield Finding(FindingCode.ORPHAN_HOLD, message, account_id)


def find_strayed_jobs(session: Session) -> Iterator[Finding]:
    """Yield jobs whose hold is missing, belongs to another job or account, or is fenced for another attempt."""
    for row in session.execute(_STRAYED_JOBS):
        message = f"Job {row.id} names a hold that is missing, or is that of another job, account or attempt."
        yield Finding(FindingCode.JOB_MISMATCH, message, row.account_id)


def find_unapproved_raises(session: Session) -> Iterator[Finding]:
    """Yield raises of a limit that no approved request asked for, and approved requests that raised nothing."""
    approved = {row.id: row for row in session.execute(_APPROVED)}
    rows = RowReader(session, Decision.metadata.tables["decisions"]).by(approved)  # times as they are stored
    for entry in session.execute(_LIMITS).all():
        details = read_object(entry.details)
        if details.get("request_id") is None:
            continue  # a limit that was lowered, as the replay has seen
        request = approved.pop(str(details["request_id"]), None)
        if (
            request is None
            or entry.account_id != request.account_id
            or any(details.get(said) != getattr(request, name) for said, name in _said(details).items())
            or not _same_hour(details.get("requested_at"), rows[request.id]["asked_at"])
        ):
            message = f"Entry {entry.sequence} of account {entry.account_id} raises the limit as no request asked for."
            yield Finding(FindingCode.RAISE_UNAPPROVED, message, entry.account_id, entry.sequence)
    for request in approved.values():
        message = f"Request {request.id} was approved, but no entry of account {request.account_id} raises its limit."
        yield Finding(FindingCode.RAISE_UNAPPROVED, message, request.account_id)


def _same_hour(told: Any, stored: Any) -> bool:
    """Entries tell the hour of a request, those from before that was a rule nothing."""
    return told is None or (isinstance(told, str) and told[:_HOUR] == str(stored)[:_HOUR])


def _said(details: Mapping[str, Any]) -> Mapping[str, str]:
    """What a request must repeat of an entry; before admins were people, an entry named their keys alone."""
    return _RAISE | _PEOPLE if _PEOPLE.keys() & details.keys() else _RAISE


def find_unpaid_releases(session: Session, trusted: Mapping[str, bytes]) -> Iterator[Finding | None]:
    """Yield, for each release, what is wrong with it, or None: its capture must list its artifact, and its receipt
    must be the signed copy of that capture (I7).
    """
    rows = session.execute(_RELEASES, {"after": ""}).all()
    while rows:
        for row in rows:
            yield _unpaid(row) or _receipt_fault(row, trusted)
        rows = session.execute(_RELEASES, {"after": rows[-1].id}).all() if len(rows) == _PAGE_ROWS else []


def _unpaid(row: Row[Any]) -> Finding | None:
    if row.payer is None:
        message = f"Release {row.id} can be read, but no entry captured what it cost."
        return Finding(FindingCode.RELEASE_UNPAID, message, row.account_id)
    listed = read_object(row.details).get("artifact_sha256")
    if row.payer != row.account_id or listed is None or listed != row.artifact_sha256:
        message = f"Release {row.id} is not the artifact that entry {row.sequence} of account {row.payer} paid for."
        return Finding(FindingCode.RELEASE_UNPAID, message, row.account_id, row.sequence)
    return None


def _receipt_fault(row: Row[Any], trusted: Mapping[str, bytes]) -> Finding | None:
    try:
        statement = check_receipt(read_object(row.receipt), trusted)
        if statement["release_id"] != row.id:
            raise SignatureRefused("It names another release.")
        if (statement["entry"]["sequence"], statement["entry_hash"]) != (row.sequence, row.hash):
            raise SignatureRefused("It states another capture.")
    except SignatureRefused as error:
        message = f"The receipt of release {row.id} is refused. {error.message}"
        return Finding(FindingCode.RECEIPT_MISMATCH, message, row.account_id, row.sequence)
    return None
