"""What the data folder knows and the database does not: journals, releases and samples of jobs that it has forgotten.

The folder must be read before the snapshot of the database is taken. A job's row is committed before its runner writes
anything, and a charge before its line in the journal: what lies in the folder by then, the database knows, however much
goes on meanwhile. One that knows less is older than its folder, or another one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Text, cast, func, select
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind, HoldState
from service.audit.findings import Finding, FindingCode
from service.audit.receipts import accounts_with_receipts
from service.audit.rows import read_object
from service.db.base import is_id, release_id_of
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Sample
from service.db.ledger_tables import ACCEPTS_A_LOSS, AccountRow, EntryRow, HoldRow
from service.db.session import among
from service.storage.interface import UNFINISHED, Storage
from service.storage.journals import (
    Journalled,
    Uploaded,
    all_journalled,
    counted,
    journalled,
    journalled_jobs,
    read_uploaded,
)

_NAMED_MAX = 500  # jobs in one statement


@dataclass(frozen=True)
class DataFolder:
    """What lay in a data folder at one moment, by identifier.

    Attributes:
        journals: of jobs.
        releases: folders that are finished, published or not.
        samples: likewise.
        receipts: kept of accounts.
        read: what was read of the journals: all of them, or those that were asked for.
        uploaded: accepted uploads by dataset, by their journal.
        contents: datasets that have content in the storage.
        counts: what noisy counts cost, by account.
    """

    journals: frozenset[str] = frozenset()
    releases: frozenset[str] = frozenset()
    samples: frozenset[str] = frozenset()
    receipts: frozenset[str] = frozenset()
    read: Mapping[str, Journalled] = field(default_factory=dict)
    uploaded: Mapping[str, Uploaded] = field(default_factory=dict)
    contents: frozenset[str] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.journals or self.releases or self.samples or self.receipts)


def read_data_folder(storage: Storage, journals: Collection[str] | None = None) -> DataFolder:
    """Look into a data folder, before the database is asked.

    Args:
        journals: the jobs whose journals are read; None: all.
    """
    if journals is None:
        read = {job_id: shown for job_id, shown in all_journalled(storage).items() if is_id(job_id, "job")}
        names = frozenset(read)
    else:
        names = frozenset(job_id for job_id in journalled_jobs(storage) if is_id(job_id, "job"))
        read = {job_id: journalled(storage, job_id) for job_id in names if job_id in journals}
    return DataFolder(
        journals=names,
        releases=frozenset(name for name in storage.list("releases") if is_id(name, "rel")),
        samples=frozenset(name for name in storage.list("samples") if is_id(name, "smp")),
        receipts=frozenset(accounts_with_receipts(storage)),
        read=read,
        uploaded=read_uploaded(storage),
        contents=frozenset(name.split(".", 1)[0] for name in storage.list("datasets") if not name.endswith(UNFINISHED)),
        counts=counted(storage),
    )


def jobs_with_open_holds(session: Session) -> Collection[str]:
    """Return the jobs that may still charge: those that a database of an earlier moment knows least about."""
    is_open = HoldRow.state.in_((HoldState.HELD, HoldState.ARMED))
    return set(session.scalars(select(HoldRow.job_id).where(is_open)))


def unknown_to(session: Session, folder: DataFolder) -> DataFolder:
    """Return what is there of jobs, samples and accounts that the database has no row of."""
    known = among(session, select(Job.id), Job.id, sorted(folder.journals))
    releases = folder.releases - among(session, select(Release.id), Release.id, sorted(folder.releases))
    if releases:  # of jobs that ended without them, or are about to publish them
        releases -= {release_id_of(job_id) for job_id in session.scalars(select(Job.id))}
    samples = folder.samples - among(session, select(Sample.id), Sample.id, sorted(folder.samples))
    receipts = folder.receipts - among(session, select(AccountRow.id), AccountRow.id, sorted(folder.receipts))
    return DataFolder(folder.journals - known, releases, samples, receipts)


@dataclass(frozen=True)
class Accepted:
    """The proofs that the ACCEPT entries of all logs account for.

    Attributes:
        journals: nano-units by job and account.
        jobs: whose journals are accounted for.
        releases: folders of jobs that the database lacks, as are `samples`.
        checkpoints: hashes.
        witnesses: by account, the sequence and hash of entries that were signed.
    """

    journals: Counter[tuple[str, str]] = field(default_factory=Counter)
    jobs: set[str] = field(default_factory=set)
    releases: set[str] = field(default_factory=set)
    samples: set[str] = field(default_factory=set)
    checkpoints: set[str] = field(default_factory=set)
    witnesses: dict[str, set[tuple[int, str]]] = field(default_factory=dict)


def read_accepted(session: Session, account_id: str | None = None) -> Accepted:
    """Return the proofs that the logs account for; with an account, those of its log alone."""
    found = Accepted()
    entries = select(EntryRow.account_id, cast(EntryRow.details, Text)).where(ACCEPTS_A_LOSS)
    for account, details in session.execute(
        entries if account_id is None else entries.where(EntryRow.account_id == account_id)
    ):
        said = read_object(details)
        for job_id, nano in said.get("journals", {}).items():
            found.journals[job_id, account] += nano
            found.jobs.add(job_id)
        found.releases.update(said.get("releases", ()))
        found.samples.update(said.get("samples", ()))
        found.checkpoints.update([said["checkpoint"]] if said.get("checkpoint") else [])
        found.witnesses.setdefault(account, set()).update((each[0], each[1]) for each in said.get("witnesses", ()))
    return found


@dataclass(frozen=True)
class Gaps:
    """What a data folder proves, a database lacks and no ACCEPT entry accounts for.

    Attributes:
        journals: what journals show and the ledger lacks, by job.
        unknown: the jobs among them that the database does not know.
        counts: nano-units of noisy counts by account.
        releases: folders of jobs that the database does not know, as are `samples`.
        datasets: uploads by dataset; None where no journal says whose it is.
    """

    journals: Mapping[str, list[Missing]]
    unknown: frozenset[str]
    counts: Mapping[str, int]
    releases: frozenset[str]
    samples: frozenset[str]
    datasets: Mapping[str, Uploaded | None]

    def __bool__(self) -> bool:
        return bool(self.journals or self.counts or self.releases or self.samples or self.datasets)


def find_gaps(session: Session, storage: Storage, folder: DataFolder) -> Gaps:
    """Compare a data folder, which was read before the session's snapshot, with the database."""
    unknown, settled = unknown_to(session, folder), read_accepted(session)
    return Gaps(
        journals=not_counted(session, storage, folder, unknown, settled),
        unknown=unknown.journals,
        counts=counts_missing(session, folder, settled),
        releases=unknown.releases - settled.releases,
        samples=unknown.samples - settled.samples,
        datasets=_datasets_missing(session, folder),
    )


def find_forgotten(session: Session, storage: Storage, folder: DataFolder) -> Iterator[Finding]:
    """Yield journals, releases, samples and datasets that the database lacks, and journals that show more than it has
    charged.
    """
    gaps = find_gaps(session, storage, folder)
    for account_id, nano in gaps.counts.items():
        known = session.get(AccountRow, account_id) is not None
        message = f"Noisy counts of account {account_id} were paid for with {nano} nano-units that the ledger lacks."
        code = FindingCode.JOURNAL_AHEAD if known else FindingCode.JOURNAL_UNKNOWN
        yield Finding(code, message, account_id if known else None)
    for job_id, shares in gaps.journals.items():
        for share in shares:
            of = "" if share.account_id is None else f" of account {share.account_id}"
            message = f"The journal of job {job_id} shows releases for {share.shown_nano} nano-units{of}; "
            if job_id in gaps.unknown:
                yield Finding(FindingCode.JOURNAL_UNKNOWN, f"{message}the database does not know the job: {_WHY}")
            else:
                message += f"the ledger lacks {share.missing_nano} of them, so it is older than the journal."
                yield Finding(FindingCode.JOURNAL_AHEAD, message, share.account_id)
    for code, names, noun in (
        (FindingCode.RELEASE_UNKNOWN, gaps.releases, "release"),
        (FindingCode.SAMPLE_UNKNOWN, gaps.samples, "sample"),
    ):
        for name in sorted(names):
            yield Finding(code, f"The folder of {noun} {name} is of a job that the database does not know: {_WHY}")
    for name in sorted(gaps.datasets):
        message = f"Images were uploaded into dataset {name}, and the database does not know them: {_WHY}"
        yield Finding(FindingCode.DATASET_UNKNOWN, message)


def _datasets_missing(session: Session, folder: DataFolder) -> dict[str, Uploaded | None]:
    """Return the datasets of which the journal shows an upload, or the storage content, that the database lacks."""
    uploaded = sorted(folder.uploaded)
    accepted = among(session, select(Dataset.id).where(Dataset.ready_at.is_not(None)), Dataset.id, uploaded)
    contents = sorted(name for name in folder.contents if is_id(name, "ds") and name not in folder.uploaded)
    known = among(session, select(Dataset.id), Dataset.id, contents)
    found: dict[str, Uploaded | None] = {name: folder.uploaded[name] for name in uploaded if name not in accepted}
    return found | dict.fromkeys(name for name in contents if name not in known)


@dataclass(frozen=True)
class Missing:
    """What a journal shows of one account's budget, and how much of it the ledger does not count, in nano-units.

    `account_id` is None where the journal is of a time when its lines named none.
    """

    account_id: str | None
    shown_nano: int
    missing_nano: int


def not_counted(
    session: Session, storage: Storage, folder: DataFolder, unknown: DataFolder, settled: Accepted
) -> dict[str, list[Missing]]:
    """Return, by job, what of its journal the ledger neither counts nor accounts for, for each account that pays.

    Args:
        unknown: `unknown_to` the database.
        settled: `read_accepted` of the database.
    """
    charged = _charged(session, folder.read.keys() - unknown.journals)
    missing: dict[str, list[Missing]] = {}
    for job_id in sorted(folder.journals):
        read = folder.read.get(job_id)
        if job_id in unknown.journals:
            journal, known = read or journalled(storage, job_id), {}
        elif read is not None:
            journal, known = read, charged.get(job_id, {})
        else:
            continue
        short = []
        own = journal.account_id or (next(iter(known)) if len(known) == 1 else None)
        for each, shown in [(own, journal.price_nano), *journal.further.items()]:
            lacking = shown - known.get(each or "", 0) - settled.journals[job_id, each or ""]
            if lacking > 0 or (job_id in unknown.journals and job_id not in settled.jobs):
                short.append(Missing(each, shown, lacking))
        missing |= {job_id: short} if short else {}
    return missing


def counts_missing(session: Session, folder: DataFolder, settled: Accepted) -> dict[str, int]:
    """Return, by account, how many nano-units of noisy counts the ledger does not show."""
    if not folder.counts:
        return {}
    entries = select(EntryRow.account_id, func.sum(EntryRow.amount_nano)).where(EntryRow.kind == EntryKind.COUNT)
    shown = {row[0]: int(row[1]) for row in session.execute(entries.group_by(EntryRow.account_id))}
    missing = {
        each: nano - shown.get(each, 0) - settled.journals["counts", each] for each, nano in folder.counts.items()
    }
    return {account_id: nano for account_id, nano in sorted(missing.items()) if nano > 0}


_WHY = "it is older than the data folder, or that of another installation."


def _charged(session: Session, job_ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """Charges of the holds of jobs, by job and account."""
    wanted = set(job_ids)
    query = select(HoldRow.job_id, HoldRow.account_id, HoldRow.charged_nano)
    if len(wanted) <= _NAMED_MAX:
        query = query.where(HoldRow.job_id.in_(wanted))
    charged: dict[str, dict[str, int]] = {}
    for row in session.execute(query):
        if row.job_id in wanted:
            charged.setdefault(row.job_id, {})[row.account_id] = row.charged_nano
    return charged
