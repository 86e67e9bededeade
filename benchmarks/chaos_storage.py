"""Mode storage of the chaos benchmark: machines that share no disk, only PostgreSQL, Redis and an S3 server's bucket.

Two API processes stand for one machine, with folders of their own and one folder of keys. Three workers have a folder
each, and one for keys, to which a courier brings copies, as `rsync --delete` would (docs/storage.md). The S3 server is
OpenStack Swift, a process of which is among those that are killed; like the other servers it is also away for a while.
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
    """Yield a running S3 server, which this process and those that it starts can ask; it is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="obscura-chaos-swift-") as folder:
        server = SwiftServer(Path(folder))
        try:
            server.start()
            os.environ.update(environment_of(server.url))
            yield server
        finally:
            server.stop()


class Courier(threading.Thread):
    """Keeps copies of a folder of keys, until it is told to stop."""

    def __init__(self, source: Path, targets: list[Path]) -> None:
        super().__init__(name="courier", daemon=True)
        self._source, self._targets, self._over = source, targets, threading.Event()

    def run(self) -> None:
        """Bring what is new, and remove what is gone."""
        while not self._over.wait(_BRINGS_SECONDS):
            for target in self._targets:
                with suppress(FileNotFoundError):  # removed as we looked
                    self._bring(target)

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self.join()

    def _bring(self, target: Path) -> None:
        wanted = {path.relative_to(self._source) for path in self._source.rglob("*") if path.is_file()}
        for name in wanted:
            copy = target / name
            if not copy.exists():
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                fresh = copy.with_name(f".{copy.name}")
                shutil.copy2(self._source / name, fresh)
                fresh.replace(copy)
        for path in [path for path in target.rglob("*") if path.is_file()]:
            if path.relative_to(target) not in wanted and not path.name.startswith("."):
                path.unlink()


def orphans(settings: Settings, factory: SessionFactory) -> int:
    """Let the grace periods pass and sweep twice, as the service does; return how many objects nobody names then.

    No process of the service runs: what is unfinished now is what crashes have left.
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
    """Return how many claims a crash has left that the next publication will remove."""
    return sum(listed.seconds > CLAIM_SECONDS for listed in Bucket(settings.storage).list("claims/"))
