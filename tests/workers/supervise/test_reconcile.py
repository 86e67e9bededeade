"""Recovery: lost jobs, lost messages and files that nobody will publish."""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import delete, event, select

from obscura.wire.words import JobState, Outcome
from privacy.plans.registry import plan_from_json
from service import jobs, ledger, queue
from service.audit.findings import Finding, FindingCode, clear_stops, stop_arming
from service.audit.signing import open_signing_key
from service.db.access_tables import AuditEvent, Outbox
from service.db.base import new_id, release_id_of
from service.db.job_tables import Sample
from service.db.session import transaction
from service.identity.recording import append, event_of
from service.inspection import inspect_ledger
from service.jobs import kinds
from service.ledger.stops import arming_stops
from service.storage.interface import key_of, work_key
from tests.workers.conftest import on_either_database
from workers.supervise.reconcile import STALE_FOLDER_SECONDS, Reconciler, reconcile, sweep


class Bell:
    """Collects what would be sent to a broker, and reconciles a workshop with itself in the broker's place."""

    def __init__(self) -> None:
        self.rung: list[str] = []

    def send(self, task: str, args: Sequence[Any]) -> None:
        assert task == queue.TASK_RUN_JOB
        self.rung.append(str(args[0]))

    def reconcile(self, workshop: Any, now: datetime, **changes: Any) -> None:
        settings = workshop.settings.model_copy(update=changes)
        reconcile(settings, workshop.factory, send=self.send, now=now)


@pytest.fixture
def bell() -> Bell:
    return Bell()


def publish(workshop: Any, job_id: str) -> str:
    attempt, hold, now = workshop.claim(job_id).number, workshop.hold(job_id), datetime.now(UTC)
    release_id, key = release_id_of(job_id), open_signing_key(workshop.settings.ledger_key_path)
    files = {"artifact_sha256": "ab" * 32, "artifact_dir": f"releases/{release_id}"}
    shown = {"release_id": release_id, "name": "release", "card": {}, "summary": {}}
    first = plan_from_json(workshop.job(job_id).plan).stages[0]
    paid = {"amount_nano": first.cost_nano, "stage": first.name, "event": first.event.to_json()}
    with transaction(workshop.factory) as session:
        ledger.arm(session, hold_id=hold.id, attempt=attempt, now=now)
        ledger.charge(session, hold_id=hold.id, attempt=attempt, now=now, **paid)
        return jobs.publish(session, job_id=job_id, attempt=attempt, key=key, now=now, **files, **shown).id


def test_a_job_whose_lease_ran_out_is_rung_for_at_once_and_a_running_one_is_not(workshop, bell):
    lost, running = workshop.train(epsilon=0.5), workshop.train(epsilon=0.5)
    now = datetime.now(UTC)
    bell.reconcile(workshop, now, lease_seconds=3600)
    bell.rung.clear()
    workshop.claim(lost)
    attempt = workshop.claim(running)
    later = now + timedelta(seconds=60)
    workshop.do(jobs.heartbeat, job_id=running, attempt=attempt.number, now=later, lease_seconds=60)
    for _ in range(2):  # the message that was sent a minute ago is spent; the new one is believed
        bell.reconcile(workshop, later, lease_seconds=3600)
        assert bell.rung == [lost]


def test_of_many_waiting_trainings_the_oldest_is_rung_for_and_every_sampling_is(workshop, bell):
    trainings = [workshop.train(epsilon=0.2) for _ in range(3)]
    release_id = publish(workshop, trainings[0])
    samples = [workshop.sample(release_id) for _ in range(2)]
    later = datetime.now(UTC) + timedelta(seconds=2 * workshop.settings.lease_seconds)
    workshop.do(lambda session: session.execute(delete(Outbox)))  # as if the broker had lost everything
    bell.reconcile(workshop, later)
    assert sorted(bell.rung) == sorted([trainings[1], *samples])


def test_a_cancelled_job_whose_worker_was_lost_is_ended_and_an_untouched_hold_returned(workshop, bell):
    job_id = workshop.train()
    workshop.claim(job_id)
    workshop.cancel(job_id)
    bell.reconcile(workshop, datetime.now(UTC))
    assert workshop.job(job_id).state is JobState.RUNNING  # its worker may still be alive
    bell.reconcile(workshop, datetime.now(UTC) + timedelta(seconds=60))
    assert workshop.job(job_id).state is JobState.CANCELLED
    assert (workshop.balance().spent_nano, workshop.balance().reserved_nano) == (0, 0)


def lay(data_dir: Path, *folders: Path) -> None:
    for path in folders:
        path.mkdir(parents=True, exist_ok=True)
        (path / "file").touch()


def test_files_are_put_away_only_when_their_job_is_known_and_has_ended_without_them(workshop):
    data_dir: Path = workshop.settings.data_dir
    live, ended = workshop.train(epsilon=0.5), workshop.train(epsilon=0.5)
    sample_job = workshop.sample(publish(workshop, workshop.train(epsilon=0.5)))
    for job_id in (ended, sample_job):
        workshop.cancel(job_id)
    sample_id = workshop.do(jobs.made_by, Sample, sample_job).id
    kept = [
        data_dir / work_key(live),
        data_dir / key_of(release_id_of(live)),
        # The database may be the one that is wrong.
        data_dir / work_key(new_id("job")),
        (data_dir / key_of(new_id("rel"))).with_suffix(".0123.tmp"),
    ]
    stale = (data_dir / key_of(release_id_of(live))).with_suffix(".4567.tmp")
    doomed = [*(data_dir / key for key in (work_key(ended), key_of(release_id_of(ended)), key_of(sample_id))), stale]
    fresh = (data_dir / key_of(release_id_of(live))).with_suffix(".0123.tmp")
    lay(data_dir, *kept, *doomed, fresh)
    long_ago = time.time() - STALE_FOLDER_SECONDS - 10
    for path in (stale / "file", stale, kept[-1] / "file", kept[-1]):
        os.utime(path, (long_ago, long_ago))
    foreign = data_dir / "work" / "notes"
    foreign.mkdir()
    now = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert sweep(workshop.settings, workshop.factory, now=now) == len(doomed)
    assert [path for path in doomed if path.exists()] == []
    assert [path for path in (*kept, fresh, foreign) if not path.exists()] == []
    trash = data_dir / "trash"
    assert trash.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in trash.iterdir()} == {
        f"20300102T030405Z.{path.parent.name}.{path.name}" for path in doomed
    }
    assert all((path / "file").is_file() for path in trash.iterdir())


def test_the_trash_keeps_folders_for_the_grace_period_and_the_log_names_them(workshop):
    job_id = workshop.train(epsilon=0.5)
    workshop.cancel(job_id)
    folder = workshop.settings.data_dir / work_key(job_id)
    lay(workshop.settings.data_dir, folder)
    now = datetime.now(UTC).replace(microsecond=0)
    with structlog.testing.capture_logs() as lines:
        assert sweep(workshop.settings, workshop.factory, now=now) == 1
    assert [line["folder"] for line in lines if line["event"] == "put_away"] == [f"work/{job_id}"]
    (waiting,) = (workshop.settings.data_dir / "trash").iterdir()
    (waiting.parent / "notes").mkdir()
    sweep(workshop.settings, workshop.factory, now=now + timedelta(days=30), proved=True)
    assert waiting.is_dir()
    over = now + timedelta(days=30, seconds=1)
    workshop.do(stop_arming, [Finding(FindingCode.ENTRY_MISSING, "An entry is missing.", workshop.account_id)], now=now)
    sweep(workshop.settings, workshop.factory, now=over, proved=True)
    assert waiting.is_dir(), "nothing is removed while anything stands"
    workshop.do(clear_stops)
    with structlog.testing.capture_logs() as lines:
        sweep(workshop.settings, workshop.factory, now=over, proved=True)
    assert [path.name for path in waiting.parent.iterdir()] == ["notes"]
    assert [line["folder"] for line in lines if line["event"] == "removed_for_good"] == [f"trash/{waiting.name}"]
    # Who missed it in time has moved it back.
    lay(workshop.settings.data_dir, folder)
    shorter = workshop.settings.model_copy(update={"trash_days": 0})
    assert sweep(shorter, workshop.factory, now=now) == 1
    assert sweep(shorter, workshop.factory, now=now + timedelta(seconds=1)) == 0
    assert [path.name for path in waiting.parent.iterdir()] == ["notes"]


def test_a_clock_that_has_just_jumped_ahead_empties_no_trash(workshop):
    kept = workshop.settings.model_copy(update={"samples_days": 90})
    release_id = publish(workshop, workshop.train(epsilon=0.5))
    now = datetime.now(UTC).replace(microsecond=0)
    _, folder = drawn(workshop, release_id, now, seed=1)
    waiting = workshop.settings.data_dir / "trash" / f"{now:%Y%m%dT%H%M%SZ}.releases.{new_id('rel')}"
    lay(workshop.settings.data_dir, waiting)
    other_year = now + timedelta(days=365)

    def swept(hours: int) -> tuple[bool, bool]:
        sweep(kept, workshop.factory, now=other_year + timedelta(hours=hours))
        return not waiting.exists(), not folder.exists()

    assert swept(0) == (False, False)
    workshop.sample(release_id, seed=2, now=other_year)
    assert swept(23) == (False, False), "made by the clock that jumped, which nobody had the time to set"
    assert swept(25) == (True, True)


def test_a_sweep_deletes_old_events_of_the_audit_log(workshop):
    now, days = datetime.now(UTC), workshop.settings.audit_log_days
    for age in (days + 1, days - 1):
        happened = event_of(None, "GET /", None, Outcome.REFUSED, at=now - timedelta(days=age))
        with transaction(workshop.factory) as session:
            append(session, [happened])
    sweep(workshop.settings, workshop.factory, now=now)
    with transaction(workshop.factory, read_only=True) as session:
        assert [row.at for row in session.scalars(select(AuditEvent))] == [now - timedelta(days=days - 1)]


def test_before_anything_is_put_away_the_ledger_is_verified_once_more(workshop):
    """As when the database was replaced by an older one under a running service."""
    job_id = workshop.train(epsilon=0.5)
    workshop.cancel(job_id)
    folder = workshop.settings.data_dir / work_key(job_id)
    unknown = workshop.settings.data_dir / key_of(new_id("rel"))
    lay(workshop.settings.data_dir, folder, unknown)
    assert sweep(workshop.settings, workshop.factory, now=datetime.now(UTC)) == 0
    assert folder.is_dir()
    assert unknown.is_dir()
    assert {stop.code for stop in workshop.do(arming_stops)} == {"installation_mismatch"}


@on_either_database
def test_a_release_that_is_published_while_the_sweep_looks_is_kept(workshop):
    job_id = workshop.train()
    folder = workshop.settings.data_dir / key_of(release_id_of(job_id))
    folder.mkdir(parents=True)
    published: list[str] = []

    def after_select(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        if "FROM releases" in statement and not published:
            published.append(job_id)
            publish(workshop, job_id)

    event.listen(workshop.factory.kw["bind"], "after_cursor_execute", after_select)
    assert sweep(workshop.settings, workshop.factory, now=datetime.now(UTC)) == 0
    assert published
    assert folder.is_dir()


def test_the_reconciler_works_on_after_a_failure(workshop):
    calls: list[str] = []

    def send(task: str, args: Sequence[Any]) -> None:
        calls.append(task)
        if len(calls) == 1:
            raise ConnectionError

    workshop.train()
    reconciler = Reconciler(workshop.settings, workshop.factory, send=send, seconds=0.05)
    reconciler.start()
    workshop.wait(lambda: len(calls) >= 2, seconds=60)
    reconciler.stop()


def drawn(workshop: Any, release_id: str, ended: datetime, seed: int) -> tuple[str, Path]:
    job_id = workshop.sample(release_id, seed=seed)
    sample_id = workshop.do(jobs.made_by, Sample, job_id).id
    folder = workshop.settings.data_dir / key_of(sample_id)
    lay(workshop.settings.data_dir, folder)
    attempt = workshop.claim(job_id).number
    facts = {"path": f"samples/{sample_id}/file", "sha256": "ab" * 32, "bytes": 1, "now": ended}
    workshop.do(kinds.sample.KIND.finish, job_id=job_id, attempt=attempt, **facts)
    return sample_id, folder


def test_samples_older_than_they_are_kept_go_into_the_trash_and_releases_never(workshop):
    release_id = publish(workshop, workshop.train(epsilon=0.5))
    release = workshop.settings.data_dir / key_of(release_id)
    lay(workshop.settings.data_dir, release)
    now = datetime.now(UTC)
    old, old_folder = drawn(workshop, release_id, now, seed=1)
    later = now + timedelta(days=90, hours=1)
    assert sweep(workshop.settings, workshop.factory, now=later) == 0, "for ever, unless somebody asks"
    kept = workshop.settings.model_copy(update={"samples_days": 90})
    new, new_folder = drawn(workshop, release_id, now + timedelta(days=1), seed=2)
    assert sweep(kept, workshop.factory, now=now + timedelta(days=89), proved=True) == 0
    finding = Finding(FindingCode.ENTRY_MISSING, "An entry is missing.", workshop.account_id)
    workshop.do(stop_arming, [finding], now=now)
    assert sweep(kept, workshop.factory, now=later, proved=True) == 0, "nothing is removed while anything stands"
    workshop.do(clear_stops)
    assert sweep(kept, workshop.factory, now=later, proved=True) == 1
    assert (old_folder.exists(), new_folder.is_dir(), release.is_dir()) == (False, True, True)
    with transaction(workshop.factory, read_only=True) as session:
        assert session.get_one(Sample, old).removed_at == later
        assert session.get_one(Sample, new).removed_at is None
    assert inspect_ledger(workshop.settings, workshop.factory).clean, "the log says of it what it said"
    (waiting,) = (workshop.settings.data_dir / "trash").iterdir()
    assert waiting.name.endswith(f".samples.{old}")
    lay(workshop.settings.data_dir, old_folder)  # as after a crash between saying so and moving it
    assert sweep(kept, workshop.factory, now=later + timedelta(minutes=1), proved=True) == 1
    assert not old_folder.exists()
