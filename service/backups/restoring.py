"""Restore a backup, so that budget spent after the backup cannot be spent again unnoticed.

If the files have survived, journals and receipts prove the spending that the database lacks. The verification then
locks the installation until admins have accepted this spending (`accepting.py`). If the files also come from the
backup, nothing proves the later spending. Then every account is locked until an admin has accepted its losses, and
unfinished trainings are discarded: they would repeat the same noise from the same secret, and their results since the
backup may be public.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import delete, make_url, select

from obscura.private_files import make_private_folder
from obscura.wire.words import UNFINISHED
from service import installation, jobs
from service.audit.findings import Report, stop_restored
from service.audit.signing import trusted_keys
from service.backups import making
from service.db.access_tables import SignIn
from service.db.job_tables import Job
from service.db.schema import migration_config, upgrade_schema
from service.db.session import open_sessions, transaction
from service.inspection import follow_up, inspect_ledger
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import Storage, digest_file

_SHELVES = ("datasets", "journals", "receipts", "releases", "samples")


@dataclass(frozen=True)
class Restored:
    """The result of a restore: the manifest, the verification, and the number of discarded unfinished trainings."""

    manifest: making.Manifest
    report: Report
    discarded: int


def restore(settings: Settings, backup: Path, *, keep_files: bool, now: datetime) -> Restored:
    """Restore a backup to the database and storage of the settings. No service may run there.

    Args:
        keep_files: restore only the database; the files of the same installation have survived.
    """
    manifest = making.read_manifest(backup)
    storage, discarded = storage_of(settings), 0
    _require_place(settings, storage, manifest, keep_files=keep_files)
    make_private_folder(settings.data_dir)
    _restore_keys(settings, backup, manifest)
    if not keep_files:
        _publish_files(storage, backup, manifest)
    making.restore_database(backup / making.DATABASES[manifest.database], settings.database_url)
    upgrade_schema(settings.database_url)
    with open_sessions(settings.database_url) as factory:
        with transaction(factory) as session:
            session.execute(delete(SignIn))  # people may have signed out after the backup
            if not keep_files:
                stop_restored(session, now=now)
                unfinished = select(Job.id).where(Job.state.in_(UNFINISHED), Job.hold_id.is_not(None))
                for job_id in session.scalars(unfinished.order_by(Job.id)).all():
                    jobs.request_cancel(session, job_id=job_id, now=now, discard=True)
                    discarded += 1
        mark = f"{making.FILES}/{installation.FILE}"
        if not keep_files and mark in manifest.files:  # last: a service that starts without it changes nothing
            storage.write(installation.FILE, (backup / mark).read_bytes())
        report = inspect_ledger(settings, factory, thorough=True)
        follow_up(factory, report, now=now)
    return Restored(manifest, report, discarded)


def _require_place(settings: Settings, storage: Storage, manifest: making.Manifest, *, keep_files: bool) -> None:
    """Raise BackupRefused unless database and files are empty, or the files are those of the backup's installation."""
    kind = make_url(settings.database_url).get_backend_name()
    if kind != manifest.database:
        raise making.BackupRefused(
            f"The backup contains a {manifest.database} database, but OBSCURA_DATABASE_URL names a {kind} database: "
            f"set it to an empty {manifest.database} database."
        )
    try:
        ScriptDirectory.from_config(migration_config("")).get_revision(manifest.schema)
    except CommandError:
        raise making.BackupRefused(
            f"The backup has schema {manifest.schema}, which this version does not know: install the version that made "
            "it, or a newer one."
        ) from None
    making.require_empty(settings.database_url)
    if keep_files:
        kept = installation.mark_of(storage)
        if kept is None or kept != manifest.installation:
            raise making.BackupRefused(
                f"The files belong to installation {kept}, but the backup to {manifest.installation}, so the files "
                "cannot be kept. Check OBSCURA_DATA_DIR and OBSCURA_STORAGE."
            )
        return
    full = [shelf for shelf in _SHELVES if storage.list(shelf)]
    full += [installation.FILE] if storage.holds(installation.FILE) else []
    if full:
        raise making.BackupRefused(
            f"There are files already ({', '.join(full)}). If they are this installation's files, keep them: `obscura "
            "restore --keep-files` restores only the database, and reports missing spending. Otherwise choose an "
            "empty place."
        )


def _restore_keys(settings: Settings, backup: Path, manifest: making.Manifest) -> None:
    """Restore the keys of the backup, if any; raise BackupRefused if the keys that signed its ledger are missing."""
    for name in manifest.files:
        place, _, inside = name.partition("/")
        if place != making.KEYS:
            continue
        own = inside == settings.ledger_key_path.name or ("/" not in inside and inside.endswith(".pem"))
        target = (settings.ledger_key_path.parent if own else settings.keys_path) / inside
        if not target.exists():
            making.copy_file(backup / name, target)
        elif digest_file(target) != manifest.files[name]:
            raise making.BackupRefused(f"The key at {target} differs from that in the backup. Move one of them away.")
    absent = set(manifest.signed_by) - set(trusted_keys(settings.ledger_key_path))
    if absent:
        raise making.BackupRefused(
            f"Keys are neither in this backup nor in {settings.ledger_key_path.parent}. Without the public half of "
            f"the signing key ({min(absent)[:16]}...), the ledger's signatures cannot be checked. First restore the "
            f"key folder to {settings.keys_path}; without the datasets' keys, no image can be opened."
        )


def _publish_files(storage: Storage, backup: Path, manifest: making.Manifest) -> None:
    """Publish the files of the backup under their storage keys, except the installation's id."""
    by_key = defaultdict[str, list[str]](list)
    for path in sorted(manifest.files):
        place, *steps = path.split("/")[:3]
        if place == making.FILES and len(steps) == 2:
            by_key["/".join(steps)].append(path)
    for key, paths in by_key.items():
        if key.endswith(".jsonl"):  # grows by appending
            storage.append(key, (backup / paths[0]).read_bytes())
        elif paths == [f"{making.FILES}/{key}"]:
            storage.write(key, (backup / paths[0]).read_bytes())
        else:
            with storage.stage(key) as staging:
                for path in paths:
                    making.copy_file(backup / path, staging / path.removeprefix(f"{making.FILES}/{key}/"))
                storage.send(staging, key)
                storage.publish(staging, key)
