"""Processes that are killed at a named place, on SQLite and PostgreSQL, and checks afterwards."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from sqlalchemy import select, text

from benchmarks.chaos_audit import audit
from obscura.wire.words import EntryKind
from service.db.base import release_id_of
from service.db.job_tables import Job, Release
from service.db.ledger_tables import Entry
from service.db.session import transaction
from service.storage import storage_of
from service.storage.interface import key_of
from service.storage.journals import journalled, read_journal
from tests.together import wait_until
from tests.workers.conftest import Workshop, build
from workers.supervise.attempts import Attempt, claim_job
from workers.supervise.reconcile import reconcile, sweep
from workers.supervise.supervisor import runner_environment

LATER = timedelta(hours=1)  # every lease has run out by then


@dataclass(frozen=True)
class Ended:
    """Exit status and output of a process."""

    status: int
    said: str

    def survived(self) -> Self:
        """Require that the process ended well."""
        assert self.status == 0, self
        return self

    def killed(self) -> Self:
        """Require that the process was killed by SIGKILL."""
        assert self.status == -signal.SIGKILL, self
        return self


_OPEN_TRANSACTIONS = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND backend_type = 'client backend' AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"""


@dataclass
class Scene:
    """A workshop whose processes can be killed."""

    shop: Workshop
    warm: str
    folder: Path

    def order(self, act: str, *, die_at: str = "", **given: Any) -> Ended:
        """Run a process of acts.py with the workshop's settings; it dies at `die_at`, such as "arm.after@2"."""
        environment = runner_environment(self.shop.settings, os.environ)
        place, _, hit = die_at.partition("@")
        environment["OBSCURA_FAILPOINT"] = f"{place}:kill@{hit or 1}" if place else ""
        command = [self.warm, "-m", "tests.crash.acts", act, json.dumps(given)]
        ended = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        if die_at:
            wait_until(self._locks_are_free, "PostgreSQL keeps the transaction of a killed process open")
        return Ended(ended.returncode, ended.stdout)

    def _locks_are_free(self) -> bool:
        """Return whether PostgreSQL has ended the transactions of killed processes, and so released their locks."""
        with self.shop.factory.kw["bind"].connect() as connection:
            return connection.dialect.name == "sqlite" or not connection.scalar(text(_OPEN_TRANSACTIONS))

    def request(self, method: str, path: str, *, die_at: str = "", **sent: Any) -> Ended:
        """Run a web process for one request."""
        return self.order("request", die_at=die_at, method=method, path=path, bell=str(self.folder / "bell"), **sent)

    def told(self, method: str, path: str, **sent: Any) -> Any:
        """Return what a web process answers that survives."""
        return json.loads(self.request(method, path, **sent).survived().said)

    def attempt(self, job_id: str, *, die_at: str = "", now: datetime | None = None) -> Ended:
        claimed = self.claim(job_id, now=now)
        assert claimed is not None
        return self.order("attempt", die_at=die_at, job=job_id, number=claimed.number)

    def claim(self, job_id: str, *, now: datetime | None = None) -> Attempt | None:
        moment = now or datetime.now(UTC)
        return claim_job(self.shop.settings, self.shop.factory, job_id=job_id, worker="test", now=moment)

    def train(self, **options: Any) -> str:
        """Accept a training of 13 charges."""
        return self.shop.train(images=13, images_per_iteration=13, **options)

    def reconcile(self, *, after: timedelta = LATER, **settings: Any) -> list[str]:
        """Reconcile and sweep; return the jobs that messages were sent for."""
        rung: list[str] = []
        reconcile(
            self.shop.settings.model_copy(update=settings),
            self.shop.factory,
            send=lambda _, args: rung.append(args[0]),
            now=datetime.now(UTC) + after,
        )
        sweep(self.shop.settings, self.shop.factory, now=datetime.now(UTC))
        return rung

    def entries(self, job_id: str) -> list[EntryKind]:
        """Return the kinds of a job's ledger entries."""
        return [entry.kind for entry in self.shop.entries() if entry.job_id == job_id]

    def lines(self, job_id: str) -> int:
        """Count the charges in the runners' journal."""
        return len(list(read_journal(storage_of(self.shop.settings), job_id)))

    def journalled_nano(self, job_id: str) -> int:
        return journalled(storage_of(self.shop.settings), job_id).cost_nano

    def files(self, job_id: str) -> set[str]:
        """Return the existing files of a training: `checkpoint`, `trained`, `artifact`, and `release` for its row."""
        work = self.shop.settings.work_path / job_id
        release_id = release_id_of(job_id)
        found = {
            "checkpoint": (work / "checkpoint.sealed").exists(),
            "trained": (work / "trained").exists(),
            "artifact": (self.shop.settings.data_dir / key_of(release_id)).exists(),
        }
        with transaction(self.shop.factory, read_only=True) as session:
            found["release"] = session.get(Release, release_id) is not None
        return {name for name, there in found.items() if there}

    def assert_sound(self) -> None:
        """Reconcile; then all jobs have ended, journals are paid, artifacts are captured, and the ledger verifies."""
        self.reconcile()
        with transaction(self.shop.factory, read_only=True) as session:
            everything = set(session.scalars(select(Job.id)))
            ended = select(Entry.job_id, Entry.account_id).where(Entry.kind == EntryKind.CAPTURE)
            captured = session.execute(ended).all()
        found = audit(self.shop.settings, everything, {})
        assert found.sound, found
        assert len(captured) == len(set(captured))


@pytest.fixture
def scene(request: pytest.FixtureRequest, warm: str, tmp_path: Path) -> Iterator[Scene]:
    """Build a workshop with leases that outlast a test on a slow machine, on SQLite by default."""
    shop = build(tmp_path / "var", request.getfixturevalue(getattr(request, "param", "sqlite_url")))
    shop.settings = shop.settings.model_copy(update={"lease_seconds": 600, "mode": "celery"})
    yield Scene(shop, warm, tmp_path)
    shop.factory.kw["bind"].dispose()


POSTGRESQL = pytest.param("postgres_url", marks=pytest.mark.services)
on_both_databases = pytest.mark.parametrize("scene", ["sqlite_url", POSTGRESQL], indirect=True)
