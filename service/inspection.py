"""Schedule the verification of the ledger, compare it with proofs outside the database, and act on findings.

The service verifies at start-up, hourly while jobs run, daily in full, and with `obscura ledger verify`. A finding
stops one account, or all accounts. Their jobs open no private data until a full verification has no finding and an
operator clears the stop. While a stop exists, the service keeps files that its database does not list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Text, cast, select
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from obscura.wire.formats import CARD_FILE
from obscura.wire.words import VerificationKind
from service import installation, ledger
from service.audit import data_folder, proofs, rows, signing
from service.audit.findings import (
    FINDINGS_MAX,
    Finding,
    FindingCode,
    Report,
    record_verification,
    stop_arming,
    verifications,
)
from service.audit.verify import count_entries, verify
from service.db.job_tables import Release
from service.db.session import SessionFactory, transaction
from service.errors import ClockRefused, ObscuraError
from service.logs import get_logger
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import Storage, StorageUnavailable, digest_directory, key_of, open_regular

# The service itself fully verifies at most this many entries, which takes ten seconds. For a longer log, it verifies
# only the entries after the newest checkpoint; use `obscura ledger verify` for the rest.
ENTRIES_UNASKED_MAX = 200_000
FULL_AGAIN = timedelta(days=1)


def find_losses(settings: Settings, factory: SessionFactory, given: Sequence[Path] = ()) -> dict[str, data_folder.Loss]:
    """Return the spending and uploads that storage proves and the database lacks, by account."""
    storage = storage_of(settings)
    read = proofs.read_proofs(storage, signing.trusted_keys(settings.ledger_key_path), given)
    folder = data_folder.read_data_folder(storage)
    with transaction(factory, read_only=True, snapshot=True) as session:
        return data_folder.find_losses(session, storage, folder, read)


def inspect_ledger(
    settings: Settings,
    factory: SessionFactory,
    *,
    full: bool = True,
    given: Sequence[Path] = (),
    thorough: bool = False,
) -> Report:
    """Verify the ledger against itself, its checkpoints, and the files outside the database. Writes nothing.

    Receipts and the data folder are read before the database's snapshot, so they cannot be newer than the snapshot.

    Args:
        full: read all entries and journals. Otherwise read only entries after the newest checkpoint, and journals of
            jobs that may still charge.
        given: further receipts, from users.
        thorough: also hash the files of every release, and run SQLite's integrity check.
    """
    storage = storage_of(settings)
    read = proofs.read_proofs(storage, signing.trusted_keys(settings.ledger_key_path), given)
    mark = installation.mark_of(storage)
    journals = None
    if not full:
        with transaction(factory, read_only=True) as session:
            journals = data_folder.jobs_with_open_holds(session)
    folder = data_folder.read_data_folder(storage, journals)
    with transaction(factory, read_only=True, snapshot=True) as session:
        mismatch = list(installation.find_mismatch(session, settings, folder, mark))
        forgotten = data_folder.find_unrecorded(session, storage, folder)
        beside = [*read.findings, *forgotten, *rows.find_missing_triggers(session)]
        damage = list(rows.find_damage(session)) if thorough else []
        trusted = signing.trusted_keys(settings.ledger_key_path)  # read again, because a first key may be new
        try:
            report = verify(session, trusted=trusted, known=read.witnesses, kept=read.kept, full=full)
        except DBAPIError:
            if not damage:
                raise
            report = Report(full=full)
    artifacts = list(find_changed_artifacts(factory, storage)) if thorough and not damage else []
    beside += [finding for finding in artifacts if finding is not None]
    findings = (*mismatch, *report.findings, *damage, *beside)  # a mismatch explains the others
    return replace(report, artifacts=len(artifacts), findings=findings[:FINDINGS_MAX])


def find_changed_artifacts(factory: SessionFactory, storage: Storage) -> Iterator[Finding | None]:
    """Yield, for each release, a finding if its files were changed, otherwise None (I7)."""
    card = cast(Release.card, Text).label("card")
    columns = (Release.id, Release.account_id, Release.artifact_sha256, Release.artifact_dir, card)
    with transaction(factory, read_only=True) as session:
        releases = session.execute(select(*columns)).all()
    for row in releases:
        try:
            directory = storage.open(key_of(row.id))
            same = digest_directory(directory) == row.artifact_sha256
            path = directory / CARD_FILE
            shows_its_card = not path.exists()
            if same and not shows_its_card:
                with open_regular(path) as file, suppress(ValueError):
                    shows_its_card = json.loads(file.read()) == json.loads(row.card)
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
            message = (
                f"The privacy card that the service shows for release {row.id} differs from the card in its files."
            )
            yield Finding(FindingCode.CARD_MISMATCH, message, row.account_id)
        else:
            yield None


def require_clock(factory: SessionFactory, *, now: datetime) -> None:
    """Raise ClockRefused, and log why, if the clock contradicts the ledger."""
    try:
        with transaction(factory, read_only=True) as session:
            ledger.require_clock(session, now)
    except ClockRefused as error:
        get_logger(__name__).error("operator_needed", code=error.code, message=error.message)
        raise


def inspect_at_start(settings: Settings, factory: SessionFactory, *, now: datetime) -> str | None:
    """Verify at the start of a process, in bounded time, and stop the accounts with findings.

    Return a message for the operator with the fault and the remedy, which is also logged; None if there is no fault.
    """
    try:
        with transaction(factory, read_only=True) as session:
            full = count_entries(session) <= ENTRIES_UNASKED_MAX
        report = inspect_ledger(settings, factory, full=full)
        if report.clean:
            _keep(settings, factory)
    except StorageUnavailable:
        raise
    except Exception as error:
        report = _not_verifiable(error)
    follow_up(factory, report, now=now)
    with transaction(factory, read_only=True) as session:
        codes = [stop.code for stop in ledger.stops.arming_stops(session)]
    mismatch = [finding.message for finding in report.findings if finding.code is FindingCode.INSTALLATION_MISMATCH]
    found = sorted({*codes, *(finding.code.value for finding in report.findings)})
    if mismatch:
        sentence = mismatch[0]
    elif ledger.stops.LOCKING.intersection(found):
        sentence = (
            f"The installation is locked, because its database is older than its storage ({', '.join(found)}): run "
            "`obscura ledger verify`, which lists what is missing, and then `obscura ledger accept ACCOUNT` for each "
            "account that it names."
        )
    elif found:
        sentence = (
            f"The check of the ledger has found {', '.join(found)}. Run `obscura ledger verify`, correct the faults "
            "that it lists, and run `obscura ledger verify --clear`. Until then, nothing is removed, and no private "
            "data is opened for the accounts concerned."
        )
    else:
        return None
    get_logger(__name__).error("trainings_stopped", what_to_do=sentence)
    return sentence


def may_remove(session: Session, settings: Settings) -> bool:
    """Return whether the database is trusted to decide which files are removed.

    It must belong to the data folder, there must be no stop, and the newest verification must have no finding.
    """
    newest = max(verifications(session), key=lambda row: row.verified_at, default=None)
    clean = newest is None or newest.findings == 0
    return installation.belongs(session, settings) and not ledger.stops.arming_stops(session) and clean


def verify_again(settings: Settings, factory: SessionFactory, *, full: bool, now: datetime) -> Report:
    """Verify the ledger and the data folder, and act on the findings. Raise if database or storage fails."""
    try:
        report = inspect_ledger(settings, factory, full=full)
    except (SQLAlchemyError, StorageUnavailable):  # the next round retries
        raise
    except Exception as error:
        report = _not_verifiable(error)
    follow_up(factory, report, now=now)
    return report


def _not_verifiable(error: Exception) -> Report:
    message = f"The ledger could not be verified: {type(error).__name__}."
    return Report(full=False, findings=(Finding(FindingCode.NOT_VERIFIABLE, message),))


def watch_over(settings: Settings, factory: SessionFactory, *, now: datetime) -> None:
    """Verify and sign the newest entries if a checkpoint is due, and verify everything once a day.

    Nothing is signed while a stop exists.
    """
    with transaction(factory, read_only=True) as session:
        if ledger.stops.arming_stops(session):
            return
        due = proofs.checkpoint_due(session, now=now)
        times = [row.verified_at for row in verifications(session) if row.kind is VerificationKind.FULL]
        # A later time is from a clock that was ahead.
        recent = any(timedelta(0) <= now - time < FULL_AGAIN for time in times)
        full = not recent and count_entries(session) <= ENTRIES_UNASKED_MAX
    if not due and not full:
        return
    report = verify_again(settings, factory, full=full, now=now)
    if report.clean and due:
        try:
            sign_heads(settings, factory, report, now=now)
        except signing.SigningKeyUnusable as error:
            get_logger(__name__).error("ledger_not_signed", reason=error.message)


def sign_heads(settings: Settings, factory: SessionFactory, report: Report, *, now: datetime) -> int | None:
    """Write a checkpoint of the heads (newest entries) in a fresh report, and store it beside the database.

    Return its sequence number; None if another process wrote one at the same time.
    """
    key = signing.open_signing_key(settings.ledger_key_path)
    try:
        with transaction(factory) as session:
            checkpoint = proofs.write_checkpoint(session, heads=report.heads, key=key, now=now)
    except IntegrityError:
        return None
    _keep(settings, factory)
    return checkpoint.sequence


def follow_up(factory: SessionFactory, report: Report, *, now: datetime) -> None:
    """Record a verification, log its findings, and stop the accounts that they concern."""
    log = get_logger(__name__)
    for finding in report.findings:
        log.error("ledger_finding", **vars(finding))
    for _ in range(2):  # if two processes insert the same rows at once, one fails; its second try finds the rows
        try:
            with transaction(factory) as session:
                stop_arming(session, report.findings, now=now)
                record_verification(session, report, now=now)
            return
        except IntegrityError:
            continue


def _keep(settings: Settings, factory: SessionFactory) -> None:
    """Update the files outside the database that a crash after a commit may have left outdated."""
    storage = storage_of(settings)
    with transaction(factory, read_only=True) as session:
        proofs.keep_newest(session, storage)
        newest = proofs.newest_checkpoint(session)
    if newest is not None:
        proofs.keep_checkpoint(storage, newest, signing.trusted_keys(settings.ledger_key_path))
