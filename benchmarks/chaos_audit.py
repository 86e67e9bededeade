"""What the chaos benchmark looks at when the killing is over: jobs, ledger, journals and files of one installation.

The service is stopped while this reads. Nothing is repaired here: a start of the service has had its chance to.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import func, select

from obscura.wire.words import ENDED, DatasetState, EntryKind, HoldState
from service.datasets.vault import Vault
from service.db.base import is_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release
from service.db.ledger_tables import Account, Entry, Hold
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.errors import Conflict, NotFound
from service.inspection import inspect_ledger
from service.ledger.stops import arming_stops
from service.settings import Settings
from service.storage import is_elsewhere, storage_of
from service.storage.files import digest_directory
from service.storage.interface import key_of
from service.storage.journals import journalled, journalled_jobs

_CAPTURES = select(Entry.job_id, Entry.account_id).where(Entry.kind == EntryKind.CAPTURE)


@dataclass
class Audit:
    """Counts of what is wrong, all 0 in a sound installation, and a few facts.

    Attributes:
        jobs_unfinished: accepted jobs that have neither succeeded, failed nor been cancelled.
        jobs_unknown: jobs in the database that no client was told of, or the other way round.
        jobs_twice: jobs with more than one release, or more than one hold or capture of an account.
        uploads_lost: datasets that a client was told are ready, and whose images are not those that it sent.
        undercharged: jobs whose journal shows more than their hold has captured, or than the log counts.
        artifacts_without_capture: release folders, or releases, whose digest no capture lists.
        releases_lost: releases whose files are not there.
        releases_changed: releases whose files are not those that were captured.
        orphans: objects of a bucket that nobody names after the grace periods; `claims_left` tells of the empty ones
            that the next publication removes, which is not wrong.
        holds_open: holds that are neither captured nor released.
        held_nano: what accounts still hold.
        arming_stops: stops that the service has written itself, on findings of its own.
        work_left: work folders, which may hold private state, of jobs that have ended.
        ledger_verified: whether the full verification finds nothing.
        findings: of that verification.
        states: jobs by final state.
        trainings_paid: trainings that have charged anything, by recipe and the preset that was asked for.
        attempts: all attempts of all jobs.
        attempts_lost: those that were lost.
        journalled_nano: what the journals say together.
        captured_nano: what the ledger says.
    """

    jobs_unfinished: int = 0
    jobs_unknown: int = 0
    jobs_twice: int = 0
    uploads_lost: int = 0
    undercharged: int = 0
    artifacts_without_capture: int = 0
    releases_lost: int = 0
    releases_changed: int = 0
    orphans: int = 0
    claims_left: int = 0
    holds_open: int = 0
    held_nano: int = 0
    arming_stops: int = 0
    work_left: int = 0
    ledger_verified: bool = False
    findings: list[str] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)
    trainings_paid: dict[str, int] = field(default_factory=dict)
    attempts: int = 0
    attempts_lost: int = 0
    journalled_nano: int = 0
    captured_nano: int = 0

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        wrong = (
            *(self.jobs_unfinished, self.jobs_unknown, self.jobs_twice, self.uploads_lost),
            *(self.undercharged, self.artifacts_without_capture),
            *(
                self.releases_lost,
                self.releases_changed,
                self.orphans,
                self.holds_open,
                self.held_nano,
                self.arming_stops,
                self.work_left,
            ),
        )
        return self.ledger_verified and not any(wrong)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return asdict(self)


def audit(settings: Settings, accepted: set[str], uploads: Mapping[str, bytes]) -> Audit:
    """Look at everything that an installation has left."""
    engine = make_engine(settings.database_url, pool_size=2)
    factory = make_session_factory(engine)
    try:
        found = Audit()
        _look_at_jobs(found, factory, accepted)
        _look_at_charges(found, settings, factory)
        _look_at_files(found, settings, factory)
        found.uploads_lost = sum(pixels_sha256(settings, factory, name) != sent for name, sent in uploads.items())
        report = inspect_ledger(settings, factory, full=True)
        found.ledger_verified = report.clean
        found.findings = [f"{finding.code.value}: {finding.message}" for finding in report.findings]
        with transaction(factory, read_only=True) as session:
            found.arming_stops = len(arming_stops(session))
        if is_elsewhere(settings):
            from benchmarks.chaos_storage import old_claims, orphans  # which needs a package of an extra

            found.claims_left = old_claims(settings)
            found.orphans = orphans(settings, factory)  # the last: it sets the clock forward
        return found
    finally:
        engine.dispose()


def _look_at_jobs(found: Audit, factory: SessionFactory, accepted: set[str]) -> None:
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
    """Return the SHA-256 of a stored dataset's pixels; None when it is not ready or cannot be read."""
    with transaction(factory, read_only=True) as session:
        dataset = session.get(Dataset, dataset_id)
    if dataset is None or dataset.state is not DatasetState.READY:
        return None
    try:
        images, _ = Vault.of(settings).open_dataset(dataset_id)
        return hashlib.sha256(np.ascontiguousarray(images).tobytes()).digest()
    except (Conflict, NotFound, OSError):
        return None


def _look_at_charges(found: Audit, settings: Settings, factory: SessionFactory) -> None:
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
        found.held_nano = int(session.scalar(select(func.sum(Account.held_nano))) or 0)
    found.holds_open = sum(state in (HoldState.HELD, HoldState.ARMED) for state in states)
    for job_id in journalled_jobs(storage_of(settings)):
        shown = journalled(storage_of(settings), job_id)
        found.journalled_nano += shown.price_nano
        beyond = any(shown.counts[stage] > count for stage, count in counted.get(job_id, {}).items())
        found.undercharged += shown.price_nano > captured.get(job_id, 0) or beyond
    found.captured_nano = sum(captured.values())


def _look_at_files(found: Audit, settings: Settings, factory: SessionFactory) -> None:
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
