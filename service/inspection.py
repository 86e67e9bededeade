"""Verification as the service runs it: what lies outside the database, what follows from a finding, and when.

At start-up, every hour beside the jobs, once a day in full, and by `obscura ledger verify`. A finding stops arming for
its account, or for all; only a full verification that finds nothing to stop for lets an operator clear that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Text, cast, select
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from service import artifacts, ledger
from service.audit import arming, checkpoints, receipts
from service.audit.findings import FINDINGS_MAX, Finding, FindingCode, Report
from service.audit.rows import find_damage, find_missing_triggers
from service.audit.signing import SignatureRefused, SigningKeyUnusable, open_signing_key, read_document, trusted_keys
from service.audit.verify import count_entries, verify
from service.db.job_tables import Release
from service.db.session import SessionFactory, transaction
from service.db.words import VerificationKind
from service.errors import ClockRefused, ObscuraError
from service.ledger.stops import arming_stops
from service.logs import get_logger
from service.settings import Settings

# The service reads no more than this by itself: ten seconds. Longer logs are read from the newest checkpoint on, whose
# heads were verified when it was signed; the whole is for `obscura ledger verify`, from time to time.
ENTRIES_UNASKED_MAX = 200_000
FULL_AGAIN = timedelta(days=1)


def inspect_ledger(
    settings: Settings,
    factory: SessionFactory,
    *,
    full: bool = True,
    given: Sequence[Path] = (),
    thorough: bool = False,
) -> Report:
    """Verify the ledger against itself, its checkpoints, and everything that is kept beside the database.

    Writes nothing. Receipts are read before the snapshot is taken, so they cannot be newer than it: whatever is kept
    was committed before.

    Args:
        settings: of this installation.
        factory: of sessions.
        full: read every entry, not only those after the newest checkpoint.
        given: further receipts, such as users hold.
        thorough: hash the files of every release too, compare all fingerprints, and have SQLite check its own file.

    Raises:
        SigningKeyUnusable: a public key beside the signing key cannot be read.
    """
    trusted = trusted_keys(settings.ledger_key_path)
    witnesses: list[receipts.Witness] = []
    findings: list[Finding] = []
    for path in (*receipts.kept_receipts(settings.data_dir), *given):
        try:
            statement = receipts.check_receipt(read_document(path), trusted)
            witnesses.append(receipts.witness_of(statement, f"the receipt {path.name}"))
        except SignatureRefused as error:
            message = f"The receipt {path.name} is refused. {error.message}"
            account_id = None if path in given else path.stem
            findings.append(Finding(FindingCode.RECEIPT_REFUSED, message, account_id, stops=path not in given))
    kept = None
    try:
        kept = checkpoints.read_checkpoint_file(settings.data_dir, trusted)
    except SignatureRefused as error:
        message = f"The checkpoint that is kept beside the database is refused. {error.message}"
        findings.append(Finding(FindingCode.CHECKPOINT_FILE_REFUSED, message))
    with transaction(factory, read_only=True, snapshot=True) as session:
        findings += find_missing_triggers(session)
        damage = list(find_damage(session)) if thorough else []
        try:
            report = verify(session, trusted=trusted, known=witnesses, kept=kept, full=full, fingerprints=thorough)
        except DBAPIError:
            if not damage:
                raise
            report = Report(full=full)  # the file is broken: that is what was found
    checked = 0
    for finding in find_changed_artifacts(factory, settings.data_dir) if thorough and not damage else ():
        checked += 1
        findings += [] if finding is None else [finding]
    return replace(report, artifacts=checked, findings=(*report.findings, *damage, *findings)[:FINDINGS_MAX])


def find_changed_artifacts(factory: SessionFactory, data_dir: Path) -> Iterator[Finding | None]:
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
            directory = artifacts.directory_of(data_dir, row.id)
            same = artifacts.digest_directory(directory) == row.artifact_sha256
            shows_its_card = same and _shows_card(directory, row.card)
        except (ObscuraError, OSError):
            message = f"The files of release {row.id} are gone, or are not plain files."
            yield Finding(FindingCode.ARTIFACT_MISMATCH, message, row.account_id, stops=False)
            continue
        if not same or data_dir / row.artifact_dir != directory:
            message = f"The files of release {row.id} are not those that its capture paid for."
            yield Finding(FindingCode.ARTIFACT_MISMATCH, message, row.account_id)
        elif not shows_its_card:
            message = f"The privacy card that is shown for release {row.id} is not the one in its files."
            yield Finding(FindingCode.CARD_MISMATCH, message, row.account_id)
        else:
            yield None


def _shows_card(directory: Path, shown: str) -> bool:
    """Tell whether the privacy card that is shown is the one among the files, which their digest covers."""
    path = directory / artifacts.CARD_FILE
    if not path.exists():
        return True
    try:
        with artifacts.open_regular(path) as file:
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


def inspect_at_start(settings: Settings, factory: SessionFactory, *, now: datetime) -> None:
    """Verify when a process starts, in bounded time, and stop arming where something is found.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the stop cannot be written: the database is away, and nothing can be armed.
    """
    try:
        with transaction(factory, read_only=True) as session:
            full = count_entries(session) <= ENTRIES_UNASKED_MAX
        report = inspect_ledger(settings, factory, full=full)
        if report.clean:
            _keep(settings, factory)
    except Exception as error:  # what cannot be verified is not trusted
        report = _not_verifiable(error)
    follow_up(factory, report, now=now)


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
    try:
        report = inspect_ledger(settings, factory, full=full)
    except SQLAlchemyError:  # the database is away: the next round tries again
        raise
    except Exception as error:
        report = _not_verifiable(error)
    follow_up(factory, report, now=now)
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
    return last is None or now - last >= FULL_AGAIN


def _keep(settings: Settings, factory: SessionFactory) -> None:
    """Bring what is kept beside the database up to it, where a crash came between a commit and its file."""
    trusted = trusted_keys(settings.ledger_key_path)
    with transaction(factory, read_only=True) as session:
        receipts.keep_newest(session, settings.data_dir)
        newest = checkpoints.newest_checkpoint(session)
    if newest is not None:
        checkpoints.keep_checkpoint(settings.data_dir, newest, trusted)
