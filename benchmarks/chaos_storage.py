"""Mode storage of the chaos benchmark: machines that share only PostgreSQL, Redis and an S3 bucket.

Two API processes have folders of their own and one folder of keys. Three workers have a folder each, and a folder of
keys, which a courier keeps up to date, as `rsync --delete` would. The S3 server is OpenStack Swift.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scripts.swift_server import BUCKET, SwiftServer, environment_of
from service.datasets import reading
from service.db.session import SessionFactory
from service.settings import Settings
from service.storage.interface import UNFINISHED
from service.storage.s3.bucket import PATIENCE, Bucket
from service.storage.s3.entries import KEYS, PARTS, SEGMENT, Entries
from workers.supervise import reconcile

URL = f"s3://{BUCKET}/chaos"
WORKERS = 3
CLAIM_SECONDS = PATIENCE.claim_seconds
_BRINGS_SECONDS = 0.3


@contextmanager
def own_bucket() -> Iterator[SwiftServer]:
    """Yield a running S3 server, whose address is in the environment of this process."""
    with tempfile.TemporaryDirectory(prefix="obscura-chaos-swift-") as folder:
        server = SwiftServer(Path(folder))
        try:
            server.start()
            os.environ.update(environment_of(server.url))
            yield server
        finally:
            server.stop()


class Courier(threading.Thread):
    """Keep copies of a folder of keys up to date."""

    def __init__(self, source: Path, targets: list[Path]) -> None:
        super().__init__(name="courier", daemon=True)
        self._source, self._targets, self._over = source, targets, threading.Event()

    def run(self) -> None:
        while not self._over.wait(_BRINGS_SECONDS):
            for target in self._targets:
                with suppress(FileNotFoundError):  # removed meanwhile
                    wanted = {path.relative_to(self._source) for path in self._source.rglob("*") if path.is_file()}
                    for copy in [target / name for name in wanted if not (target / name).exists()]:
                        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                        fresh = copy.with_name(f".{copy.name}")
                        shutil.copy2(self._source / copy.relative_to(target), fresh)
                        fresh.replace(copy)
                    for path in [path for path in target.rglob("[!.]*") if path.is_file()]:
                        if path.relative_to(target) not in wanted:
                            path.unlink()

    def stop(self) -> None:
        self._over.set()
        self.join()


def orphans(settings: Settings, factory: SessionFactory) -> int:
    """Skip the grace periods, sweep twice as the service does, and count the objects that nothing names then.

    No process of the service runs, so everything unfinished was left by a crash.
    """
    later = datetime.now(UTC) + timedelta(days=settings.trash_days + 1)
    stale, reconcile.STALE_FOLDER_SECONDS = reconcile.STALE_FOLDER_SECONDS, -1.0
    try:
        reading.sweep(settings, set)
        reconcile.sweep(settings, factory, now=datetime.now(UTC))
        reconcile.sweep(settings, factory, now=later, proved=True)
    finally:
        reconcile.STALE_FOLDER_SECONDS = stale
    bucket = Bucket(settings.storage)
    lookup = Entries(bucket)
    names = [listed.name.removeprefix(KEYS) for listed in bucket.list(KEYS)]
    entries = [lookup.entry(name) for name in names if not name.rpartition("/")[2].startswith(SEGMENT)]
    named = {part for entry in entries if entry is not None for part in entry.parts()}
    parts = {listed.name for listed in bucket.list(PARTS)}
    return len(parts ^ named) + sum(name.endswith(UNFINISHED) for name in names)


def old_claims(settings: Settings) -> int:
    """Count the claims of crashed processes, which the next publication removes."""
    return sum(listed.seconds > CLAIM_SECONDS for listed in Bucket(settings.storage).list("claims/"))
