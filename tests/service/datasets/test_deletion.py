"""Deleting a dataset: refused while jobs need it, never half done for good, and nothing but the images goes."""

import numpy as np
import pytest
from sqlalchemy import select

from obscura.wire.words import DatasetState, JobState
from service import jobs, ledger
from service.datasets import deletion, states, vault
from service.db.base import Base
from service.db.dataset_tables import Dataset
from service.db.session import transaction
from service.errors import Conflict, InvalidInput, NotFound, ObscuraError
from service.identity.access import find, on_behalf, visible
from service.ingest.array_files import SEALED_SUFFIX
from service.sealing import new_key
from service.settings import Settings
from service.storage.interface import key_of
from tests.service.datasets.world import World, known_refused, pictures
from tests.together import at_once

pytestmark = pytest.mark.usefixtures("read_here")

PEOPLE = ["SURNAME_GIVEN_19610423", "SURNAME2_GIVEN_19551231"]


def fill(settings: Settings, dataset_id: str) -> None:
    vault.write_key(vault.Vault.of(settings).key_path(dataset_id), new_key())
    directory = settings.data_dir / key_of(dataset_id)
    directory.mkdir(parents=True)
    (directory / f"images.npy{SEALED_SUFFIX}").write_bytes(b"sealed")


class Desk(World):
    """Where datasets are stored without reading anything."""

    def stored(self, **changes: object) -> str:
        dataset_id = self.write(self.account(f"people {new_key().hex()}"), **changes)
        fill(self.settings, dataset_id)
        return dataset_id

    def begin(self, dataset_id: str, *, cancel_jobs: bool = False) -> DatasetState:
        return self.do(deletion.begin, dataset_id, cancel_jobs=cancel_jobs, now=self.context.clock()).state

    def removed(self, dataset_id: str, *, cancel_jobs: bool = False) -> DatasetState:
        return self.delete(dataset_id, cancel_jobs=cancel_jobs).state

    def go_on(self) -> None:
        deletion.go_on(self.settings, self.factory)

    def gone(self, dataset_id: str) -> tuple[bool, bool]:
        key, files = self.context.vault.key_path(dataset_id), self.settings.data_dir / key_of(dataset_id)
        return not key.exists(), not files.exists()


@pytest.fixture
def desk(make_world) -> Desk:
    return make_world(Desk)


def test_key_and_files_go_and_doing_it_again_changes_nothing(desk):
    dataset_id = desk.stored()
    for _ in range(2):
        assert desk.removed(dataset_id) is DatasetState.DELETED
        assert desk.gone(dataset_id) == (True, True)


def test_no_budget_returns_and_nothing_else_goes(desk):
    dataset_id = desk.stored()
    job_id = desk.train(dataset_id)
    account_id = desk.spend(job_id, 1000)
    code = jobs.FailureCode.DATASET_UNAVAILABLE
    desk.do(jobs.finish_failed, job_id=job_id, attempt=1, failure_code=code, now=desk.context.clock())
    before = desk.books()
    desk.removed(dataset_id)
    assert desk.books() == before
    assert desk.job(job_id).failure_code is code
    assert desk.do(ledger.get_account, account_id).spent_nano == 1000


@pytest.mark.parametrize("running", [False, True])
def test_a_dataset_that_jobs_need_is_not_deleted_until_they_are_over(desk, running):
    private = desk.stored()
    job_id = desk.train(private, evaluation_dataset_id=desk.write(None))
    if running:
        desk.spend(job_id, 1000)
    held = desk.books()
    with pytest.raises(Conflict) as refused:
        desk.begin(private)
    assert refused.value.numbers["jobs"] == [job_id]
    assert desk.state(private) is DatasetState.READY
    assert desk.books() == held
    assert not desk.job(job_id).cancel_requested
    if running:  # what it has made is discarded, because making a release of it would read the images
        assert desk.removed(private, cancel_jobs=True) is DatasetState.DELETING
        assert desk.do(jobs.stop_request, job_id=job_id, attempt=1) is jobs.StopRequest.STOP
        desk.finish_cancelled(job_id)
    else:
        desk.do(jobs.request_cancel, job_id=job_id, now=desk.context.clock())
    assert desk.removed(private) is DatasetState.DELETED


def test_public_datasets_are_needed_for_a_basis_and_not_for_a_later_measurement(desk):
    private, measured, anchors = desk.write(desk.account("patients")), desk.write(None), desk.write(None)
    job_id = desk.train(desk.stored(), evaluation_dataset_id=measured)
    assert desk.removed(measured) is DatasetState.DELETED
    assert not desk.job(job_id).cancel_requested
    options = {"estimator": "gep", "anchors_dataset_id": anchors}
    job_id = desk.train(private, recipe="dp_classifier", epsilon=6.0, options=options)
    with pytest.raises(Conflict) as refused:
        desk.begin(anchors)
    assert refused.value.numbers["jobs"] == [job_id]
    assert desk.begin(anchors, cancel_jobs=True) is DatasetState.DELETING


def test_queued_trainings_are_cancelled_with_the_deletion_and_running_ones_are_waited_for(desk):
    dataset_id, other = desk.stored(), desk.stored()
    queued, running, foreign = (desk.train(each) for each in (dataset_id, dataset_id, other))
    account_id = desk.spend(running, 900)
    for _ in range(2):
        assert desk.removed(dataset_id, cancel_jobs=True) is DatasetState.DELETING
        assert desk.gone(dataset_id) == (True, True), "the process may go on for a moment, the key may not"
    desk.go_on()
    assert desk.state(dataset_id) is DatasetState.DELETING, "its images are still in memory"
    assert desk.job(queued).state is JobState.CANCELLED
    assert [desk.job(job_id).cancel_requested for job_id in (running, foreign)] == [True, False]
    desk.finish_cancelled(running)
    balance = desk.do(ledger.get_account, account_id)
    assert (balance.spent_nano, balance.reserved_nano) == (900, 0)
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


def test_a_deletion_excludes_jobs_and_uploads(desk):
    dataset_id = desk.stored(state=DatasetState.DECLARED, content_sha256=None, ready_at=None)
    begin_upload = {"now": desk.context.clock(), "lease_seconds": 60}
    desk.do(states.begin_upload, dataset_id, **begin_upload)
    with pytest.raises(Conflict, match="receiving"):
        desk.begin(dataset_id)
    with pytest.raises(NotFound):
        desk.begin("ds_" + "a" * 20)
    dataset_id = desk.stored()
    assert desk.begin(dataset_id) is DatasetState.DELETING
    with pytest.raises((Conflict, InvalidInput)):
        desk.train(dataset_id)
    with pytest.raises(Conflict):
        desk.do(states.begin_upload, dataset_id, **begin_upload)
    for _ in range(3):
        dataset_id = desk.stored()
        ends = at_once(lambda name=dataset_id: desk.train(name), lambda name=dataset_id: desk.begin(name))
        assert [isinstance(end, ObscuraError) for end in ends].count(True) == 1, ends
        assert not [end for end in ends if isinstance(end, Exception) and not isinstance(end, ObscuraError)]


def test_interrupted_deletions_and_returned_keys_are_found_at_the_next_start(desk):
    kept, interrupted, deleted, foreign = (desk.stored() for _ in range(4))
    desk.removed(deleted)
    fill(desk.settings, deleted)  # a backup of keys and images was restored over the data folder
    desk.begin(interrupted)
    # A dataset that this database, restored too, does not know.
    desk.do(lambda session: session.delete(session.get_one(Dataset, foreign)))
    found = desk.do(deletion.unfinished, desk.settings)
    assert sorted(found) == sorted([interrupted, deleted])
    for dataset_id in found:
        assert desk.removed(dataset_id) is DatasetState.DELETED
        assert desk.gone(dataset_id) == (True, True)
    assert desk.gone(kept) == desk.gone(foreign) == (False, False)
    assert desk.do(deletion.unfinished, desk.settings) == []


# --- datasets that nothing was trained on are erased -----------------------------------------------------------------


def pushed(world: World, account_id: str | None, *, seed: int = 0, subjects: bool = False) -> Dataset:
    stated = {"subjects_declared": 20} if subjects else {}
    dataset_id = world.declare(account_id, name="pushed by mistake", classes=PEOPLE, **stated)
    images = pictures(10, seed=seed)
    return world.send(dataset_id, images, **({"subjects": np.arange(10) // 2} if subjects else {}))


def listed(world: World) -> list[str]:
    with transaction(on_behalf(world.factory, lambda: None), read_only=True) as session:
        return [row.id for row in session.scalars(visible(session, Dataset))]


def stored_texts(world: World) -> str:
    with transaction(world.factory, read_only=True) as session:
        rows = [tuple(row) for table in Base.metadata.sorted_tables for row in session.execute(select(table))]
    return repr(rows)


@pytest.mark.parametrize("with_content", [False, True])
def test_names_go_from_every_row_list_and_page_and_the_log_still_holds(world, with_content):
    account_id = world.account("records")
    declared = {"name": "pushed by mistake", "classes": PEOPLE}
    dataset_id = pushed(world, account_id).id if with_content else world.declare(account_id, **declared)
    assert listed(world) == [dataset_id]
    assert "GIVEN" in stored_texts(world)
    for _ in range(2):  # again changes nothing
        erased = world.delete(dataset_id)
        assert (erased.state, erased.classes, erased.erased_at is None) == (DatasetState.DELETED, [], False)
        assert "GIVEN" not in stored_texts(world)
        assert "mistake" not in stored_texts(world)
        assert listed(world) == []
        assert world.findings() == ()
    with transaction(on_behalf(world.factory, lambda: None)) as session, pytest.raises(NotFound):
        find(session, Dataset, dataset_id)


def test_pictures_that_nothing_read_move_to_an_account_that_protects_people(world):
    """The first upload to the wrong account locked them out of the right one for ever."""
    records, people = world.account("records"), world.account("people", unit="subject")
    first, second = pushed(world, records), pushed(world, records, seed=1)
    world.delete(first.id)
    with known_refused("overlap"):  # the account has other content, whose images may be among these
        pushed(world, people, subjects=True)
    world.delete(second.id)
    for seed in (0, 1):
        moved = pushed(world, people, seed=seed, subjects=True)
        assert (moved.account_id, moved.joined) == (people, False)
    assert world.findings() == ()
    with known_refused("overlap"):  # and are held there from now on
        pushed(world, records)
    with known_refused("known_as_private"):
        pushed(world, None)


def test_pictures_of_an_account_that_was_read_stay_where_they_are(world):
    """Fingerprints stay after a training on another dataset of the account; the declaration is erased."""
    records, people = world.account("records"), world.account("people", unit="subject")
    dataset = pushed(world, records)
    world.train(pushed(world, records, seed=7).id)
    world.delete(dataset.id)
    assert listed(world).count(dataset.id) == 0
    with known_refused("overlap"):
        pushed(world, people, subjects=True)
    assert world.findings() == ()


def test_what_a_training_was_asked_for_keeps_its_declaration_for_ever(world):
    dataset = pushed(world, world.account("records"))
    job_id = world.train(dataset.id)
    deleted = world.delete(dataset.id)
    assert (deleted.state, deleted.classes, deleted.erased_at) == (DatasetState.DELETED, PEOPLE, None)
    assert listed(world) == [dataset.id]
    assert world.job(job_id).state is JobState.CANCELLED
    assert world.findings() == ()


def test_one_of_two_datasets_with_the_same_pictures_keeps_its_fingerprints(world):
    account_id, people = world.account("records"), world.account("people", unit="subject")
    first, second = pushed(world, account_id), pushed(world, account_id)
    world.delete(first.id)
    assert len(world.prints(second.id)) == 10
    with known_refused("overlap"):
        pushed(world, people, subjects=True)
