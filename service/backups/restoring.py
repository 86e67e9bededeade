"""Restore a backup, so that nothing that was spent after it can be spent again unnoticed.

If the files have survived, journals and receipts prove what the database lacks, and the verification locks the
installation until admins have accepted it (`accepting.py`). If everything comes from the backup, nothing proves what
was spent after it. Then every account is locked until an admin has accepted it, and unfinished trainings are discarded:
they would draw the same noise again from the same secret, and what they drew after the backup may be public.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import delete, make_url, select

from obscura.private_files import make_private_folder
from obscura.wire.words import UNFINISHED as UNFINISHED_STATES
from service import installation, jobs
from service.audit.findings import Report, stop_restored
from service.audit.signing import trusted_keys
from service.backups.databases import DATABASES, BackupRefused, put_back, require_empty
from service.backups.making import FILES, KEYS, Manifest, copy_file, read_manifest
from service.db.access_tables import SignIn
from service.db.job_tables import Job
from service.db.schema import migration_config, upgrade_schema
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.inspection import follow_up, inspect_ledger
from service.settings import Settings
from service.storage import storage_of
from service.storage.files import digest_file
from service.storage.interface import Storage

_SHELVES = ("datasets", "journals", "receipts", "releases", "samples")
_GROWS = ".jsonl"  # ends the names of files that are appended to


@dataclass(frozen=True)
class Restored:
    """The result of a restore.

    Attributes:
        manifest: of the backup.
        report: of the verification of the restored installation.
        discarded: how many unfinished trainings were discarded.
    """

    manifest: Manifest
    report: Report
    discarded: int


def restore(settings: Settings, backup: Path, *, keep_files: bool, now: datetime) -> Restored:
    """Restore a backup to the database and storage of the settings. No service may run there.

    Args:
        backup: its folder.
        keep_files: restore the database alone, beside the surviving files of the same installation.
        now: aware.

    Raises:
        BackupRefused: the backup is incomplete, the target is not empty, the files belong to another installation, or
            the keys are missing. Nothing was changed.
        ProgramMissing: the database is PostgreSQL and pg_restore is not installed.
    """
    manifest = read_manifest(backup)
    storage = storage_of(settings)
    _require_version(settings, manifest)
    require_empty(settings.database_url)
    _require_files(storage, manifest, keep_files=keep_files)
    make_private_folder(settings.local_path)
    if manifest.with_keys:
        _bring_keys(settings, backup, manifest)
    _require_keys(settings, manifest)
    for key, paths in {} if keep_files else _by_key(manifest):
        _publish(storage, backup, key, paths)
    put_back(backup / DATABASES[manifest.database], settings.database_url)
    upgrade_schema(settings.database_url)
    engine = make_engine(settings.database_url, pool_size=2)
    try:
        factory = make_session_factory(engine)
        with transaction(factory) as session:
            session.execute(delete(SignIn))  # people may have signed out since
        discarded = 0
        if not keep_files:
            discarded = _stop(factory, now=now)
            mark = f"{FILES}/{installation.FILE}"
            if mark in manifest.files:  # last: without this file, no start opens or removes anything
                storage.write(installation.FILE, (backup / mark).read_bytes())
        report = inspect_ledger(settings, factory, thorough=True)
        follow_up(factory, report, now=now)
    finally:
        engine.dispose()
    return Restored(manifest, report, discarded)


def _by_key(manifest: Manifest) -> Iterator[tuple[str, list[str]]]:
    """Yield keys of the storage with the paths of their files in the backup."""
    folders: dict[str, list[str]] = {}
    for path in sorted(manifest.files):
        steps = path.split("/")
        if steps[0] == FILES and len(steps) > 2:
            folders.setdefault("/".join(steps[1:3]), []).append(path)
    yield from folders.items()


def _publish(storage: Storage, backup: Path, key: str, paths: list[str]) -> None:
    if key.endswith(_GROWS):
        storage.append(key, (backup / paths[0]).read_bytes())
        return
    if paths == [f"{FILES}/{key}"]:
        storage.write(key, (backup / paths[0]).read_bytes())
        return
    with storage.stage(key) as staging:
        for path in paths:
            copy_file(backup / path, staging / path.removeprefix(f"{FILES}/{key}/"))
        storage.send(staging, key)
        storage.publish(staging, key)


def _stop(factory: SessionFactory, *, now: datetime) -> int:
    """Lock every account until an admin has accepted it, and discard unfinished trainings."""
    with transaction(factory) as session:
        stop_restored(session, now=now)
        unfinished = select(Job.id).where(Job.state.in_(UNFINISHED_STATES), Job.hold_id.is_not(None))
        job_ids = session.scalars(unfinished.order_by(Job.id)).all()
        for job_id in job_ids:
            jobs.request_cancel(session, job_id=job_id, now=now, discard=True)
    return len(job_ids)


def _require_version(settings: Settings, manifest: Manifest) -> None:
    kind = make_url(settings.database_url).get_backend_name()
    if kind != manifest.database:
        raise BackupRefused(
            f"The backup is of a database of {manifest.database}, and OBSCURA_DATABASE_URL names one of {kind}: set it "
            f"to an empty database of {manifest.database}."
        )
    try:
        ScriptDirectory.from_config(migration_config("")).get_revision(manifest.schema)
    except CommandError:
        raise BackupRefused(
            f"The backup has schema {manifest.schema}, which this version does not know: install the version that made "
            "it, or a newer one."
        ) from None


def _require_files(storage: Storage, manifest: Manifest, *, keep_files: bool) -> None:
    if keep_files:
        kept = installation.mark_of(storage)
        if kept is None or kept != manifest.installation:
            raise BackupRefused(
                f"The files are those of installation {kept}, and the backup is of {manifest.installation}: to keep "
                "them, both must be the same. Check OBSCURA_DATA_DIR and OBSCURA_STORAGE."
            )
        return
    full = [shelf for shelf in _SHELVES if storage.list(shelf)]
    full += [installation.FILE] if storage.holds(installation.FILE) else []
    if full:
        raise BackupRefused(
            f"There are files already ({', '.join(full)}). If they have survived, keep them: `obscura restore "
            "--keep-files` brings back the database alone, and compares what was spent. Otherwise choose another place."
        )


def _bring_keys(settings: Settings, backup: Path, manifest: Manifest) -> None:
    for name in manifest.files:
        inside = name.removeprefix(f"{KEYS}/")
        if inside == name:
            continue
        own = inside == settings.ledger_key_path.name or ("/" not in inside and inside.endswith(".pem"))
        target = (settings.ledger_key_path.parent if own else settings.keys_path) / inside
        if not target.exists():
            copy_file(backup / name, target)
        elif digest_file(target) != manifest.files[name]:
            raise BackupRefused(f"There is another key at {target} than in the backup. Move one of them away.")


def _require_keys(settings: Settings, manifest: Manifest) -> None:
    absent = set(manifest.signed_by) - set(trusted_keys(settings.ledger_key_path))
    if absent:
        raise BackupRefused(
            f"The keys are not in this backup, and not in {settings.ledger_key_path.parent} either: without its public "
            f"half ({min(absent)[:16]}...) nothing that the ledger signed can be checked. Bring back the folder of the "
            f"keys first, to {settings.keys_path}; without the keys of datasets no image opens."
        )
