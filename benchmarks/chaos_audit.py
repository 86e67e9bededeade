"""The audit of the chaos benchmark: jobs, ledger, journals and files of an installation that is stopped. Read only."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import func, select

from obscura.wire.words import ENDED, DatasetState, EntryKind, HoldState
from service.datasets.vault import Vault
from service.db.base import is_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release
from service.db.ledger_tables import Account, Entry, Hold
from service.db.session import SessionFactory, open_sessions, transaction
from service.errors import Conflict, NotFound
from service.inspection import inspect_ledger
from service.ledger.stops import arming_stops
from service.settings import Settings
from service.storage import is_elsewhere, storage_of
from service.storage.interface import digest_directory, key_of
from service.storage.journals import journalled, journalled_jobs

FAULTS = (
    *("jobs_unfinished", "jobs_unknown", "jobs_twice", "uploads_lost", "undercharged", "artifacts_without_capture"),
    *("releases_lost", "releases_changed", "orphans", "holds_open", "reserved_nano", "arming_stops", "work_left"),
)
_CAPTURES = select(Entry.job_id, Entry.account_id).where(Entry.kind == EntryKind.CAPTURE)


@dataclass
class Audit:
    """Counts of FAULTS, all 0 in a sound installation, and a few facts."""

    jobs_unfinished: int = 0  # accepted jobs that have not ended
    jobs_unknown: int = 0  # jobs in the database that no client was told of, or the reverse
    jobs_twice: int = 0  # jobs with two releases, or two holds or captures of an account
    uploads_lost: int = 0  # datasets reported ready whose images are not those that were sent
    undercharged: int = 0  # jobs whose journal shows more than their hold has captured, or than the log counts
    artifacts_without_capture: int = 0  # release folders or rows whose digest no capture lists
    releases_lost: int = 0  # releases without files
    releases_changed: int = 0  # releases with other files than were captured
    orphans: int = 0  # objects of a bucket that nothing names after the grace periods
    holds_open: int = 0
    reserved_nano: int = 0
    arming_stops: int = 0
    work_left: int = 0  # work folders, which may hold private state, of jobs that have ended
    claims_left: int = 0  # claims in a bucket that the next publication removes: not a fault
    ledger_verified: bool = False
    findings: list[str] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)
    trainings_paid: dict[str, int] = field(default_factory=dict)  # by recipe and preset
    attempts: int = 0
    attempts_lost: int = 0
    journalled_nano: int = 0
    captured_nano: int = 0

    @property
    def sound(self) -> bool:
        return self.ledger_verified and not any(getattr(self, name) for name in FAULTS)


def audit(settings: Settings, accepted: set[str], uploads: Mapping[str, bytes]) -> Audit:
    """Audit a stopped installation.

    Args:
        accepted: jobs that clients were told of.
        uploads: SHA-256 of the images of each dataset that was reported ready.
    """
    with open_sessions(settings.database_url) as factory:
        found = Audit()
        _audit_jobs(found, factory, accepted)
        _audit_charges(found, settings, factory)
        _audit_files(found, settings, factory)
        found.uploads_lost = sum(pixels_sha256(settings, factory, name) != sent for name, sent in uploads.items())
        report = inspect_ledger(settings, factory, full=True)
        found.ledger_verified = report.clean
        found.findings = [f"{finding.code.value}: {finding.message}" for finding in report.findings]
        with transaction(factory, read_only=True) as session:
            found.arming_stops = len(arming_stops(session))
        if is_elsewhere(settings):
            from benchmarks.chaos_storage import old_claims, orphans  # which needs a package of an extra

            found.claims_left = old_claims(settings)
            found.orphans = orphans(settings, factory)  # last, because it sets the clock forward
        return found


def _audit_jobs(found: Audit, factory: SessionFactory, accepted: set[str]) -> None:
    with transaction(factory, read_only=True) as session:
        rows = session.execute(select(Job.id, Job.state, Job.attempt, Job.attempts_lost)).all()
        charged = select(Job.recipe, Job.options).join(Hold, Hold.id == Job.hold_id)
        paid = session.execute(charged.where(Hold.charged_nano > 0)).all()
        told = [
            Counter(session.scalars(select(Release.job_id))),
            Counter(map(tuple, session.execute(select(Hold.job_id, Hold.account_id)))),
            Counter(map(tuple, session.execute(_CAPTURES))),
        ]
    found.jobs_twice = len({job for counts in told for job, times in counts.items() if times > 1})
    known = {row.id for row in rows}
    found.jobs_unfinished = sum(row.state not in ENDED for row in rows) + len(accepted - known)
    found.jobs_unknown = len(known ^ accepted)
    found.states = dict(sorted(Counter(row.state.value for row in rows).items()))
    found.trainings_paid = dict(
        sorted(Counter(f"{row.recipe} {row.options.get('preset', '')}".strip() for row in paid).items())
    )
    found.attempts = sum(row.attempt for row in rows)
    found.attempts_lost = sum(row.attempts_lost for row in rows)


def pixels_sha256(settings: Settings, factory: SessionFactory, dataset_id: str) -> bytes | None:
    """Return the SHA-256 of a stored dataset's pixels; None if it is not ready or cannot be read."""
    with transaction(factory, read_only=True) as session:
        dataset = session.get(Dataset, dataset_id)
    if dataset is None or dataset.state is not DatasetState.READY:
        return None
    try:
        images, _ = Vault.of(settings).open_dataset(dataset_id)
        return hashlib.sha256(np.ascontiguousarray(images).tobytes()).digest()
    except (Conflict, NotFound, OSError):
        return None


def _audit_charges(found: Audit, settings: Settings, factory: SessionFactory) -> None:
    with transaction(factory, read_only=True) as session:
        rows = session.execute(select(Hold.job_id, Hold.captured_nano, Hold.id)).all()
        captured = {row.job_id: row.captured_nano for row in rows}
        charges = select(Entry.details).where(Entry.kind == EntryKind.CHARGE)
        counted = {  # releases in the log of stages that are priced as a whole
            row.job_id: max(
                session.scalars(charges.where(Entry.hold_id == row.id)),
                key=lambda details: sum(details.get("released", {}).values()),
                default={},
            ).get("released", {})
            for row in rows
        }
        states = session.scalars(select(Hold.state)).all()
        found.reserved_nano = int(session.scalar(select(func.sum(Account.reserved_nano))) or 0)
    found.holds_open = sum(state in (HoldState.HELD, HoldState.ARMED) for state in states)
    for job_id in journalled_jobs(storage_of(settings)):
        shown = journalled(storage_of(settings), job_id)
        found.journalled_nano += shown.cost_nano
        beyond = any(shown.counts[stage] > count for stage, count in counted.get(job_id, {}).items())
        found.undercharged += shown.cost_nano > captured.get(job_id, 0) or beyond
    found.captured_nano = sum(captured.values())


def _audit_files(found: Audit, settings: Settings, factory: SessionFactory) -> None:
    with transaction(factory, read_only=True) as session:
        details = session.scalars(select(Entry.details).where(Entry.kind == EntryKind.CAPTURE)).all()
        rows = session.execute(select(Release.id, Release.artifact_sha256))
        releases = {row.id: row.artifact_sha256 for row in rows}
        live = set(session.scalars(select(Job.id).where(Job.state.not_in(ENDED))))
    paid = {entry.get("artifact_sha256") for entry in details} - {None}
    storage = storage_of(settings)
    names = [name for name in storage.list("releases") if is_id(name, "rel")]
    digests = {name: digest_directory(storage.open(key_of(name))) for name in names}
    found.artifacts_without_capture = sum(digest not in paid for digest in digests.values())
    found.artifacts_without_capture += sum(sha256 not in paid for sha256 in releases.values())
    found.releases_lost = sum(name not in digests for name in releases)
    found.releases_changed = sum(digests.get(name, sha256) != sha256 for name, sha256 in releases.items())
    work = {*storage.list("work"), *(path.name for path in settings.work_path.glob("job_*"))}
    found.work_left = sum(name.startswith("job_") and name not in live for name in work)
