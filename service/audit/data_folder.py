"""Find spending and uploads that the data folder proves and the database lacks.

Read the folder before taking the snapshot of the database. The database commits a job, a charge or an upload before
files appear in the folder. So a database that lacks a proof is older than its folder, or belongs to another folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Text, cast, select
from sqlalchemy.orm import Session

from obscura.wire.words import HoldState
from privacy.accounting.filter import open_filter
from privacy.errors import PrivacyError
from service.audit.findings import Finding, FindingCode
from service.audit.proofs import RECEIPT_NAME, Proofs
from service.audit.rows import read_object
from service.audit.signing import RECEIPTS
from service.db.base import is_id, release_id_of
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Sample
from service.db.ledger_tables import ACCEPTS_A_LOSS, EVERYWHERE, Account, ArmingStop, Checkpoint, Entry, Hold
from service.db.session import among
from service.storage.interface import UNFINISHED, Storage
from service.storage.journals import Journalled, Uploaded, all_journalled, journalled, journalled_jobs, read_uploaded

_NAMED_MAX = 500  # jobs per statement
_WHY = "the database is older than the data folder, or belongs to another installation."


@dataclass(frozen=True)
class DataFolder:
    """The contents of a data folder at one moment, by id."""

    journals: frozenset[str]  # ids of jobs
    releases: frozenset[str]  # finished folders, published or not
    samples: frozenset[str]  # likewise
    receipts: frozenset[str]  # accounts with a stored receipt
    read: Mapping[str, Journalled]  # the journals that were read
    uploaded: Mapping[str, Uploaded]  # accepted uploads by dataset
    contents: frozenset[str]  # datasets with content


def read_data_folder(storage: Storage, journals: Collection[str] | None = None) -> DataFolder:
    """Read a data folder with the journals of some jobs (None: of all). Call it before the snapshot of the database."""
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
        receipts=frozenset(match[1] for match in map(RECEIPT_NAME.fullmatch, storage.list(RECEIPTS)) if match),
        read=read,
        uploaded=read_uploaded(storage),
        contents=frozenset(name.split(".", 1)[0] for name in storage.list("datasets") if not name.endswith(UNFINISHED)),
    )


def jobs_with_open_holds(session: Session) -> Collection[str]:
    """Return the jobs that may still charge."""
    return set(session.scalars(select(Hold.job_id).where(Hold.state.in_((HoldState.HELD, HoldState.ARMED)))))


def unknown_to(session: Session, folder: DataFolder) -> dict[str, frozenset[str]]:
    """Return, by kind, the releases, samples, journals and receipts whose job, sample or account the database lacks."""
    unknown = {}
    for name, table in (("releases", Release), ("samples", Sample), ("journals", Job), ("receipts", Account)):
        ids: frozenset[str] = getattr(folder, name)
        unknown[name] = ids - among(session, select(table.id), table.id, sorted(ids))
    if unknown["releases"]:  # jobs also have folders that are not published yet, or never will be
        unknown["releases"] -= {release_id_of(job_id) for job_id in session.scalars(select(Job.id))}
    return unknown


@dataclass(frozen=True)
class Accepted:
    """Proofs of spending and uploads that ACCEPT entries already account for."""

    journals: Counter[tuple[str, str]] = field(default_factory=Counter)  # nano-units by job and account
    jobs: set[str] = field(default_factory=set)  # jobs whose journals are accounted for
    releases: set[str] = field(default_factory=set)  # folders of jobs that the database lacks
    checkpoints: set[str] = field(default_factory=set)  # hashes
    witnesses: dict[str, set[tuple[int, str]]] = field(default_factory=dict)  # sequence and hash by account


def read_accepted(session: Session) -> Accepted:
    """Return the proofs that ACCEPT entries account for."""
    accepted = Accepted()
    for account, stored in session.execute(select(Entry.account_id, cast(Entry.details, Text)).where(ACCEPTS_A_LOSS)):
        details = read_object(stored)
        for job_id, nano in details.get("journals", {}).items():
            accepted.journals[job_id, account] += nano
            accepted.jobs.add(job_id)
        accepted.releases.update(details.get("releases", ()))
        accepted.checkpoints.update([details["checkpoint"]] if details.get("checkpoint") else [])
        witnesses = {(sequence, digest) for sequence, digest in details.get("witnesses", ())}
        accepted.witnesses.setdefault(account, set()).update(witnesses)
    return accepted


@dataclass(frozen=True)
class Shortfall:
    """The cost of a job's releases in its journal, and the part that no charge and no ACCEPT entry covers."""

    account_id: str | None  # None if the journal has no charge
    shown_nano: int
    missing_nano: int


@dataclass(frozen=True)
class Gaps:
    """The proofs in a data folder that the database lacks and no ACCEPT entry accounts for."""

    journals: Mapping[str, Shortfall]  # by job
    unknown: frozenset[str]  # the jobs in `journals` that the database lacks
    releases: frozenset[str]  # folders of jobs that the database lacks
    datasets: Mapping[str, Uploaded | None]  # None if no journal names the account


def find_gaps(session: Session, storage: Storage, folder: DataFolder) -> Gaps:
    unknown, accepted = unknown_to(session, folder), read_accepted(session)
    known_jobs = folder.read.keys() - unknown["journals"]
    query = select(Hold.job_id, Hold.account_id, Hold.charged_nano)
    if len(known_jobs) <= _NAMED_MAX:
        query = query.where(Hold.job_id.in_(known_jobs))
    rows = session.execute(query)
    charges = {row.job_id: (row.account_id, row.charged_nano) for row in rows if row.job_id in known_jobs}
    journals: dict[str, Shortfall] = {}
    for job_id in sorted(folder.journals):
        journal = folder.read.get(job_id)
        if job_id in unknown["journals"]:
            journal = journal or journalled(storage, job_id)
        elif journal is None:
            continue
        account_id, charged_nano = charges.get(job_id, (journal.account_id, 0))
        missing_nano = journal.cost_nano - charged_nano - accepted.journals[job_id, account_id or ""]
        if missing_nano > 0 or (job_id in unknown["journals"] and job_id not in accepted.jobs):
            journals[job_id] = Shortfall(account_id, journal.cost_nano, missing_nano)

    uploaded = sorted(folder.uploaded)
    received = among(session, select(Dataset.id).where(Dataset.ready_at.is_not(None)), Dataset.id, uploaded)
    contents = sorted(name for name in folder.contents if is_id(name, "ds") and name not in folder.uploaded)
    known = among(session, select(Dataset.id), Dataset.id, contents)
    datasets: dict[str, Uploaded | None] = {name: folder.uploaded[name] for name in uploaded if name not in received}
    datasets |= dict.fromkeys(name for name in contents if name not in known)
    return Gaps(journals, unknown["journals"], unknown["releases"] - accepted.releases, datasets)


def find_unrecorded(session: Session, storage: Storage, folder: DataFolder) -> Iterator[Finding]:
    """Yield a finding for each gap. A missing sample is not a finding, because samples cost nothing."""
    gaps = find_gaps(session, storage, folder)
    for job_id, short in gaps.journals.items():
        of = "" if short.account_id is None else f" of account {short.account_id}"
        message = f"The journal of job {job_id} shows releases for {short.shown_nano} nano-units{of}; "
        if job_id in gaps.unknown:
            yield Finding(FindingCode.JOURNAL_UNKNOWN, f"{message}the job is not in the database: {_WHY}")
        else:
            message += f"the ledger lacks {short.missing_nano} of these nano-units, so it is older than the journal."
            yield Finding(FindingCode.JOURNAL_AHEAD, message, short.account_id)
    for name in sorted(gaps.releases):
        message = f"There is a folder of release {name}, but its job is not in the database: {_WHY}"
        yield Finding(FindingCode.RELEASE_UNKNOWN, message)
    for name in sorted(gaps.datasets):
        message = f"Images were uploaded into dataset {name}, but the upload is not in the database: {_WHY}"
        yield Finding(FindingCode.DATASET_UNKNOWN, message)


@dataclass
class Loss:
    """Spending and uploads of one account that storage proves and the database lacks."""

    account_id: str
    known: bool = False  # whether the database has the account
    head_sequence: int = 0  # of the compared log; 0 for an unknown account
    missing_nano: int = 0  # proved by journals, receipts or signed heads, but absent from the log
    epsilon: float | None = None  # of `missing_nano` alone; None if the account's terms are unknown
    terms: Mapping[str, Any] = field(default_factory=dict)  # terms of an unknown account, from its newest receipt
    journals: dict[str, int] = field(default_factory=dict)  # nano-units by job
    witnesses: list[tuple[int, str]] = field(default_factory=list)  # sequence and hash of signed entries
    checkpoint: str | None = None  # hash of the stored checkpoint, if the database lacks it
    releases: list[str] = field(default_factory=list)  # folders of unknown jobs, for this account or no account
    datasets: list[str] = field(default_factory=list)  # uploads that the database lacks
    unattributed: list[str] = field(default_factory=list)  # uploads of no known account


def find_losses(session: Session, storage: Storage, folder: DataFolder, proofs: Proofs) -> dict[str, Loss]:
    """Return each account's `Loss`. Take the database's snapshot after reading the folder and the proofs."""
    kept, gaps, accepted = proofs.kept, find_gaps(session, storage, folder), read_accepted(session)
    found: dict[str, Loss] = {}

    def loss(account_id: str) -> Loss:
        return found.setdefault(account_id, Loss(account_id))

    unpaid: dict[str, int] = {}  # journals of unknown jobs that charged nothing
    for job_id, short in gaps.journals.items():
        journals = unpaid if short.account_id is None else loss(short.account_id).journals
        journals[job_id] = short.missing_nano
    for dataset_id, upload in gaps.datasets.items():
        if upload is not None:
            loss(upload.account_id).datasets.append(dataset_id)
    proved: dict[str, int] = {}
    for witness in (*proofs.witnesses, *(kept.witnesses("the kept checkpoint") if kept else ())):
        this = Entry.account_id == witness.account_id, Entry.sequence == witness.sequence
        place = (witness.sequence, witness.hash)
        if place in accepted.witnesses.get(witness.account_id, ()):
            continue
        if session.scalar(select(Entry.hash).where(*this)) != witness.hash:
            loss(witness.account_id).witnesses.append(place)
            proved[witness.account_id] = max(proved.get(witness.account_id, 0), witness.spent_nano or 0)
    restored = ArmingStop.code == FindingCode.RESTORED.value, ArmingStop.scope != EVERYWHERE
    for scope in session.scalars(select(ArmingStop.scope).where(*restored)):
        loss(scope)
    absent = None if kept is None or kept.hash in accepted.checkpoints else kept.hash
    if absent is not None and session.scalar(select(Checkpoint.hash).where(Checkpoint.hash == absent)) is not None:
        absent = None
    first = session.scalar(select(Account.id).order_by(Account.id).limit(1))
    if not found and first is not None and any((gaps.journals, gaps.releases, gaps.datasets, absent)):
        loss(first)
    unattributed = sorted(name for name, upload in gaps.datasets.items() if upload is None)
    for each in found.values():
        row: Any = session.get(Account, each.account_id)
        each.known, each.terms = row is not None, {} if row is not None else proofs.terms.get(each.account_id, {})
        each.head_sequence = 0 if row is None else row.head_sequence
        signed_nano = proved.get(each.account_id, 0) - (0 if row is None else row.spent_nano)
        each.missing_nano = max(sum(each.journals.values()), signed_nano)
        with suppress(KeyError, TypeError, ValueError, PrivacyError):
            known = None if row is None else (row.epsilon, row.delta, row.rate, row.base)
            by = open_filter(*(known or (each.terms["epsilon"], each.terms["delta"])))
            each.epsilon = by.epsilon_of(each.missing_nano)
        each.journals |= unpaid
        # Releases of known jobs, published after the backup: discarding the job does not delete them.
        published = sorted({release_id_of(job_id) for job_id in each.journals} & folder.releases)
        published_since = set(published) - among(session, select(Release.id), Release.id, published)
        each.releases = sorted(gaps.releases | published_since)
        each.unattributed, each.checkpoint = unattributed, absent
    return dict(sorted(found.items()))
