"""Verification as the service runs it: what lies outside the database, what follows from a finding, and when.

At start-up, every hour beside the jobs, once a day in full, and by `obscura ledger verify`. A finding stops arming for
its account, or for all; only a full verification that finds nothing to stop for lets an operator clear that. While
anything stands that was found, nothing is removed on the word of the database either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Text, cast, select
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from obscura.wire.formats import CARD_FILE
from obscura.wire.words import VerificationKind
from service import installation, ledger
from service.audit import arming, checkpoints, losses, receipts
from service.audit.data_folder import find_forgotten, jobs_with_open_holds, read_data_folder
from service.audit.findings import FINDINGS_MAX, Finding, FindingCode, Report
from service.audit.rows import find_damage, find_missing_triggers
from service.audit.signing import (
    SignatureRefused,
    SigningKeyUnusable,
    document_in,
    open_signing_key,
    read_document,
    trusted_keys,
)
from service.audit.verify import count_entries, verify
from service.db.job_tables import Release
from service.db.session import SessionFactory, transaction
from service.errors import ClockRefused, ObscuraError
from service.ledger.stops import LOCKING, arming_stops
from service.logs import get_logger
from service.settings import Settings
from service.storage import storage_of
from service.storage.files import digest_directory, open_regular
from service.storage.interface import Storage, StorageUnavailable, key_of

# The service reads no more than this by itself: ten seconds. Longer logs are read from the newest checkpoint on, whose
# heads were verified when it was signed; the whole is for `obscura ledger verify`, from time to time.
ENTRIES_UNASKED_MAX = 200_000
FULL_AGAIN = timedelta(days=1)


@dataclass(frozen=True)
class Proofs:
    """What was signed and lies outside of the database.

    Attributes:
        witnesses: what receipts say.
        kept: the checkpoint beside the database.
        terms: of accounts, as the newest receipts state them.
        findings: receipts and checkpoints that are refused.
    """

    witnesses: list[receipts.Witness]
    kept: checkpoints.Signed | None
    terms: dict[str, Any]
    findings: list[Finding]


def read_proofs(settings: Settings, given: Sequence[Path] = ()) -> Proofs:
    """Read receipts and the kept checkpoint. Call it before the snapshot of the database is taken.

    Args:
        given: further receipts, such as users hold.

    Raises:
        SigningKeyUnusable: a public key beside the signing key cannot be read.
    """
    storage, trusted = storage_of(settings), trusted_keys(settings.ledger_key_path)
    terms: dict[str, Any] = {}
    witnesses: list[receipts.Witness] = []
    findings: list[Finding] = []
    kept_ones = [(partial(document_in, held), f"{of}.json", of) for of, held in receipts.kept_receipts(storage).items()]
    for read, name, account_id in (*kept_ones, *((partial(read_document, path), path.name, None) for path in given)):
        try:
            statement = receipts.check_receipt(read(), trusted)
            terms[statement["account"]["id"]] = statement["account"]
            witnesses.append(receipts.witness_of(statement, f"the receipt {name}"))
        except SignatureRefused as error:
            message = f"The receipt {name} is refused. {error.message}"
            findings.append(Finding(FindingCode.RECEIPT_REFUSED, message, account_id, stops=account_id is not None))
    kept = None
    try:
        kept = checkpoints.read_checkpoint_file(storage, trusted)
    except SignatureRefused as error:
        message = f"The checkpoint that is kept beside the database is refused. {error.message}"
        findings.append(Finding(FindingCode.CHECKPOINT_FILE_REFUSED, message))
    return Proofs(witnesses, kept, terms, findings)


def find_losses(settings: Settings, factory: SessionFactory, given: Sequence[Path] = ()) -> dict[str, losses.Loss]:
    """Return, by account, what storage proves and the database lacks."""
    storage, proofs = storage_of(settings), read_proofs(settings, given)
    folder = read_data_folder(storage)
    with transaction(factory, read_only=True, snapshot=True) as session:
        return losses.find_losses(session, storage, folder, proofs.witnesses, proofs.kept, proofs.terms)


def inspect_ledger(
    settings: Settings,
    factory: SessionFactory,
    *,
    full: bool = True,
    given: Sequence[Path] = (),
    thorough: bool = False,
) -> Report:
    """Verify the ledger against itself, its checkpoints, and everything that is kept beside the database.

    Writes nothing. Receipts and the data folder are read before the snapshot is taken, so they cannot be newer than
    it: whatever is there was committed before.

    Args:
        full: read every entry, not only those after the newest checkpoint, and every journal, not only those of jobs
            that may still charge.
        given: further receipts, such as users hold.
        thorough: hash the files of every release too, and have SQLite check its own file.

    Raises:
        SigningKeyUnusable: a public key beside the signing key cannot be read.
    """
    storage = storage_of(settings)
    proofs = read_proofs(settings, given)
    findings, witnesses, kept = list(proofs.findings), proofs.witnesses, proofs.kept
    mark = installation.mark_of(storage)
    journals = None
    if not full:
        with transaction(factory, read_only=True) as session:
            journals = jobs_with_open_holds(session)
    folder = read_data_folder(storage, journals)
    with transaction(factory, read_only=True, snapshot=True) as session:
        mismatch = list(installation.find_mismatch(session, settings, folder, mark))
        findings += find_forgotten(session, storage, folder)
        findings += find_missing_triggers(session)
        damage = list(find_damage(session)) if thorough else []
        trusted = trusted_keys(settings.ledger_key_path)  # again: a first key is made before what it signs is committed
        try:
            report = verify(session, trusted=trusted, known=witnesses, kept=kept, full=full)
        except DBAPIError:
            if not damage:
                raise
            report = Report(full=full)  # the file is broken: that is what was found
    checked = 0
    for finding in find_changed_artifacts(factory, storage) if thorough and not damage else ():
        checked += 1
        findings += [] if finding is None else [finding]
    found = (*mismatch, *report.findings, *damage, *findings)  # the first explains the others
    return replace(report, artifacts=checked, findings=found[:FINDINGS_MAX])


def find_changed_artifacts(factory: SessionFactory, storage: Storage) -> Iterator[Finding | None]:
    """Yield, for each release, what is wrong with its folder, or None (I7)."""
    with transaction(factory, read_only=True) as session:
        releases = session.execute(
            select(
                Release.id,
                Release.account_id,
                Release.artifact_sha256,
                Release.artifact_dir,
                cast(Release.card, Text).label("card"),
            )
        ).all()
    for row in releases:
        try:
            directory = storage.open(key_of(row.id))
            same = digest_directory(directory) == row.artifact_sha256
            shows_its_card = same and _shows_card(directory, row.card)
        except StorageUnavailable:
            raise
        except (ObscuraError, OSError):
            message = f"The files of release {row.id} are gone, or are not plain files."
            yield Finding(FindingCode.ARTIFACT_MISMATCH, message, row.account_id, stops=False)
            continue
        if not same or row.artifact_dir != key_of(row.id):
            message = f"The files of release {row.id} are not those that its capture paid for."
            yield Finding(FindingCode.ARTIFACT_MISMATCH, message, row.account_id)
        elif not shows_its_card:
            message = f"The privacy card that is shown for release {row.id} is not the one in its files."
            yield Finding(FindingCode.CARD_MISMATCH, message, row.account_id)
        else:
            yield None


def _shows_card(directory: Path, shown: str) -> bool:
    """Tell whether the privacy card that is shown is the one among the files, which their digest covers."""
    path = directory / CARD_FILE
    if not path.exists():
        return True
    try:
        with open_regular(path) as file:
            return bool(json.load(file) == json.loads(shown))
    except ValueError:
        return False


def require_clock(factory: SessionFactory, *, now: datetime) -> None:
    """Let a process start whose clock is not known to be wrong by the ledger.

    Raises:
        ClockRefused: it is wrong. The log says so in one sentence.
    """
    try:
        with transaction(factory, read_only=True) as session:
            ledger.require_clock(session, now)
    except ClockRefused as error:
        get_logger(__name__).error("operator_needed", code=error.code, message=error.message)
        raise


def inspect_at_start(settings: Settings, factory: SessionFactory, *, now: datetime) -> str | None:
    """Verify when a process starts, in bounded time, and stop arming where something is found.

    Returns:
        One sentence for the operator where anything stands that was found, now or earlier: what is wrong, and what to
        do. It is logged as well.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the stop cannot be written: the database is away, and nothing can be armed.
        StorageUnavailable: the storage cannot be asked.
    """
    try:
        with transaction(factory, read_only=True) as session:
            full = count_entries(session) <= ENTRIES_UNASKED_MAX
        report = inspect_ledger(settings, factory, full=full)
        if report.clean:
            _keep(settings, factory)
    except StorageUnavailable:  # nothing is wrong with the ledger, and nothing can begin
        raise
    except Exception as error:  # what cannot be verified is not trusted
        report = _not_verifiable(error)
    follow_up(factory, report, now=now)
    with transaction(factory, read_only=True) as session:
        codes = [stop.code for stop in arming_stops(session)]
    sentence = _sentence(report, codes)
    if sentence is not None:
        get_logger(__name__).error("trainings_stopped", what_to_do=sentence)
    return sentence


def _sentence(report: Report, codes: Sequence[str]) -> str | None:
    mismatch = [found.message for found in report.findings if found.code is FindingCode.INSTALLATION_MISMATCH]
    found = sorted({*codes, *(finding.code.value for finding in report.findings)})
    if mismatch or not found:
        return mismatch[0] if mismatch else None
    if LOCKING.intersection(found):
        return (
            f"The installation is locked, because its database is older than its storage ({', '.join(found)}): run "
            "`obscura ledger verify`, which lists what is missing, and `obscura ledger accept ACCOUNT` for each."
        )
    return (
        f"The check of the ledger has found {', '.join(found)}: nothing is removed, and no private data is opened for "
        "the accounts concerned, until `obscura ledger verify --clear`, which says what is wrong, finds nothing more."
    )


def nothing_stands(session: Session, settings: Settings) -> bool:
    """Tell whether files may be removed on the word of the database: it belongs to the data folder, no stop stands,
    and the newest verification has found nothing."""
    newest = max(arming.verifications(session), key=lambda row: row.verified_at, default=None)
    found = newest is not None and newest.findings > 0
    return installation.belongs(session, settings) and not arming_stops(session) and not found


def nothing_is_found(settings: Settings, factory: SessionFactory, *, now: datetime) -> bool:
    """Verify what was written since the newest checkpoint, and what lies in the data folder; act on what is found.

    For who is about to remove files: what cannot be verified is not believed.

    Raises:
        sqlalchemy.exc.SQLAlchemyError, StorageUnavailable: the database or the storage is away.
    """
    return _verified(settings, factory, full=False, now=now).clean


def _verified(settings: Settings, factory: SessionFactory, *, full: bool, now: datetime) -> Report:
    """Verify and act on what is found."""
    try:
        report = inspect_ledger(settings, factory, full=full)
    except (SQLAlchemyError, StorageUnavailable):  # away: the next round tries again
        raise
    except Exception as error:
        report = _not_verifiable(error)
    follow_up(factory, report, now=now)
    return report


def watch_over(settings: Settings, factory: SessionFactory, *, now: datetime) -> None:
    """Verify what was written since the newest checkpoint and sign it, if a checkpoint is due; else do nothing.

    Once a day the whole is verified. Nothing is signed while a stop stands.
    """
    with transaction(factory, read_only=True) as session:
        if arming_stops(session):
            return
        due = checkpoints.checkpoint_due(session, now=now)
        full = _full_is_due(arming.verified_at(session, VerificationKind.FULL), now) and (
            count_entries(session) <= ENTRIES_UNASKED_MAX
        )
    if not due and not full:
        return
    report = _verified(settings, factory, full=full, now=now)
    if report.clean and due:
        try:
            sign_heads(settings, factory, report, now=now)
        except SigningKeyUnusable as error:  # nothing is wrong with the ledger, but nobody can sign it
            get_logger(__name__).error("ledger_not_signed", reason=error.message)


def sign_heads(settings: Settings, factory: SessionFactory, report: Report, *, now: datetime) -> int | None:
    """Write a checkpoint of heads that were just verified, and keep it beside the database.

    Returns:
        Its sequence number; None when another process has written one at the same time.
    """
    key = open_signing_key(settings.ledger_key_path)
    try:
        with transaction(factory) as session:
            checkpoint = checkpoints.write_checkpoint(session, heads=report.heads, key=key, now=now)
    except IntegrityError:
        return None
    _keep(settings, factory)
    return checkpoint.sequence


def follow_up(factory: SessionFactory, report: Report, *, now: datetime) -> None:
    """Record a verification, log what it found, and stop arming for what that concerns."""
    log = get_logger(__name__)
    for finding in report.findings:
        log.error("ledger_finding", **finding.to_json())
    for _ in range(2):  # two processes may write the same at the same time: the second try finds the first one's rows
        try:
            with transaction(factory) as session:
                arming.stop_arming(session, report.findings, now=now)
                arming.record_verification(session, report, now=now)
            return
        except IntegrityError:
            continue


def _not_verifiable(error: Exception) -> Report:
    message = f"The ledger could not be verified: {type(error).__name__}."
    return Report(full=False, findings=(Finding(FindingCode.NOT_VERIFIABLE, message),))


def _full_is_due(last: datetime | None, now: datetime) -> bool:
    return last is None or not timedelta(0) <= now - last < FULL_AGAIN  # or the clock was ahead then


def _keep(settings: Settings, factory: SessionFactory) -> None:
    """Bring what is kept beside the database up to it, where a crash came between a commit and its file."""
    storage, trusted = storage_of(settings), trusted_keys(settings.ledger_key_path)
    with transaction(factory, read_only=True) as session:
        receipts.keep_newest(session, storage)
        newest = checkpoints.newest_checkpoint(session)
    if newest is not None:
        checkpoints.keep_checkpoint(storage, newest, trusted)
