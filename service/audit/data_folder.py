"""What the data folder knows and the database does not: journals, releases and samples of jobs that it has forgotten.

The folder must be read before the snapshot of the database is taken. A job's row is committed before its runner writes
anything, and a charge before its line in the journal: what lies in the folder by then, the database knows, however much
goes on meanwhile. One that knows less is older than its folder, or another one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind, HoldState
from service.audit import carried
from service.audit.findings import Finding, FindingCode
from service.audit.receipts import accounts_with_receipts
from service.audit.shortfalls import epsilon_of, what_makes_up
from service.db.base import is_id, release_id_of
from service.db.job_tables import Job, Release, Sample
from service.db.ledger_tables import AccountRow, EntryRow, HoldRow
from service.db.session import among
from service.storage.interface import Storage
from service.storage.journals import Journalled, all_journalled, counted, journalled, journalled_jobs

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
        carried: notes of what was carried forward.
        counts: what noisy counts cost, by account.
    """

    journals: frozenset[str] = frozenset()
    releases: frozenset[str] = frozenset()
    samples: frozenset[str] = frozenset()
    receipts: frozenset[str] = frozenset()
    read: Mapping[str, Journalled] = field(default_factory=dict)
    carried: tuple[carried.Note, ...] = ()
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
        carried=tuple(carried.read_notes(storage)),
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


def find_forgotten(session: Session, storage: Storage, folder: DataFolder) -> Iterator[Finding]:
    """Yield journals and releases of jobs that the database does not know, and journals that show more than it has
    charged. Samples cost nothing, so one that it does not know is no finding.
    """
    unknown = unknown_to(session, folder)
    missing = not_counted(session, storage, folder, unknown)
    since = published_since(session, folder, missing)
    together: Counter[str | None] = Counter()
    for shares in missing.values():
        for share in shares:
            together[share.account_id] += share.missing_nano
    counts = counts_missing(session, folder)
    together.update(counts)
    accounts = _accounts(session, together)
    for account_id, nano in counts.items():
        row = accounts.get(account_id)
        message = f"Noisy counts of account {account_id} were paid for with {nano} nano-units that the ledger does not "
        message += "show, so it is older than their journal."
        if row is None:
            yield Finding(FindingCode.JOURNAL_UNKNOWN, message)
        else:
            message += what_makes_up(row, together[account_id])
            yield Finding(FindingCode.JOURNAL_AHEAD, message, account_id)
    for job_id, shares in missing.items():
        for share in shares:
            finding = _forgotten(job_id, share, together, accounts, known=job_id not in unknown.journals)
            if job_id in since:
                finding = replace(finding, message=f"{finding.message} It has published release {since[job_id]}.")
            yield finding
    for note in folder.carried:
        for account_id, nano in carried.forgotten(session, note):
            message = (
                f"{nano} nano-units of account {account_id} were carried forward ({note.stamp}) in another database. "
                "This one does not know of it: it is of a backup from before."
            )
            yield Finding(FindingCode.JOURNAL_UNKNOWN, message)
    for name in sorted(unknown.releases):
        message = f"The folder of release {name} is of a job that the database does not know: {_WHY}"
        yield Finding(FindingCode.RELEASE_UNKNOWN, message)


@dataclass(frozen=True)
class Missing:
    """What a journal shows of one account's budget, and how much of it the ledger does not count, in nano-units.

    `account_id` is None where the journal is of a time when its lines named none.
    """

    account_id: str | None
    shown_nano: int
    missing_nano: int


def not_counted(
    session: Session, storage: Storage, folder: DataFolder, unknown: DataFolder
) -> dict[str, list[Missing]]:
    """Return, by job, what of its journal the ledger does not count, for each account that pays.

    Args:
        unknown: `unknown_to` the database.
    """
    charged = _charged(session, folder.read.keys() - unknown.journals)
    missing: dict[str, list[Missing]] = {}
    for job_id in sorted(folder.journals):
        read = folder.read.get(job_id)
        if job_id in unknown.journals:
            journal = read or journalled(storage, job_id)
            missing[job_id] = [Missing(account_id, shown, shown) for account_id, shown in journal.payers]
        elif read is not None:
            known = charged.get(job_id, {})
            own = next(iter(known)) if len(known) == 1 else read.account_id  # older lines name no account
            payers = [(own, read.price_nano), *read.further.items()]
            short = [Missing(each, shown, shown - known.get(each or "", 0)) for each, shown in payers]
            short = [share for share in short if share.missing_nano > 0]
            missing |= {job_id: short} if short else {}
    return missing


def counts_missing(session: Session, folder: DataFolder) -> dict[str, int]:
    """Return, by account, how many nano-units of noisy counts the ledger does not show."""
    if not folder.counts:
        return {}
    entries = select(EntryRow.account_id, func.sum(EntryRow.amount_nano)).where(EntryRow.kind == EntryKind.COUNT)
    shown = {row[0]: int(row[1]) for row in session.execute(entries.group_by(EntryRow.account_id))}
    missing = {account_id: nano - shown.get(account_id, 0) for account_id, nano in folder.counts.items()}
    return {account_id: nano for account_id, nano in sorted(missing.items()) if nano > 0}


def published_since(session: Session, folder: DataFolder, job_ids: Collection[str]) -> dict[str, str]:
    """Return, by job, the releases that lie there and that the database does not know as published.

    They were paid for, and go to the trash when their jobs, which it may know, are discarded and nobody moves them.
    """
    names = {job_id: release_id_of(job_id) for job_id in job_ids if release_id_of(job_id) in folder.releases}
    known = among(session, select(Release.id), Release.id, sorted(names.values()))
    return {job_id: name for job_id, name in names.items() if name not in known}


_WHY = "it is older than the data folder, or that of another installation."


def _forgotten(
    job_id: str,
    share: Missing,
    together: Mapping[str | None, int],
    accounts: Mapping[str, Row[Any]],
    *,
    known: bool,
) -> Finding:
    row = accounts.get(share.account_id or "")
    of = "" if share.account_id is None else f" of account {share.account_id}"
    worth = "" if row is None else epsilon_of(row, share.shown_nano)
    message = f"The journal of job {job_id} shows releases for {share.shown_nano} nano-units{worth}{of}; "
    if known:
        charged_nano = share.shown_nano - share.missing_nano
        message += f"the ledger has charged {charged_nano}, so it is older than the journal."
    else:
        message += f"the database does not know the job: {_WHY}"
    if row is not None and share.missing_nano:
        total_nano = together[share.account_id]
        message += f" All journals of that account show {total_nano} that are not counted."
        message += what_makes_up(row, total_nano)
    if known:
        return Finding(FindingCode.JOURNAL_AHEAD, message, share.account_id)
    return Finding(FindingCode.JOURNAL_UNKNOWN, message)


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


_ACCOUNTS: Any = select(
    AccountRow.id, AccountRow.capacity_nano, AccountRow.epsilon, AccountRow.delta, AccountRow.rate, AccountRow.base
)


def _accounts(session: Session, ids: Iterable[str | None]) -> dict[str, Row[Any]]:
    wanted = [account_id for account_id in ids if account_id is not None]
    rows = session.execute(_ACCOUNTS.where(AccountRow.id.in_(wanted)))
    return {row.id: row for row in rows.all()}
