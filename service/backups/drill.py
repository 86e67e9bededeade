"""A drill: back up, restore elsewhere, verify, compare, and say what a loss would cost and how long it would last."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import text

from service.backups.databases import scratch
from service.backups.making import back_up
from service.backups.manifest import FILES, read_manifest
from service.backups.restoring import mark, place
from service.datasets.vault import open_images
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.errors import NotFound
from service.inspection import inspect_ledger
from service.settings import Settings
from service.storage import storage_of

# By account, the last entry that a copy knows, and whether the database that it was made of has it, with its hash.
_HEADS = text("SELECT id, head_sequence, head_hash FROM accounts ORDER BY id")
_ENTRY = text("SELECT hash FROM entries WHERE account_id = :account_id AND sequence = :sequence")


@dataclass(frozen=True)
class Drilled:
    """What a drill has found.

    Attributes:
        findings: of the verification of what was restored, by code and message.
        accounts: whose last restored entry stands in the running database.
        accounts_differing: whose last restored entry does not.
        files: in the backup.
        files_missing: of releases, samples and datasets that the database names.
        keys_missing: datasets of the backup that no key of this machine opens.
        size_bytes: of the backup.
        rpo_seconds: from the moment that the backup shows to its end. A loss costs at most what is written in so many
            seconds, and in the time between two backups.
        rto_seconds: to check, restore and verify it.
    """

    findings: tuple[str, ...]
    accounts: int
    accounts_differing: int
    files: int
    files_missing: int
    keys_missing: int
    size_bytes: int
    rpo_seconds: float
    rto_seconds: float

    @property
    def sound(self) -> bool:
        """Whether the backup would do."""
        return not (self.findings or self.accounts_differing or self.files_missing or self.keys_missing)


def drill(settings: Settings, factory: SessionFactory, folder: Path | None, *, now: datetime) -> Drilled:
    """Try out, beside the running service, whether what it would lose comes back.

    Args:
        folder: in which there is room for the backup and for what is restored, which are removed at the end; None: the
            usual one for temporary files.
        now: aware.

    Raises:
        BackupRefused, ProgramMissing: as for a backup, or the role of PostgreSQL may make no database.
    """
    with tempfile.TemporaryDirectory(prefix="obscura-drill-", dir=folder) as temporary:
        backup = Path(temporary) / "backup"
        made = back_up(settings, factory, backup, with_keys=False, now=now)
        with scratch(settings.database_url, Path(temporary)) as url:
            began = time.monotonic()
            manifest = read_manifest(backup)
            there = settings.model_copy(
                update={
                    "data_dir": Path(temporary) / "data",
                    "storage": "folder",
                    "anchor": "",  # the running service may sign meanwhile
                    "database_url": url,
                    "keys_dir": settings.keys_path,
                    "ledger_key_file": settings.ledger_key_path,
                }
            )
            storage = storage_of(there)
            place(there, storage, backup, manifest, keep_files=False)
            mark(storage, backup, manifest)
            engine = make_engine(url, pool_size=2)
            try:
                restored = make_session_factory(engine)
                report = inspect_ledger(there, restored, thorough=True)
                seconds = time.monotonic() - began
                same, differing = _compare(restored, factory)
            finally:
                engine.dispose()
            datasets = {name.split("/")[2] for name in manifest.files if name.startswith(f"{FILES}/datasets/")}
            opened = [_opens(there, dataset_id) for dataset_id in sorted(datasets)]
    return Drilled(
        findings=tuple(f"{finding.code.value}: {finding.message}" for finding in report.findings),
        accounts=same,
        accounts_differing=differing,
        files=len(manifest.files),
        files_missing=len(manifest.missing),
        keys_missing=opened.count(False),
        size_bytes=made.size_bytes,
        rpo_seconds=round(made.seconds_since, 3),
        rto_seconds=round(seconds, 3),
    )


def _opens(settings: Settings, dataset_id: str) -> bool:
    """Tell whether what was restored of a dataset opens with the key that this machine has of it: any file has a name
    like that of a key.
    """
    try:
        with open_images(settings, dataset_id):
            return True
    except (NotFound, OSError):
        return False


def _compare(restored: SessionFactory, running: SessionFactory) -> tuple[int, int]:
    with transaction(restored, read_only=True) as session:
        heads = session.execute(_HEADS).all()
    with transaction(running, read_only=True) as session:
        same = sum(
            session.scalar(_ENTRY, {"account_id": row.id, "sequence": row.head_sequence}) == row.head_hash
            for row in heads
        )
    return same, len(heads) - same
