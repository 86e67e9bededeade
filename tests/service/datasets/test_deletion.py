"""Deleting a dataset: refused while jobs need it, never half done for good, and nothing but the images goes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from service import jobs, ledger
from service.artifacts import directory_of
from service.datasets import deletion, states, vault
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.ledger_tables import EntryRow
from service.db.session import SessionFactory, find, make_engine, make_session_factory, transaction
from service.db.words import DatasetState, JobState
from service.errors import Conflict, InvalidInput, NotFound, ObscuraError
from service.ingest.array_files import SEALED_SUFFIX
from service.sealing import new_key
from service.settings import Settings

OPTIONS = {"teachers": 10, "top_k": 4, "images": 50}
Make = Callable[..., str]


@pytest.fixture
def stored(
    factory: SessionFactory, settings: Settings, open_account: Make, declare_dataset: Make
) -> Callable[..., str]:
    """A private dataset that is ready, with a key and something in its folder."""

    def make(**changes: object) -> str:
        account_id = open_account(factory, name=f"people {new_key().hex()}")
        dataset_id = declare_dataset(factory, account_id=account_id, **changes)
        fill(settings, dataset_id)
        return dataset_id

    return make


def fill(settings: Settings, dataset_id: str) -> None:
    vault.write_key(vault.key_path(settings, dataset_id), new_key())
    directory = directory_of(settings.data_dir, dataset_id)
    directory.mkdir(parents=True)
    (directory / f"images.npy{SEALED_SUFFIX}").write_bytes(b"sealed")


def train(factory: SessionFactory, dataset_id: str, now: datetime, evaluation: str | None = None) -> str:
    with transaction(factory) as session:
        return jobs.submit_training(
            session,
            principal="key_test",
            idempotency_key=None,
            dataset_id=dataset_id,
            recipe="datalens",
            epsilon=1.0,
            options=OPTIONS,
            evaluation_dataset_id=evaluation,
            now=now,
        ).id


def spend(factory: SessionFactory, job_id: str, amount_nano: int, now: datetime) -> str:
    """Run a training as far as a first charge; returns the account that pays."""
    with transaction(factory) as session:
        claim = jobs.claim(session, worker="test", now=now, lease_seconds=600, job_id=job_id)
        assert claim is not None
        assert claim.hold_id is not None
        ledger.arm(session, hold_id=claim.hold_id, attempt=1, now=now)
        stage = jobs.get_job(session, job_id).plan["stages"][0]["name"]
        ledger.charge(session, hold_id=claim.hold_id, attempt=1, amount_nano=amount_nano, stage=stage, now=now)
        return str(claim.account_id)


def begin(factory: SessionFactory, dataset_id: str, *, cancel_jobs: bool = False) -> DatasetState:
    with transaction(factory) as session:
        return deletion.begin(session, dataset_id, cancel_jobs=cancel_jobs, now=datetime.now(UTC)).state


def delete(factory: SessionFactory, settings: Settings, dataset_id: str, *, cancel_jobs: bool = False) -> DatasetState:
    now = datetime.now(UTC)
    return deletion.delete(settings, factory, dataset_id, cancel_jobs=cancel_jobs, now=now).state


def state_of(factory: SessionFactory, dataset_id: str) -> DatasetState:
    with transaction(factory, read_only=True) as session:
        return find(session, Dataset, dataset_id).state


def books(factory: SessionFactory) -> tuple[object, ...]:
    """Every entry and every job."""
    with transaction(factory, read_only=True) as session:
        entries = session.scalars(select(EntryRow.hash).order_by(EntryRow.account_id, EntryRow.sequence)).all()
        return list(entries), session.scalars(select(Job.id).order_by(Job.id)).all()


def gone(settings: Settings, dataset_id: str) -> tuple[bool, bool]:
    """Whether key and files are gone."""
    files = directory_of(settings.data_dir, dataset_id)
    return not vault.key_path(settings, dataset_id).exists(), not files.exists()


def test_key_and_files_go_and_doing_it_again_changes_nothing(
    factory: SessionFactory, settings: Settings, stored: Callable[..., str]
) -> None:
    dataset_id = stored()
    for _ in range(2):
        assert delete(factory, settings, dataset_id) is DatasetState.DELETED
        assert gone(settings, dataset_id) == (True, True)


def test_no_budget_returns_and_nothing_else_goes(
    factory: SessionFactory, settings: Settings, stored: Callable[..., str], now: datetime
) -> None:
    dataset_id = stored()
    job_id = train(factory, dataset_id, now)
    account_id = spend(factory, job_id, 1000, now)
    with transaction(factory) as session:
        jobs.finish_failed(
            session, job_id=job_id, attempt=1, failure_code=jobs.FailureCode.DATASET_UNAVAILABLE, now=now
        )
    before = books(factory)
    delete(factory, settings, dataset_id)
    assert books(factory) == before
    with transaction(factory, read_only=True) as session:
        assert ledger.balance(session, account_id).spent_nano == 1000


@pytest.mark.parametrize("running", [False, True])
def test_a_dataset_that_jobs_need_is_not_deleted(
    factory: SessionFactory,
    settings: Settings,
    stored: Callable[..., str],
    declare_dataset: Make,
    now: datetime,
    running: bool,
) -> None:
    private, public = stored(), declare_dataset(factory, account_id=None)
    job_id = train(factory, private, now, public)
    if running:
        with transaction(factory) as session:
            assert jobs.claim(session, worker="test", now=now, lease_seconds=600, job_id=job_id)
    held = books(factory)
    with pytest.raises(Conflict) as refused:
        begin(factory, private)
    assert refused.value.numbers["jobs"] == [job_id]
    assert state_of(factory, private) is DatasetState.READY
    assert books(factory) == held
    with transaction(factory) as session:
        assert not jobs.get_job(session, job_id).cancel_requested
    if not running:
        with transaction(factory) as session:
            jobs.request_cancel(session, job_id=job_id, now=now)
        assert delete(factory, settings, private) is DatasetState.DELETED


def test_what_a_training_has_made_is_discarded_with_its_dataset(
    factory: SessionFactory, settings: Settings, stored: Callable[..., str], now: datetime
) -> None:
    """Making a release of it would read the images."""
    dataset_id = stored()
    job_id = train(factory, dataset_id, now)
    spend(factory, job_id, 1000, now)
    assert delete(factory, settings, dataset_id, cancel_jobs=True) is DatasetState.DELETING
    with transaction(factory) as session:
        assert jobs.wish_for(session, job_id=job_id, attempt=1) is jobs.Wish.STOP
        jobs.finish_cancelled(session, job_id=job_id, attempt=1, now=now)
    assert delete(factory, settings, dataset_id) is DatasetState.DELETED


def test_a_training_does_without_the_dataset_that_its_release_would_be_measured_on(
    factory: SessionFactory, settings: Settings, stored: Callable[..., str], declare_dataset: Make, now: datetime
) -> None:
    private, public = stored(), declare_dataset(factory, account_id=None)
    job_id = train(factory, private, now, public)
    assert delete(factory, settings, public) is DatasetState.DELETED
    with transaction(factory) as session:
        assert not jobs.get_job(session, job_id).cancel_requested


def test_a_public_dataset_is_not_deleted_while_a_training_needs_it_for_its_basis(
    factory: SessionFactory, open_account: Make, declare_dataset: Make, now: datetime
) -> None:
    private = declare_dataset(factory, account_id=open_account(factory))
    anchors, other = (declare_dataset(factory, account_id=None) for _ in range(2))
    with transaction(factory) as session:
        job_id = jobs.submit_training(
            session,
            principal="key_test",
            idempotency_key=None,
            dataset_id=private,
            recipe="dp_classifier",
            epsilon=6.0,
            options={"estimator": "gep", "anchors_dataset_id": anchors},
            evaluation_dataset_id=None,
            now=now,
        ).id
    with pytest.raises(Conflict) as refused:
        begin(factory, anchors)
    assert refused.value.numbers["jobs"] == [job_id]
    assert begin(factory, other) is DatasetState.DELETING
    assert begin(factory, anchors, cancel_jobs=True) is DatasetState.DELETING


def test_queued_trainings_are_cancelled_with_the_deletion_and_running_ones_are_waited_for(
    factory: SessionFactory, settings: Settings, stored: Callable[..., str], now: datetime
) -> None:
    dataset_id, other = stored(), stored()
    queued, running, foreign = (train(factory, each, now) for each in (dataset_id, dataset_id, other))
    account_id = spend(factory, running, 900, now)
    for _ in range(2):
        assert delete(factory, settings, dataset_id, cancel_jobs=True) is DatasetState.DELETING
        assert gone(settings, dataset_id) == (True, True), "the process may go on for a moment, the key may not"
    deletion.go_on(settings, factory)
    with transaction(factory) as session:
        assert deletion.finish(session, dataset_id).state is DatasetState.DELETING, "its images are still in a memory"
        assert jobs.get_job(session, queued).state is JobState.CANCELLED
        assert jobs.get_job(session, running).cancel_requested
        assert not jobs.get_job(session, foreign).cancel_requested
        jobs.finish_cancelled(session, job_id=running, attempt=1, now=now)
        balance = ledger.balance(session, account_id)
    assert (balance.spent_nano, balance.held_nano) == (900, 0)
    deletion.go_on(settings, factory)
    assert state_of(factory, dataset_id) is DatasetState.DELETED
    assert state_of(factory, other) is DatasetState.READY


def test_a_deletion_that_cannot_be_carried_out_waits_and_keeps_nobody_waiting(
    factory: SessionFactory, settings: Settings, stored: Callable[..., str]
) -> None:
    first, second = sorted([stored(), stored()])
    for dataset_id in (first, second):
        begin(factory, dataset_id)
    key = vault.key_path(settings, first)
    key.unlink()
    key.mkdir()  # stands for a disk that fails
    deletion.go_on(settings, factory)
    assert (state_of(factory, first), state_of(factory, second)) == (DatasetState.DELETING, DatasetState.DELETED)
    key.rmdir()
    deletion.go_on(settings, factory)
    assert state_of(factory, first) is DatasetState.DELETED


def test_a_dataset_that_is_being_deleted_takes_no_job_and_no_upload(
    factory: SessionFactory, stored: Callable[..., str], now: datetime
) -> None:
    dataset_id = stored()
    assert begin(factory, dataset_id) is DatasetState.DELETING
    with pytest.raises((Conflict, InvalidInput)):
        train(factory, dataset_id, now)
    with pytest.raises(Conflict), transaction(factory) as session:
        states.begin_upload(session, dataset_id, now=now, lease_seconds=60)


def test_a_dataset_that_receives_is_not_deleted(
    factory: SessionFactory, stored: Callable[..., str], now: datetime
) -> None:
    dataset_id = stored(state=DatasetState.DECLARED, content_sha256=None, ready_at=None)
    with transaction(factory) as session:
        states.begin_upload(session, dataset_id, now=now, lease_seconds=60)
    with pytest.raises(Conflict, match="receiving"):
        begin(factory, dataset_id)
    with pytest.raises(NotFound):
        begin(factory, "ds_" + "a" * 20)


def test_a_job_and_a_deletion_at_once_never_both_succeed(
    factory: SessionFactory, stored: Callable[..., str], now: datetime
) -> None:
    for _ in range(3):
        dataset_id, done = stored(), []
        start = threading.Barrier(2)

        def attempt(name: str, act: Callable[[], object], start: threading.Barrier, done: list[str]) -> None:
            start.wait(60)
            try:
                act()
            except ObscuraError:
                return
            done.append(name)

        acts = {
            "job": lambda dataset_id=dataset_id: train(factory, dataset_id, now),
            "deletion": lambda dataset_id=dataset_id: begin(factory, dataset_id),
        }
        threads = [threading.Thread(target=attempt, args=(name, act, start, done)) for name, act in acts.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(done) == 1, done


def test_interrupted_deletions_and_returned_keys_are_found_at_the_next_start(
    factory: SessionFactory, settings: Settings, stored: Callable[..., str]
) -> None:
    kept, interrupted, deleted, foreign = (stored() for _ in range(4))
    delete(factory, settings, deleted)
    fill(settings, deleted)  # a backup of keys and images was restored over the data folder
    begin(factory, interrupted)
    with transaction(factory) as session:
        session.delete(session.get_one(Dataset, foreign))  # a dataset that this database, restored too, does not know
    with transaction(factory) as session:
        found = deletion.unfinished(session, settings)
    assert sorted(found) == sorted([interrupted, deleted])
    for dataset_id in found:
        assert delete(factory, settings, dataset_id) is DatasetState.DELETED
        assert gone(settings, dataset_id) == (True, True)
    assert gone(settings, kept) == gone(settings, foreign) == (False, False)
    with transaction(factory) as session:
        assert deletion.unfinished(session, settings) == []


@pytest.mark.parametrize(("place", "key_gone"), [("delete.after", False), ("shred.after", True)])
def test_a_service_killed_while_it_deletes_finishes_at_its_next_start(
    sqlite_template: Path, tmp_path: Path, open_account: Make, declare_dataset: Make, place: str, key_gone: bool
) -> None:
    settings = Settings(data_dir=tmp_path / "data", mode="celery")
    settings.data_dir.mkdir()
    shutil.copyfile(sqlite_template, settings.data_dir / "obscura.db")
    engine = make_engine(settings.database_url)
    factory = make_session_factory(engine)
    dataset_id = declare_dataset(factory, account_id=open_account(factory))
    fill(settings, dataset_id)
    engine.dispose()

    def serve(action: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
        script = Path(__file__).with_name("deleting_service.py")
        return subprocess.run(
            [sys.executable, str(script), str(settings.data_dir), action, dataset_id],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OBSCURA_FAILPOINT": failpoint},
            timeout=300,
        )

    killed = serve("delete", f"{place}:kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert gone(settings, dataset_id) == (key_gone, False)
    next_start = serve("state")
    assert next_start.stdout.strip() == "deleted", next_start.stderr
    assert gone(settings, dataset_id) == (True, True)
