"""Deleting a dataset: refused while jobs need it, never half done for good, and nothing but the images goes."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from obscura.wire.words import DatasetState, JobState
from service import jobs, ledger
from service.datasets import deletion, states, vault
from service.datasets.fingerprints import KnownAsPrivate, OverlapRefused
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.ledger_tables import Entry
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.errors import Conflict, InvalidInput, NotFound, ObscuraError
from service.identity.access import find, on_behalf, visible
from service.ingest.array_files import SEALED_SUFFIX
from service.sealing import new_key
from service.settings import Settings
from service.storage.interface import key_of
from tests.service.datasets.world import World
from tests.service.orders import submit_training
from tests.together import at_once

OPTIONS = {"teachers": 10, "top_k": 4, "images": 50}
PEOPLE = ["SURNAME_GIVEN_19610423", "SURNAME2_GIVEN_19551231"]


def fill(settings: Settings, dataset_id: str) -> None:
    """Write a key, and something into the folder."""
    vault.write_key(vault.Vault.of(settings).key_path(dataset_id), new_key())
    directory = settings.data_dir / key_of(dataset_id)
    directory.mkdir(parents=True)
    (directory / f"images.npy{SEALED_SUFFIX}").write_bytes(b"sealed")


def gone(settings: Settings, dataset_id: str) -> tuple[bool, bool]:
    """Whether key and files are gone."""
    files = settings.data_dir / key_of(dataset_id)
    return not vault.Vault.of(settings).key_path(dataset_id).exists(), not files.exists()


@dataclass
class Desk:
    """Where datasets are stored, trained on and deleted."""

    factory: SessionFactory
    settings: Settings
    now: datetime
    open_account: Callable[..., str]
    declare: Callable[..., str]

    def stored(self, **changes: object) -> str:
        """A private dataset that is ready, with a key and something in its folder."""
        account_id = self.open_account(self.factory, name=f"people {new_key().hex()}")
        dataset_id = self.declare(self.factory, account_id=account_id, **changes)
        fill(self.settings, dataset_id)
        return dataset_id

    def public(self) -> str:
        return self.declare(self.factory, account_id=None)

    def do(self, act: Callable[..., Any], *given: Any, **more: Any) -> Any:
        with transaction(self.factory) as session:
            return act(session, *given, **more)

    def train(self, dataset_id: str, evaluation: str | None = None) -> str:
        changes = {"options": OPTIONS, "evaluation_dataset_id": evaluation}
        return str(self.do(submit_training, dataset_id, self.now, **changes))

    def claim(self, job_id: str) -> jobs.Claim:
        claim = self.do(jobs.claim, worker="test", now=self.now, lease_seconds=600, job_id=job_id)
        assert claim is not None
        return claim

    def spend(self, job_id: str, amount_nano: int) -> str:
        """Run a training as far as a first charge; returns the account that pays."""
        claim = self.claim(job_id)
        paid: dict[str, Any] = {"hold_id": claim.hold_id, "attempt": 1, "now": self.now}
        self.do(ledger.arm, **paid)
        stage = self.do(jobs.get_job, job_id).plan["stages"][0]["name"]
        self.do(ledger.charge, amount_nano=amount_nano, stage=stage, **paid)
        return str(claim.account_id)

    def begin(self, dataset_id: str, *, cancel_jobs: bool = False) -> DatasetState:
        return self.do(deletion.begin, dataset_id, cancel_jobs=cancel_jobs, now=datetime.now(UTC)).state

    def delete(self, dataset_id: str, *, cancel_jobs: bool = False) -> DatasetState:
        now = datetime.now(UTC)
        return deletion.delete(self.settings, self.factory, dataset_id, cancel_jobs=cancel_jobs, now=now).state

    def go_on(self) -> None:
        deletion.go_on(self.settings, self.factory)

    def state(self, dataset_id: str) -> DatasetState:
        return self.do(lambda session: find(session, Dataset, dataset_id).state)

    def gone(self, dataset_id: str) -> tuple[bool, bool]:
        return gone(self.settings, dataset_id)

    def books(self) -> tuple[object, ...]:
        """Every entry and every job."""
        entries = select(Entry.hash).order_by(Entry.account_id, Entry.sequence)
        with transaction(self.factory, read_only=True) as session:
            return session.scalars(entries).all(), session.scalars(select(Job.id).order_by(Job.id)).all()


@pytest.fixture
def desk(factory, settings, now, open_account, declare_dataset) -> Desk:
    return Desk(factory, settings, now, open_account, declare_dataset)


def test_key_and_files_go_and_doing_it_again_changes_nothing(desk):
    dataset_id = desk.stored()
    for _ in range(2):
        assert desk.delete(dataset_id) is DatasetState.DELETED
        assert desk.gone(dataset_id) == (True, True)


def test_no_budget_returns_and_nothing_else_goes(desk):
    dataset_id = desk.stored()
    job_id = desk.train(dataset_id)
    account_id = desk.spend(job_id, 1000)
    code = jobs.FailureCode.DATASET_UNAVAILABLE
    desk.do(jobs.finish_failed, job_id=job_id, attempt=1, failure_code=code, now=desk.now)
    before = desk.books()
    desk.delete(dataset_id)
    assert desk.books() == before
    assert desk.do(ledger.balance, account_id).spent_nano == 1000


@pytest.mark.parametrize("running", [False, True])
def test_a_dataset_that_jobs_need_is_not_deleted(desk, running):
    private = desk.stored()
    job_id = desk.train(private, desk.public())
    if running:
        desk.claim(job_id)
    held = desk.books()
    with pytest.raises(Conflict) as refused:
        desk.begin(private)
    assert refused.value.numbers["jobs"] == [job_id]
    assert desk.state(private) is DatasetState.READY
    assert desk.books() == held
    assert not desk.do(jobs.get_job, job_id).cancel_requested
    if not running:
        desk.do(jobs.request_cancel, job_id=job_id, now=desk.now)
        assert desk.delete(private) is DatasetState.DELETED


def test_what_a_training_has_made_is_discarded_with_its_dataset(desk):
    """Making a release of it would read the images."""
    dataset_id = desk.stored()
    job_id = desk.train(dataset_id)
    desk.spend(job_id, 1000)
    assert desk.delete(dataset_id, cancel_jobs=True) is DatasetState.DELETING
    assert desk.do(jobs.stop_request, job_id=job_id, attempt=1) is jobs.StopRequest.STOP
    desk.do(jobs.finish_cancelled, job_id=job_id, attempt=1, now=desk.now)
    assert desk.delete(dataset_id) is DatasetState.DELETED


def test_a_training_does_without_the_dataset_that_its_release_would_be_measured_on(desk):
    public = desk.public()
    job_id = desk.train(desk.stored(), public)
    assert desk.delete(public) is DatasetState.DELETED
    assert not desk.do(jobs.get_job, job_id).cancel_requested


def test_a_public_dataset_is_not_deleted_while_a_training_needs_it_for_its_basis(desk):
    private = desk.declare(desk.factory, account_id=desk.open_account(desk.factory))
    anchors, other = desk.public(), desk.public()
    basis = {"recipe": "dp_classifier", "epsilon": 6.0, "options": {"estimator": "gep", "anchors_dataset_id": anchors}}
    job_id = desk.do(submit_training, private, desk.now, **basis)
    with pytest.raises(Conflict) as refused:
        desk.begin(anchors)
    assert refused.value.numbers["jobs"] == [job_id]
    assert desk.begin(other) is DatasetState.DELETING
    assert desk.begin(anchors, cancel_jobs=True) is DatasetState.DELETING


def test_queued_trainings_are_cancelled_with_the_deletion_and_running_ones_are_waited_for(desk):
    dataset_id, other = desk.stored(), desk.stored()
    queued, running, foreign = (desk.train(each) for each in (dataset_id, dataset_id, other))
    account_id = desk.spend(running, 900)
    for _ in range(2):
        assert desk.delete(dataset_id, cancel_jobs=True) is DatasetState.DELETING
        assert desk.gone(dataset_id) == (True, True), "the process may go on for a moment, the key may not"
    desk.go_on()
    assert desk.do(deletion.finish, dataset_id).state is DatasetState.DELETING, "its images are still in a memory"
    assert desk.do(jobs.get_job, queued).state is JobState.CANCELLED
    assert [desk.do(jobs.get_job, job_id).cancel_requested for job_id in (running, foreign)] == [True, False]
    desk.do(jobs.finish_cancelled, job_id=running, attempt=1, now=desk.now)
    balance = desk.do(ledger.balance, account_id)
    assert (balance.spent_nano, balance.held_nano) == (900, 0)
    desk.go_on()
    assert (desk.state(dataset_id), desk.state(other)) == (DatasetState.DELETED, DatasetState.READY)


def test_a_deletion_that_cannot_be_carried_out_waits_and_keeps_nobody_waiting(desk):
    first, second = sorted([desk.stored(), desk.stored()])
    for dataset_id in (first, second):
        desk.begin(dataset_id)
    key = vault.Vault.of(desk.settings).key_path(first)
    key.unlink()
    key.mkdir()  # stands for a disk that fails
    desk.go_on()
    assert (desk.state(first), desk.state(second)) == (DatasetState.DELETING, DatasetState.DELETED)
    key.rmdir()
    desk.go_on()
    assert desk.state(first) is DatasetState.DELETED


def test_a_dataset_that_is_being_deleted_takes_no_job_and_no_upload(desk):
    dataset_id = desk.stored()
    assert desk.begin(dataset_id) is DatasetState.DELETING
    with pytest.raises((Conflict, InvalidInput)):
        desk.train(dataset_id)
    with pytest.raises(Conflict):
        desk.do(states.begin_upload, dataset_id, now=desk.now, lease_seconds=60)


def test_a_dataset_that_receives_is_not_deleted(desk):
    dataset_id = desk.stored(state=DatasetState.DECLARED, content_sha256=None, ready_at=None)
    desk.do(states.begin_upload, dataset_id, now=desk.now, lease_seconds=60)
    with pytest.raises(Conflict, match="receiving"):
        desk.begin(dataset_id)
    with pytest.raises(NotFound):
        desk.begin("ds_" + "a" * 20)


def test_a_job_and_a_deletion_at_once_never_both_succeed(desk):
    for _ in range(3):
        dataset_id = desk.stored()
        ends = at_once(lambda name=dataset_id: desk.train(name), lambda name=dataset_id: desk.begin(name))
        assert [isinstance(end, ObscuraError) for end in ends].count(True) == 1, ends
        assert not [end for end in ends if isinstance(end, Exception) and not isinstance(end, ObscuraError)]


def test_interrupted_deletions_and_returned_keys_are_found_at_the_next_start(desk):
    kept, interrupted, deleted, foreign = (desk.stored() for _ in range(4))
    desk.delete(deleted)
    fill(desk.settings, deleted)  # a backup of keys and images was restored over the data folder
    desk.begin(interrupted)
    # A dataset that this database, restored too, does not know.
    desk.do(lambda session: session.delete(session.get_one(Dataset, foreign)))
    found = desk.do(deletion.unfinished, desk.settings)
    assert sorted(found) == sorted([interrupted, deleted])
    for dataset_id in found:
        assert desk.delete(dataset_id) is DatasetState.DELETED
        assert desk.gone(dataset_id) == (True, True)
    assert desk.gone(kept) == desk.gone(foreign) == (False, False)
    assert desk.do(deletion.unfinished, desk.settings) == []


@pytest.mark.parametrize(("place", "key_gone"), [("delete.after", False), ("shred.after", True)])
def test_a_service_killed_while_it_deletes_finishes_at_its_next_start(
    sqlite_template, tmp_path, open_account, declare_dataset, warm, place, key_gone
):
    settings = Settings(data_dir=tmp_path / "data", mode="celery")
    settings.data_dir.mkdir()
    shutil.copyfile(sqlite_template, settings.data_dir / "obscura.db")
    engine = make_engine(settings.database_url)
    factory = make_session_factory(engine)
    dataset_id = declare_dataset(factory, account_id=open_account(factory))
    fill(settings, dataset_id)
    engine.dispose()

    def serve(action: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
        command = [warm, "-m", "tests.service.datasets.deleting_service", str(settings.data_dir), action, dataset_id]
        environment = {**os.environ, "OBSCURA_FAILPOINT": failpoint}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)

    killed = serve("delete", f"{place}:kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert gone(settings, dataset_id) == (key_gone, False)
    next_start = serve("state")
    assert next_start.stdout.strip() == "deleted", next_start.stderr
    assert gone(settings, dataset_id) == (True, True)


# --- datasets that nothing was trained on are erased -----------------------------------------------------------------


def pushed(world: World, account_id: str | None, *, seed: int = 0, subjects: bool = False) -> Dataset:
    """Ten images, the same ones for each seed."""
    stated = {"subjects_declared": 20} if subjects else {}
    dataset_id = world.declare(account_id, name="pushed by mistake", classes=PEOPLE, **stated)
    images = np.random.default_rng(seed).integers(0, 256, (10, 4, 4), dtype=np.uint8)
    return world.send(dataset_id, images, **({"subjects": np.arange(10) // 2} if subjects else {}))


def listed(world: World) -> list[str]:
    """What any caller is shown."""
    with transaction(on_behalf(world.factory, lambda: None), read_only=True) as session:
        return [row.id for row in session.scalars(visible(session, Dataset))]


def stored_texts(world: World) -> str:
    """Every text of every row."""
    from service.db.base import Base

    with transaction(world.factory, read_only=True) as session:
        rows = [tuple(row) for table in Base.metadata.sorted_tables for row in session.execute(select(table))]
    return repr(rows)


def test_names_go_from_every_row_list_and_page_and_the_log_still_holds(world):
    dataset = pushed(world, world.account("records"))
    assert listed(world) == [dataset.id]
    assert "GIVEN" in stored_texts(world)
    for _ in range(2):  # again changes nothing
        erased = world.delete(dataset.id)
        assert (erased.state, erased.classes, erased.erased_at is None) == (DatasetState.DELETED, [], False)
        assert "GIVEN" not in stored_texts(world)
        assert "mistake" not in stored_texts(world)
        assert listed(world) == []
        assert world.faults() == []


def test_a_declaration_without_content_goes_as_well(world):
    account_id = world.account("records")
    dataset_id = world.declare(account_id, classes=PEOPLE)
    world.delete(dataset_id)
    assert "GIVEN" not in stored_texts(world)
    assert world.faults() == []


def test_pictures_that_nothing_read_move_to_an_account_that_protects_people(world):
    """The first upload to the wrong account locked them out of the right one for ever."""
    records, people = world.account("records"), world.account("people", unit="subject")
    first, second = pushed(world, records), pushed(world, records, seed=1)
    world.delete(first.id)
    with pytest.raises(OverlapRefused):  # the account has other content, whose images may be among these
        pushed(world, people, subjects=True)
    world.delete(second.id)
    for seed in (0, 1):
        moved = pushed(world, people, seed=seed, subjects=True)
        assert (moved.account_id, moved.joined) == (people, False)
    assert world.faults() == []
    with pytest.raises(OverlapRefused):  # and are held there from now on
        pushed(world, records)
    with pytest.raises(KnownAsPrivate):
        pushed(world, None)


def test_pictures_of_an_account_that_was_read_stay_where_they_are(world):
    """Fingerprints stay after a training on another dataset of the account; the declaration is erased."""
    records, people = world.account("records"), world.account("people", unit="subject")
    dataset = pushed(world, records)
    world.train(pushed(world, records, seed=7).id)
    world.delete(dataset.id)
    assert listed(world).count(dataset.id) == 0
    with pytest.raises(OverlapRefused):
        pushed(world, people, subjects=True)
    assert world.faults() == []


def test_what_a_training_was_asked_for_keeps_its_declaration_for_ever(world):
    dataset = pushed(world, world.account("records"))
    job_id = world.train(dataset.id)
    deleted = world.delete(dataset.id)
    assert (deleted.state, deleted.classes, deleted.erased_at) == (DatasetState.DELETED, PEOPLE, None)
    assert listed(world) == [dataset.id]
    with transaction(world.factory) as session:
        assert jobs.get_job(session, job_id).state.value == "cancelled"
    assert world.faults() == []


def test_one_of_two_datasets_with_the_same_pictures_keeps_its_fingerprints(world):
    account_id, people = world.account("records"), world.account("people", unit="subject")
    first, second = pushed(world, account_id), pushed(world, account_id)
    world.delete(first.id)
    assert len(world.prints(second.id)) == 10
    with pytest.raises(OverlapRefused):
        pushed(world, people, subjects=True)


def test_nobody_finds_what_was_erased(world):
    dataset = pushed(world, world.account("records"))
    world.delete(dataset.id)
    with transaction(on_behalf(world.factory, lambda: None)) as session, pytest.raises(NotFound):
        find(session, Dataset, dataset.id)
