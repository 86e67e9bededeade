"""What the log commits to beside itself: trainings as they were ordered, and releases. Reads only.

Entries are read in pages, and the rows they speak of as they are stored (`RowReader`). Entries from before they
committed to anything are compared as far as they say something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Text, bindparam, cast, select
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind
from service.audit.findings import Finding, FindingCode
from service.audit.rows import RowReader, read_object
from service.db.base import Base
from service.db.ledger_tables import ENDS_A_HOLD, EntryRow
from service.ledger.chain import body_hash
from service.ledger.commitments import ORDER_COLUMNS, order_digests, outcome_of, parts_of_order, row_digest

_PAGE_ROWS = 500
_TABLES = Base.metadata.tables
FACT_KINDS = (EntryKind.HOLD, EntryKind.CAPTURE)
_ENTRIES: Any = (
    select(
        EntryRow.account_id,
        EntryRow.sequence,
        EntryRow.hold_id,
        EntryRow.job_id,
        cast(EntryRow.kind, Text).label("kind"),
        cast(EntryRow.details, Text).label("details"),
    )
    .where(EntryRow.kind.in_(FACT_KINDS))
    .where(EntryRow.account_id == bindparam("account_id"), EntryRow.sequence > bindparam("after"))
    .order_by(EntryRow.sequence)
    .limit(_PAGE_ROWS)
)
_ENDS: Any = select(
    EntryRow.hold_id, cast(EntryRow.kind, Text).label("kind"), cast(EntryRow.details, Text).label("details")
).where(ENDS_A_HOLD)
_HOUR = len("2026-01-02T03")
_OPEN, _ENDED = ("queued", "running"), ("succeeded", "failed", "cancelled")
_STORED = (
    "ready",
    "withdrawing",
    "failed",
    "deleting",
    "deleted",
)  # of a dataset whose content has arrived: it takes no other


class _Said(NamedTuple):
    """An entry and what it says."""

    account_id: str
    sequence: int
    hold_id: str | None
    job_id: str | None
    kind: str
    details: dict[str, Any]

    def found(self, code: FindingCode, what: str) -> Finding:
        message = f"Account {self.account_id}: entry {self.sequence} {what}."
        return Finding(code, message, self.account_id, self.sequence)


def find_changed_facts(session: Session, accounts: Iterable[str], expected: Mapping[str, int]) -> Iterator[Finding]:
    """Yield rows beside the logs that are not what the logs commit to.

    Args:
        session: reading one moment.
        accounts: whose logs were replayed.
        expected: by account, how many entries of FACT_KINDS the replay has read.
    """
    checks = _Checks(session)
    for account_id in sorted(accounts):
        after = count = 0
        while rows := session.execute(_ENTRIES, {"account_id": account_id, "after": after}).all():
            page = [_Said(r.account_id, r.sequence, r.hold_id, r.job_id, r.kind, read_object(r.details)) for r in rows]
            after, count = page[-1].sequence, count + len(page)
            for kind, check in checks.by_kind.items():
                yield from check([said for said in page if said.kind == kind])
        if count < expected[account_id]:  # an index that is broken hides rows, and the replay has read the rows
            message = (
                f"Account {account_id}: the log could not be read a second time: {count} of {expected[account_id]} "
                "entries about other rows were found. The database's indexes are damaged; no row was edited."
            )
            yield Finding(FindingCode.LOG_UNREADABLE, message, account_id)


class _Checks:
    """The comparisons of one verification."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows = {name: RowReader(session, _TABLES[name]) for name in ("jobs", "holds", "datasets", "sweeps")}
        self._release_of_job = RowReader(session, _TABLES["releases"], "job_id")
        self.by_kind: dict[str, Callable[[Sequence[_Said]], Iterator[Finding]]] = {
            EntryKind.HOLD.value: self._orders,
            EntryKind.CAPTURE.value: self._releases,
        }

    def _orders(self, page: Sequence[_Said]) -> Iterator[Finding]:
        """Trainings against the entries that hold their price, and those that end them."""
        jobs = self._rows["jobs"].by(said.job_id for said in page)
        holds = self._rows["holds"].by(said.hold_id for said in page)
        ends = self._ends(page)
        further = _further(self._session, jobs)
        named = {job_id: parts_of_order(job, further.get(job_id, _ALONE).datasets) for job_id, job in jobs.items()}
        places = [place for parts in named.values() for place in parts.values()]
        read = {
            name: self._rows[name].by(row_id for table, row_id in places if table == name)
            for name in ("datasets", "sweeps")
        }
        for said in page:
            job = jobs.get(str(said.job_id))
            if job is None:
                if "order" in said.details:
                    yield said.found(FindingCode.JOB_MISMATCH, f"holds for job {said.job_id}, which is gone")
                continue
            parts = {
                part: (table, read[table][row_id])
                for part, (table, row_id) in named[str(said.job_id)].items()
                if row_id in read[table]
            }
            together = further.get(str(said.job_id), _ALONE)
            changed = _changed_order(said, job, parts, together)
            if "order" in said.details:
                stored = {
                    part: row.get("state", "ready") in _STORED and row.get("erased_at") is None
                    for part, (_, row) in parts.items()
                }
                changed += [f"state of the {part}" for part, still in stored.items() if not still]
            updated_at = together.updated_at or holds.get(str(said.hold_id), {}).get("updated_at")
            changed += _changed_state(said, job, updated_at, ends.get(said.hold_id))
            if changed:
                what = f"holds for job {said.job_id}, which is another one now: {', '.join(changed)}"
                yield said.found(FindingCode.JOB_MISMATCH, what)

    def _ends(self, page: Sequence[_Said]) -> dict[str | None, tuple[str, dict[str, Any]]]:
        rows = self._session.execute(_ENDS.where(EntryRow.hold_id.in_([said.hold_id for said in page])))
        return {row.hold_id: (row.kind, read_object(row.details)) for row in rows}

    def _releases(self, page: Sequence[_Said]) -> Iterator[Finding]:
        """Releases against the captures that paid for them, and the trainings that made them."""
        releases = self._release_of_job.by(said.job_id for said in page)
        jobs = self._rows["jobs"].by(said.job_id for said in page)
        for said in page:
            release, job = releases.get(str(said.job_id)), jobs.get(str(said.job_id))
            if release is None or job is None:
                continue  # that a readable release has its job and capture is compared from the other side
            digest = _digest(row_digest, "releases", release)
            if said.details.get("release", {"id": release["id"], "sha256": digest}) != {
                "id": release["id"],
                "sha256": digest,
            }:
                what = f"paid for release {release['id']}, whose row says something else now"
                yield said.found(FindingCode.RELEASE_MISMATCH, what)
            if job["release_id"] != release["id"]:
                yield said.found(FindingCode.JOB_MISMATCH, f"paid for a release that job {job['id']} does not name")


class _Further(NamedTuple):
    """What a training on several datasets has besides its own: datasets by position, the accounts that they belong to,
    and when the last of its holds was moved, by whichever clock.
    """

    datasets: dict[int, str]
    accounts: frozenset[str]
    updated_at: str | None


_ALONE = _Further({}, frozenset(), None)


def _further(session: Session, job_ids: Iterable[str]) -> dict[str, _Further]:
    table, holds = _TABLES["further_datasets"], _TABLES["holds"]
    columns = table.c.job_id, table.c.position, table.c.dataset_id, table.c.account_id
    rows = session.execute(select(*columns).where(table.c.job_id.in_(list(job_ids)))).all()
    moved = RowReader(session, holds)
    found = {}
    for job_id in {row.job_id for row in rows}:
        own = [row for row in rows if row.job_id == job_id]
        held = moved.by(session.scalars(select(holds.c.id).where(holds.c.job_id == job_id)).all())
        updated = [str(hold["updated_at"]) for hold in held.values()]
        datasets = {row.position: row.dataset_id for row in own}
        found[job_id] = _Further(datasets, frozenset(row.account_id for row in own), max(updated, default=None))
    return found


def _changed_order(
    said: _Said, job: Mapping[str, Any], parts: Mapping[str, tuple[str, Any]], further: _Further
) -> list[str]:
    """Name what is not as it was held for."""
    if said.account_id != job["account_id"] and said.account_id in further.accounts:
        changed = []  # the hold of another account, which the job does not name
    else:
        changed = [name for name in ("hold_id", "account_id") if job[name] != getattr(said, name)]
    payers = sorted({str(job["account_id"]), *further.accounts}) if further.datasets else None
    changed += ["accounts"] if said.details.get("accounts") != payers else []
    held = said.details.get("order")
    if isinstance(held, dict):
        order = {name: job[name] for name in ORDER_COLUMNS}
        now: Mapping[str, Any] = _digest(order_digests, order, str(job["secret"]), parts) or {}
        return changed + sorted(part for part in held.keys() | now.keys() if held.get(part) != now.get(part))
    now = {name: job[name] for name in ("dataset_id", "recipe", "epsilon")}
    now["plan_sha256"] = _digest(body_hash, job["plan"])
    return changed + sorted(name for name, value in now.items() if said.details.get(name, value) != value)


def _in_that_hour(finished_at: object, updated_at: object) -> bool:
    """Tell whether a job ended in the hour that its hold's last entry bears, or in that of the hold's beginning."""
    if not (isinstance(finished_at, str) and isinstance(updated_at, str)):
        return False
    return finished_at >= updated_at and finished_at[:_HOUR] == updated_at[:_HOUR]


def _changed_state(
    said: _Said, job: Mapping[str, Any], updated_at: object, end: tuple[str, dict[str, Any]] | None
) -> list[str]:
    """Compare a job's state with its hold, and with what must go together in any case."""
    if "order" not in said.details:
        return []
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
    told = outcome_of(*end) or (state, job["failure_code"])
    ended = state in _ENDED and _in_that_hour(job["finished_at"], updated_at)
    return changed if sound and ended and told == (state, job["failure_code"]) else [*changed, "state"]


def _digest(function: Callable[..., Any], *values: Any) -> Any:
    """Return a digest; None where the values have none, which no entry says."""
    try:
        return function(*values)
    except (TypeError, ValueError, RecursionError):
        return None
