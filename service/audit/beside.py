"""Compare the logs with the rows that they commit to: holds, jobs, releases, orders and approved raises. Read only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, Text, and_, bindparam, cast, func, or_, select
from sqlalchemy.orm import Session

from obscura.wire.words import DecisionAction, DecisionState, EntryKind
from service.audit.findings import FINDINGS_MAX, Finding, FindingCode
from service.audit.proofs import check_receipt
from service.audit.rows import RowReader, read_object
from service.audit.signing import SignatureRefused
from service.db.access_tables import Decision
from service.db.base import Base
from service.db.job_tables import Job, Release
from service.db.ledger_tables import ENDS_A_HOLD, Account, Entry, Hold
from service.ledger.chain import ORDER_COLUMNS, order_digests, outcome_of, parts_of_order, row_digest

_PAGE_ROWS = 500
_TABLES = Base.metadata.tables
_HOUR = len("2026-01-02T03")
COMMITTING_KINDS = (EntryKind.HOLD, EntryKind.CAPTURE)  # kinds of entries that contain digests of other rows
_OPEN, _ENDED = ("queued", "running"), ("succeeded", "failed", "cancelled")
_STORED = ("ready", "withdrawing", "failed", "deleting", "deleted")  # dataset states after the content has arrived

_WITHOUT_ACCOUNT = (
    select(Entry.account_id, func.min(Entry.sequence).label("sequence"))
    .where(~select(Account.id).where(Account.id == Entry.account_id).exists())
    .group_by(Entry.account_id)
    .limit(FINDINGS_MAX)
)
_OPENED_TWICE = (
    select(func.min(Entry.account_id).label("account_id"), func.max(Entry.sequence).label("sequence"))
    .where(Entry.kind == EntryKind.HOLD)
    .group_by(Entry.hold_id)
    .having(func.count() > 1)
    .limit(FINDINGS_MAX)
)
_OPENING = and_(Entry.hold_id == Hold.id, Entry.kind == EntryKind.HOLD, Entry.account_id == Hold.account_id)
_NEVER_OPENED = (
    select(Hold.id, Hold.account_id).outerjoin(Entry, _OPENING).where(Entry.hold_id.is_(None)).limit(FINDINGS_MAX)
)
_OTHER_HOLD = or_(
    Hold.id.is_(None), Hold.account_id != Job.account_id, Hold.job_id != Job.id, Hold.attempt != Job.attempt
)
_STRAYED_JOBS = (
    select(Job.id, Job.account_id)
    .outerjoin(Hold, Hold.id == Job.hold_id)
    .where(Job.hold_id.is_not(None), _OTHER_HOLD)
    .limit(FINDINGS_MAX)
)
_LIMITS = select(Entry.account_id, Entry.sequence, cast(Entry.details, Text).label("details")).where(
    Entry.kind == EntryKind.LIMIT
)
_RELEASES: Any = (
    select(
        Release.id,
        Release.account_id,
        Release.artifact_sha256,
        cast(Release.receipt, Text).label("receipt"),
        Entry.account_id.label("payer"),
        Entry.sequence,
        Entry.hash,
        cast(Entry.details, Text).label("details"),
    )
    .outerjoin(Job, Job.id == Release.job_id)
    .outerjoin(Entry, and_(Entry.hold_id == Job.hold_id, ENDS_A_HOLD, Entry.kind == EntryKind.CAPTURE))
    .order_by(Release.id)
    .execution_options(yield_per=_PAGE_ROWS)
)
_COMMITMENTS: Any = (
    select(
        Entry.account_id,
        Entry.sequence,
        Entry.hold_id,
        Entry.job_id,
        cast(Entry.kind, Text).label("kind"),
        cast(Entry.details, Text).label("details"),
    )
    .where(Entry.account_id == bindparam("account_id"), Entry.kind.in_(COMMITTING_KINDS))
    .order_by(Entry.sequence)
    .execution_options(yield_per=_PAGE_ROWS)
)
_ENDS: Any = select(
    Entry.hold_id, cast(Entry.kind, Text).label("kind"), cast(Entry.details, Text).label("details")
).where(ENDS_A_HOLD)
# The fields in the entry of a raise, and the request's columns that must match them.
_RAISE = {
    "epsilon_before": "epsilon_before",
    "epsilon": "epsilon",
    "reason": "reason",
    "requested_with": "requested_with",
    "approved_with": "decided_with",
    "requested_by": "requested_by",
    "approved_by": "decided_by",
}
_APPROVED = select(*(getattr(Decision, name) for name in ("id", "account_id", *_RAISE.values()))).where(
    Decision.action == DecisionAction.RAISE, Decision.state == DecisionState.APPROVED
)


def find_orphans(session: Session) -> Iterator[Finding]:
    """Yield findings for entries without an account, holds without exactly one HOLD entry, and jobs without a hold."""
    for row in session.execute(_WITHOUT_ACCOUNT):
        message = f"There are entries of account {row.account_id}, which does not exist."
        yield Finding(FindingCode.ORPHAN_ENTRIES, message, row.account_id, row.sequence)
    for row in session.execute(_OPENED_TWICE):
        message = f"Entry {row.sequence} of account {row.account_id} opens a hold that was opened before."
        yield Finding(FindingCode.HOLD_REPEATED, message, row.account_id, row.sequence)
    for hold_id, account_id in session.execute(_NEVER_OPENED):
        message = f"Hold {hold_id} has a row, but account {account_id} has no entry that opened it."
        yield Finding(FindingCode.ORPHAN_HOLD, message, account_id)
    for job_id, payer_id in session.execute(_STRAYED_JOBS):
        message = f"Job {job_id} names a hold that is missing, or belongs to another job, account or attempt."
        yield Finding(FindingCode.JOB_MISMATCH, message, payer_id)


def find_unapproved_raises(session: Session) -> Iterator[Finding]:
    """Yield raises without an approved request, and approved requests without a raise."""
    approved = {row.id: row for row in session.execute(_APPROVED)}
    rows = RowReader(session, _TABLES["decisions"]).by(approved)  # with times in their stored form
    for entry in session.execute(_LIMITS).all():
        details = read_object(entry.details)
        if details.get("request_id") is None:
            continue  # a lower limit, which the replay has checked
        request = approved.pop(str(details["request_id"]), None)
        if (
            request is None
            or entry.account_id != request.account_id
            or any(details.get(fact) != getattr(request, name) for fact, name in _RAISE.items())
            or str(details.get("requested_at"))[:_HOUR] != str(rows[request.id]["requested_at"])[:_HOUR]
        ):
            message = f"Entry {entry.sequence} of account {entry.account_id} raises the limit without an approval."
            yield Finding(FindingCode.RAISE_UNAPPROVED, message, entry.account_id, entry.sequence)
    for request in approved.values():
        message = f"Request {request.id} was approved, but no entry of account {request.account_id} raises its limit."
        yield Finding(FindingCode.RAISE_UNAPPROVED, message, request.account_id)


def find_unpaid_releases(session: Session, trusted: Mapping[str, bytes]) -> Iterator[Finding | None]:
    """Yield one value for each release: a finding if the release was not paid for, otherwise None.

    A release's CAPTURE entry must list its artifact, and its receipt must be the signed copy of that entry (I7).
    """
    for row in session.execute(_RELEASES):
        yield _unpaid_release(row, trusted)


def _unpaid_release(row: Row[Any], trusted: Mapping[str, bytes]) -> Finding | None:
    if row.payer is None:
        message = f"Release {row.id} can be read, but no entry captured its cost."
        return Finding(FindingCode.RELEASE_UNPAID, message, row.account_id)
    listed = read_object(row.details).get("artifact_sha256")
    if row.payer != row.account_id or listed is None or listed != row.artifact_sha256:
        message = f"Release {row.id} is not the artifact that entry {row.sequence} of account {row.payer} paid for."
        return Finding(FindingCode.RELEASE_UNPAID, message, row.account_id, row.sequence)
    try:
        statement = check_receipt(read_object(row.receipt), trusted)
        if statement["release_id"] != row.id:
            raise SignatureRefused("The receipt names another release.")
        if (statement["entry"]["sequence"], statement["entry_hash"]) != (row.sequence, row.hash):
            raise SignatureRefused("The receipt contains a different entry from the one that paid for the release.")
    except SignatureRefused as error:
        message = f"The receipt of release {row.id} is refused. {error.message}"
        return Finding(FindingCode.RECEIPT_MISMATCH, message, row.account_id, row.sequence)
    return None


def _finding(code: FindingCode, entry: Row[Any], what: str) -> Finding:
    message = f"Account {entry.account_id}: entry {entry.sequence} {what}."
    return Finding(code, message, entry.account_id, entry.sequence)


def find_changed_rows(session: Session, accounts: Iterable[str], expected: Mapping[str, int]) -> Iterator[Finding]:
    """Yield training orders and releases that differ from the digests in the logs.

    Args:
        accounts: accounts whose logs were replayed.
        expected: the number of entries of COMMITTING_KINDS that the replay has read, by account.
    """
    rows = {name: RowReader(session, _TABLES[name]) for name in ("jobs", "holds", "datasets", "sweeps")}
    releases = RowReader(session, _TABLES["releases"], "job_id")
    for account_id in sorted(accounts):
        count = 0
        for page in session.execute(_COMMITMENTS, {"account_id": account_id}).partitions():
            count += len(page)
            jobs = rows["jobs"].by(entry.job_id for entry in page)
            yield from _changed_orders(session, rows, jobs, [each for each in page if each.kind == EntryKind.HOLD])
            captures = [each for each in page if each.kind == EntryKind.CAPTURE]
            yield from _changed_releases(releases.by(each.job_id for each in captures), jobs, captures)
        if count < expected[account_id]:  # a broken index hides rows that the replay has read
            message = (
                f"Account {account_id}: the log could not be read a second time, because only {count} of "
                f"{expected[account_id]} entries about other rows were found. The database's indexes are damaged; no "
                "row was edited."
            )
            yield Finding(FindingCode.LOG_UNREADABLE, message, account_id)


def _changed_orders(
    session: Session, rows: Mapping[str, RowReader], jobs: Mapping[str, Any], page: Sequence[Row[Any]]
) -> Iterator[Finding]:
    holds = rows["holds"].by(entry.hold_id for entry in page)
    ended = session.execute(_ENDS.where(Entry.hold_id.in_([entry.hold_id for entry in page])))
    ends = {row.hold_id: (row.kind, read_object(row.details)) for row in ended}
    named = {job_id: parts_of_order(job) for job_id, job in jobs.items()}
    places = [place for parts in named.values() for place in parts.values()]
    read = {name: rows[name].by(row_id for table, row_id in places if table == name) for name in ("datasets", "sweeps")}
    for entry in page:
        job, details = jobs.get(str(entry.job_id)), read_object(entry.details)
        if job is None:
            if "order" in details:
                yield _finding(FindingCode.JOB_MISMATCH, entry, f"holds budget for the missing job {entry.job_id}")
            continue
        changed = [name for name in ("hold_id", "account_id") if job[name] != getattr(entry, name)]
        if "order" in details:
            parts = {
                part: (table, read[table][row_id])
                for part, (table, row_id) in named[str(entry.job_id)].items()
                if row_id in read[table]
            }
            updated_at = holds.get(str(entry.hold_id), {}).get("updated_at")
            changed += _changed_parts(details["order"], job, parts)
            changed += _changed_state(job, updated_at, ends.get(entry.hold_id))
        if changed:
            what = f"holds budget for job {entry.job_id}, which was changed since: {', '.join(changed)}"
            yield _finding(FindingCode.JOB_MISMATCH, entry, what)


def _changed_parts(held: Any, job: Mapping[str, Any], parts: Mapping[str, tuple[str, Any]]) -> list[str]:
    order = {name: job[name] for name in ORDER_COLUMNS}
    now: Mapping[str, Any] = _digest(order_digests, order, str(job["secret"]), parts) or {}
    if not isinstance(held, dict):
        return ["order"]
    changed = sorted(part for part in held.keys() | now.keys() if held.get(part) != now.get(part))
    stored = {
        part: row.get("state", "ready") in _STORED and row.get("erased_at") is None for part, (_, row) in parts.items()
    }
    return changed + [f"state of the {part}" for part, is_stored in stored.items() if not is_stored]


def _changed_state(job: Mapping[str, Any], updated_at: object, end: tuple[str, dict[str, Any]] | None) -> list[str]:
    """Return the inconsistencies between a job's state and its hold, and among its columns."""
    state = job["state"]
    sound = (
        (state == "running") == (job["lease_until"] is not None)
        and (state in _ENDED) == (job["finished_at"] is not None)
        and (state == "failed") == (job["failure_code"] is not None)
    )
    published = end is not None and end[1].get("artifact_sha256") is not None
    changed = [] if published or job["release_id"] is None else ["release_id"]
    if end is None:
        return changed if sound and state in _OPEN else [*changed, "state"]
    outcome = outcome_of(*end) or (state, job["failure_code"])
    finished_at = job["finished_at"]
    same_hour = (  # the hold's last entry is dated at the beginning of the hour in which the job ended
        isinstance(finished_at, str)
        and isinstance(updated_at, str)
        and finished_at >= updated_at
        and finished_at[:_HOUR] == updated_at[:_HOUR]
    )
    ended = state in _ENDED and same_hour
    return changed if sound and ended and outcome == (state, job["failure_code"]) else [*changed, "state"]


def _changed_releases(
    releases: Mapping[str, Any], jobs: Mapping[str, Any], page: Sequence[Row[Any]]
) -> Iterator[Finding]:
    for entry in page:
        release, job = releases.get(str(entry.job_id)), jobs.get(str(entry.job_id))
        if release is None or job is None:
            continue  # `find_unpaid_releases` starts from the releases instead
        stored = {"id": release["id"], "sha256": _digest(row_digest, "releases", release)}
        if read_object(entry.details).get("release") != stored:
            what = f"paid for release {release['id']}, whose row was changed since"
            yield _finding(FindingCode.RELEASE_MISMATCH, entry, what)
        if job["release_id"] != release["id"]:
            what = f"paid for a release that job {job['id']} does not name"
            yield _finding(FindingCode.JOB_MISMATCH, entry, what)


def _digest(function: Callable[..., Any], *values: Any) -> Any:
    """Return the digest of some values. If they cannot be hashed, return None, which matches no entry."""
    try:
        return function(*values)
    except (TypeError, ValueError, RecursionError):
        return None
