"""What the log commits to beside itself: trainings as they were ordered, releases, samples, datasets. Reads only.

Entries are read in pages, and the rows they speak of as they are stored (`RowReader`). Entries from before they
committed to anything are compared as far as they say something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Text, bindparam, cast, exists, select
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind
from service.audit.findings import Finding, FindingCode
from service.audit.rows import RowReader, read_object
from service.db.base import Base
from service.db.ledger_tables import ENDS_A_HOLD, AccountRow, EntryRow
from service.ledger.chain import body_hash
from service.ledger.commitments import (
    DECLARATION,
    FINGERPRINTS,
    ORDER_COLUMNS,
    evaluation_digest,
    fingerprints_digest,
    keyed_digest,
    order_digests,
    outcome_of,
    parts_of_order,
    row_digest,
    sample_digest,
)

_PAGE_ROWS = 500
_UNREAD_MAX = 500  # accounts; if there are more, the database is broken, and that is reported
_TABLES = Base.metadata.tables
FACT_KINDS = (EntryKind.HOLD, EntryKind.CAPTURE, EntryKind.SAMPLE, EntryKind.FACT)
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
# What is found when a row is not what an entry of the kind `fact` says, by the row's table.
_FACTS = {"datasets": FindingCode.DATASET_MISMATCH, "evaluations": FindingCode.RELEASE_MISMATCH}
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


def find_changed_facts(
    session: Session, accounts: Iterable[str], expected: Mapping[str, int], *, fingerprints: bool
) -> Iterator[Finding]:
    """Yield rows beside the logs that are not what the logs commit to.

    Args:
        session: reading one moment.
        accounts: whose logs were replayed.
        expected: by account, how many entries of FACT_KINDS the replay has read.
        fingerprints: compare those too, which reads all of them.
    """
    checks = _Checks(session, fingerprints=fingerprints)
    read = set(accounts)
    for account_id in sorted(read):
        after = count = 0
        while rows := session.execute(_ENTRIES, {"account_id": account_id, "after": after}).all():
            page = [_Said(r.account_id, r.sequence, r.hold_id, r.job_id, r.kind, read_object(r.details)) for r in rows]
            after, count = page[-1].sequence, count + len(page)
            for kind, check in checks.by_kind.items():
                yield from check([said for said in page if said.kind == kind])
        if count < expected[account_id]:  # an index that is broken hides rows, and the replay has read the rows
            read.discard(account_id)
            message = (
                f"Account {account_id}: the log could not be read a second time: {count} of {expected[account_id]} "
                "entries about other rows were found. The database's indexes are damaged; no row was edited."
            )
            yield Finding(FindingCode.LOG_UNREADABLE, message, account_id)
    yield from checks.unsaid(read)


class _Checks:
    """The comparisons of one verification."""

    def __init__(self, session: Session, *, fingerprints: bool) -> None:
        self._session, self._fingerprints = session, fingerprints
        self._written_down: dict[str, set[object]] = {"datasets": set(), "evaluations": set(), "samples": set()}
        self._erased = set(_erasures(session))
        read = ("jobs", "holds", "datasets", "sweeps", "evaluations")
        self._rows = {name: RowReader(session, _TABLES[name]) for name in read}
        self._of_job = {name: RowReader(session, _TABLES[name], "job_id") for name in ("releases", "samples")}
        self.by_kind: dict[str, Callable[[Sequence[_Said]], Iterator[Finding]]] = {
            EntryKind.HOLD.value: self._orders,
            EntryKind.CAPTURE.value: self._releases,
            EntryKind.SAMPLE.value: self._samples,
            EntryKind.FACT.value: self._facts,
        }

    def _orders(self, page: Sequence[_Said]) -> Iterator[Finding]:
        """Trainings against the entries that hold their price, and those that end them."""
        jobs = self._rows["jobs"].by(said.job_id for said in page)
        holds = self._rows["holds"].by(said.hold_id for said in page)
        ends = self._ends(page)
        named = {job_id: parts_of_order(job) for job_id, job in jobs.items()}
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
            changed = _changed_order(said, job, parts)
            if "order" in said.details:
                stored = {
                    part: row.get("state", "ready") in _STORED and row.get("erased_at") is None
                    for part, (_, row) in parts.items()
                }
                changed += [f"state of the {part}" for part, still in stored.items() if not still]
            updated_at = holds.get(str(said.hold_id), {}).get("updated_at")
            changed += _changed_state(said, job, updated_at, ends.get(said.hold_id))
            if changed:
                what = f"holds for job {said.job_id}, which is another one now: {', '.join(changed)}"
                yield said.found(FindingCode.JOB_MISMATCH, what)

    def _ends(self, page: Sequence[_Said]) -> dict[str | None, tuple[str, dict[str, Any]]]:
        rows = self._session.execute(_ENDS.where(EntryRow.hold_id.in_([said.hold_id for said in page])))
        return {row.hold_id: (row.kind, read_object(row.details)) for row in rows}

    def _releases(self, page: Sequence[_Said]) -> Iterator[Finding]:
        """Releases against the captures that paid for them, and the trainings that made them."""
        releases = self._of_job["releases"].by(said.job_id for said in page)
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

    def _samples(self, page: Sequence[_Said]) -> Iterator[Finding]:
        """Samples, and the jobs that drew them."""
        samples = self._of_job["samples"].by(said.job_id for said in page)
        jobs = self._rows["jobs"].by(said.job_id for said in page)
        for said in page:
            self._written_down["samples"].add(said.job_id)
            if "sample" not in said.details:
                continue  # from before samples were committed to
            sample, job = samples.get(str(said.job_id)), jobs.get(str(said.job_id))
            if sample is None or job is None:
                yield said.found(FindingCode.SAMPLE_MISMATCH, f"records a sample of job {said.job_id} that is gone")
                continue
            written = said.details["sample"]
            if written != {"id": sample["id"], **_outcome(written, _digest(sample_digest, sample, job), job)}:
                what = f"records sample {sample['id']}, whose row or job says something else now"
                yield said.found(FindingCode.SAMPLE_MISMATCH, what)

    def _facts(self, page: Sequence[_Said]) -> Iterator[Finding]:
        """Rows that were written down once they were complete."""
        for table, code in _FACTS.items():
            ours = [said for said in page if said.details.get("table") == table]
            rows = self._rows[table].by(said.details.get("id") for said in ours)
            if table == "evaluations":
                jobs = self._rows["jobs"].by(row["job_id"] for row in rows.values())
                with_jobs = {name: (row, jobs.get(str(row["job_id"]))) for name, row in rows.items()}
                found = {
                    name: None if job is None else _digest(evaluation_digest, row, job)
                    for name, (row, job) in with_jobs.items()
                }
            else:
                with_jobs, found = {}, {name: _digest(row_digest, table, row) for name, row in rows.items()}
            for said in ours:
                row_id = said.details.get("id")
                row = rows.get(str(row_id))
                self._written_down[table].add(row_id)
                if "erased" in said.details or (said.account_id, row_id, DECLARATION) in self._erased:
                    if row is None or row["erased_at"] is None or row["account_id"] != said.account_id:
                        yield said.found(code, f"writes down {row_id}, which was erased and is not, or is gone")
                    elif "erased" not in said.details:
                        yield from self._whose_fingerprints(said, row)
                    continue
                job = with_jobs.get(str(row_id), (None, None))[1]
                wanted = _outcome(said.details, found.get(str(row_id)), job)
                if row is None or any(said.details.get(name) != digest for name, digest in wanted.items()):
                    yield said.found(code, f"writes down {row_id}, whose row is gone or says something else now")
                elif table == "datasets":
                    yield from self._dataset(said, row)

    def _dataset(self, said: _Said, row: Mapping[str, Any]) -> Iterator[Finding]:
        """What the digest of a dataset's row does not say: where it stands, and its images' fingerprints."""
        if row["account_id"] != said.account_id or row["state"] not in _STORED or row["erased_at"] is not None:
            what = f"writes down {row['id']}, which is of another account, takes another upload or is hidden"
            yield said.found(FindingCode.DATASET_MISMATCH, what)
        yield from self._whose_fingerprints(said, row)

    def _whose_fingerprints(self, said: _Said, row: Mapping[str, Any]) -> Iterator[Finding]:
        """Compare the fingerprints of a dataset's images, unless the log says that they were erased, too."""
        if not self._fingerprints or (said.account_id, row["id"], FINGERPRINTS) in self._erased:
            return
        table = _TABLES["fingerprints"]
        brought = select(table.c.digest).where(
            table.c.dataset_id == row["id"], table.c.upload_attempt == row["upload_attempt"]
        )
        digests = (bytes(digest) for digest in self._session.scalars(brought.order_by(table.c.digest)))
        if said.details.get("fingerprints") != fingerprints_digest(row["vault_key_id"], digests):
            what = f"writes down {row['id']}, whose images' fingerprints were changed"
            yield said.found(FindingCode.FINGERPRINT_MISMATCH, what)

    def unsaid(self, accounts: Collection[str]) -> Iterator[Finding]:
        """Yield rows that some entry should have written down, and none did, of accounts whose logs were read whole.

        What a log does not say that was read in part may be in the rest.
        """
        datasets, samples, releases = _TABLES["datasets"], _TABLES["samples"], _TABLES["releases"]
        stored = select(datasets.c.id, datasets.c.account_id).where(
            datasets.c.vault_key_id.is_not(None), datasets.c.account_id.is_not(None)
        )
        for dataset_id, account_id in self._session.execute(stored):
            if dataset_id not in self._written_down["datasets"] and account_id in accounts:
                message = f"Dataset {dataset_id} has content, but no entry of account {account_id} writes it down."
                yield Finding(FindingCode.DATASET_MISMATCH, message, account_id)
        unread = sorted(set(self._session.scalars(select(AccountRow.id))).difference(accounts))
        if len(unread) > _UNREAD_MAX:
            return

        def of_read_accounts(table: Any) -> Any:
            return ~exists().where(releases.c.id == table.c.release_id, releases.c.account_id.in_(unread))

        evaluations = _TABLES["evaluations"]
        finished = select(evaluations.c.id).where(evaluations.c.finished_at.is_not(None))
        for name in self._session.scalars(finished.where(of_read_accounts(evaluations))):
            if name not in self._written_down["evaluations"]:
                message = f"Evaluation {name} has results, but no entry writes them down."
                yield Finding(FindingCode.RELEASE_MISMATCH, message)
        drawn = select(samples.c.id, samples.c.job_id).where(samples.c.sha256.is_not(None))
        for sample_id, job_id in self._session.execute(drawn.where(of_read_accounts(samples))):
            if job_id not in self._written_down["samples"]:
                message = f"Sample {sample_id} can be read, but no entry records it."
                yield Finding(FindingCode.SAMPLE_MISMATCH, message)


def _erasures(session: Session) -> Iterator[tuple[str, str, str]]:
    """Account, dataset and what of it entries say was erased. Where a training was ordered on it, its order tells."""
    facts = select(EntryRow.account_id, cast(EntryRow.details, Text)).where(EntryRow.kind == EntryKind.FACT)
    for account_id, details in session.execute(facts.execution_options(yield_per=_PAGE_ROWS)):
        said = read_object(details)
        if "erased" in said:
            yield account_id, str(said.get("id")), str(said["erased"])


def _changed_order(said: _Said, job: Mapping[str, Any], parts: Mapping[str, tuple[str, Any]]) -> list[str]:
    """Name what is not as it was held for."""
    changed = [name for name in ("hold_id", "account_id") if job[name] != getattr(said, name)]
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


def _outcome(written: Mapping[str, Any], digest: str | None, job: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Return the digest that an entry has to say, under the name that it says it by: keyed, or from before that."""
    if "hmac_sha256" not in written:
        return {"sha256": digest}
    return {"hmac_sha256": None if digest is None or job is None else keyed_digest(digest, str(job["secret"]))}


def _digest(function: Callable[..., Any], *values: Any) -> Any:
    """Return a digest; None where the values have none, which no entry says."""
    try:
        return function(*values)
    except (TypeError, ValueError, RecursionError):
        return None
