"""What a restored database lacks, account by account, by the receipts, journals and signed heads beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from privacy.accounting.filter import open_filter
from privacy.errors import PrivacyError
from service.audit.checkpoints import Signed
from service.audit.data_folder import DataFolder, find_gaps, read_accepted
from service.audit.findings import FindingCode
from service.audit.receipts import Witness
from service.db.base import release_id_of
from service.db.job_tables import Release
from service.db.ledger_tables import EVERYWHERE, AccountRow, ArmingStop, Checkpoint, EntryRow
from service.db.session import among
from service.storage.interface import Storage


@dataclass
class Loss:
    """What storage proves of one account and the database lacks.

    Attributes:
        known: whether the database has the account.
        head_sequence: of the log that was compared; 0 for an unknown account.
        missing_nano: spending that journals, receipts or signed heads prove and the log does not count.
        epsilon: of that spending alone, by the account's terms; None where they are not known.
        terms: of an unknown account, by its newest receipt; empty without one.
        journals: nano-units by job.
        witnesses: sequence and hash of signed entries.
        checkpoint: the hash of the kept checkpoint, where the database lacks it.
        releases: folders of jobs that the database does not know, of this account or of none.
        datasets: uploads that the database does not know; `unattributed` are those of no known account.
    """

    account_id: str
    known: bool = False
    head_sequence: int = 0
    missing_nano: int = 0
    epsilon: float | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)
    journals: dict[str, int] = field(default_factory=dict)
    witnesses: list[tuple[int, str]] = field(default_factory=list)
    checkpoint: str | None = None
    releases: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    unattributed: list[str] = field(default_factory=list)


def find_losses(
    session: Session,
    storage: Storage,
    folder: DataFolder,
    witnesses: Iterable[Witness],
    kept: Signed | None,
    terms: Mapping[str, Mapping[str, Any]],
) -> dict[str, Loss]:
    """Return what a database lacks, by account.

    Args:
        session: reading one moment.
        folder: read before that moment, as was everything that follows.
        witnesses: what receipts say.
        kept: the checkpoint that is kept beside the database.
        terms: of accounts, by their newest receipts.
    """
    gaps, settled, found = find_gaps(session, storage, folder), read_accepted(session), dict[str, Loss]()

    def loss(account_id: str) -> Loss:
        return found.setdefault(account_id, Loss(account_id))

    unpaid: dict[str, int] = {}  # journals of unknown jobs that released nothing
    for job_id, short in gaps.journals.items():
        journals = unpaid if short.account_id is None else loss(short.account_id).journals
        journals[job_id] = short.missing_nano
    for dataset_id, upload in gaps.datasets.items():
        if upload is not None:
            loss(upload.account_id).datasets.append(dataset_id)
    proved: dict[str, int] = {}
    for witness in (*witnesses, *(kept.witnesses("the kept checkpoint") if kept else ())):
        this = EntryRow.account_id == witness.account_id, EntryRow.sequence == witness.sequence
        place = (witness.sequence, witness.hash)
        if place in settled.witnesses.get(witness.account_id, ()):
            continue
        if session.scalar(select(EntryRow.hash).where(*this)) != witness.hash:
            loss(witness.account_id).witnesses.append(place)
            proved[witness.account_id] = max(proved.get(witness.account_id, 0), witness.spent_nano or 0)
    restored = ArmingStop.code == FindingCode.RESTORED.value, ArmingStop.scope != EVERYWHERE
    for scope in session.scalars(select(ArmingStop.scope).where(*restored)):
        loss(scope)
    absent = None if kept is None or kept.hash in settled.checkpoints else kept.hash
    if absent is not None and session.scalar(select(Checkpoint.hash).where(Checkpoint.hash == absent)) is not None:
        absent = None
    first = session.scalar(select(AccountRow.id).order_by(AccountRow.id).limit(1))
    if not found and first is not None and (gaps or absent):
        loss(first)
    for each in found.values():
        _complete(session, each, proved.get(each.account_id, 0), terms.get(each.account_id, {}))
        each.journals |= unpaid
        each.releases = sorted(gaps.releases | _published(session, folder, each))
        each.unattributed = sorted(name for name, upload in gaps.datasets.items() if upload is None)
        each.checkpoint = absent
    return dict(sorted(found.items()))


def _published(session: Session, folder: DataFolder, loss: Loss) -> set[str]:
    """Return the releases of jobs that the database knows, which were published since: discarding a job keeps them."""
    names = sorted({release_id_of(job_id) for job_id in loss.journals} & folder.releases)
    return set(names) - among(session, select(Release.id), Release.id, names)


def _complete(session: Session, loss: Loss, proved_nano: int, terms: Mapping[str, Any]) -> None:
    """Fill in how much is missing: what journals show, or what was signed as spent, whichever is more."""
    row: Any = session.get(AccountRow, loss.account_id)
    loss.known, loss.terms = row is not None, {} if row is not None else terms
    loss.head_sequence = 0 if row is None else row.head_sequence
    loss.missing_nano = max(sum(loss.journals.values()), proved_nano - (0 if row is None else row.spent_nano))
    try:
        if row is not None:
            by = open_filter(row.epsilon, row.delta, row.rate, row.base)
            loss.epsilon = by.epsilon_of(loss.missing_nano)
        elif terms:
            loss.epsilon = open_filter(terms["epsilon"], terms["delta"]).epsilon_of(loss.missing_nano)
    except (TypeError, ValueError, PrivacyError):
        loss.epsilon = None
