"""Subjects who withdraw: nothing can read their images again, no budget returns, and nobody learns who was there."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from obscura.wire.words import DatasetState
from service import ledger
from service.datasets import deletion, withdrawal
from service.datasets.vault import Vault
from service.datasets.withdrawal import Withdrawal
from service.db.base import new_id
from service.db.dataset_tables import Dataset, WithdrawnSubject
from service.db.session import transaction
from service.errors import Conflict, InvalidInput, NotFound
from service.sealing import new_key
from service.storage import storage_of
from service.storage.journals import read_withdrawn
from tests.service.datasets.world import known_refused, pictures, stored_subjects

pytestmark = pytest.mark.usefixtures("read_here")

FACTS = {"records_declared": 500, "subjects_declared": 500}


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, place: str) -> Iterator[None]:
    """Let a withdrawal break off where a process may be killed."""

    class Killed(BaseException):
        pass

    def die(name: str) -> None:
        if name == place:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(withdrawal, "failpoint", die)
        try:
            yield
        except Killed:
            return
    raise AssertionError(f"{place} was not passed")


def test_images_go_from_every_dataset_of_the_account_and_no_key_opens_what_was(people, tmp_path):
    account_id = people.account("patients")
    first, second = people.upload(account_id, ["anna", "bert", "anna"]), people.upload(account_id, ["carl", "anna"])
    before, books = {each: people.records(each) for each in (first, second)}, people.books()
    old = {
        each: shutil.copytree(storage_of(people.settings).open(f"datasets/{each}"), tmp_path / each) for each in before
    }
    assert all(people.opens(folder, each) for each, folder in old.items()), "the copies are whole"
    done = people.withdraw(account_id, "anna")
    assert done == Withdrawal(account_id, tuple(sorted(before)), (), waiting=False)
    assert people.records(first) == before[first][1:2]
    assert people.records(second) == before[second][:1]
    for each, folder in old.items():
        assert people.row(each).state is DatasetState.READY
        assert people.contents(each) == [f"{each}.1"]
        assert not people.opens(folder, each)
        with pytest.raises(NotFound):
            people.context.vault.open_dataset(each)
    assert people.books() == books, "no entry, no balance and no fingerprint has changed"
    assert people.findings() == ()


def test_labels_and_subjects_stay_with_their_images(people):
    account_id, ids = people.account("patients"), ["a", "b", "c", "b", "d"] * 3
    dataset_id = people.declare(account_id, **FACTS, subjects_recognised=True)
    images = pictures(len(ids))
    labels = np.arange(len(ids)) % 2
    people.send(dataset_id, images, labels=labels, subjects=ids)
    numbers = stored_subjects(people.settings, dataset_id)
    people.withdraw(account_id, "b", "nobody")
    people.withdraw(account_id, "d")  # a second one
    stays = np.isin(ids, ["a", "c"])
    content = people.row(dataset_id).content
    assert content == f"{dataset_id}.2"
    read = people.context.vault.open_dataset(content)
    assert np.array_equal(read[0], images[stays])
    assert np.array_equal(read[1], labels[stays])
    assert np.array_equal(stored_subjects(people.settings, content), numbers[stays])
    assert people.contents(dataset_id) == [content]
    people.withdraw(account_id, "a", "c")
    images, labels = people.context.vault.open_dataset(people.row(dataset_id).content)
    assert (images.shape, labels.shape) == ((0, 4, 4), (0,)), "empty, and it can be read"
    people.withdraw(account_id, "carl")
    assert people.records(dataset_id) == []


def test_whoever_was_not_there_withdraws_alike(people):
    """Neighbours: what is answered, stored by name, written down and said by the log is the same."""

    def seen(name: str, ids: list[str]) -> list[Any]:
        account_id = people.account(name, project_id=new_id("prj"))
        dataset_id = people.upload(account_id, ids)
        done = people.withdraw(account_id, "anna")
        later = people.upload(account_id, ["anna", "dora"])
        rows = [people.row(each) for each in (dataset_id, later)]
        shown = [(row.state, row.joined, row.failure_code, row.content.removeprefix(row.id)) for row in rows]
        with transaction(people.factory, read_only=True) as session:
            rows_of = select(WithdrawnSubject.number).where(WithdrawnSubject.account_id == account_id)
            noted = session.scalars(rows_of).all()
            kinds = [entry.kind for entry in ledger.entries(session, account_id, 0, 100)]
        assert read_withdrawn(storage_of(people.settings), account_id) == set(noted)
        contents = [[name.removeprefix(row.id) for name in people.contents(row.id)] for row in rows]
        return [len(done.dataset_ids), done.not_recognised, done.waiting, shown, len(noted), kinds, contents]

    assert seen("with her", ["anna", "bert", "anna"]) == seen("without her", ["carl", "emil", "fred"])


def test_later_uploads_are_accepted_without_them_and_other_accounts_refuse_them_as_before(people):
    account_id = people.account("patients of 2025")
    people.upload(account_id, ["anna", "bert"])
    people.withdraw(account_id, "anna")
    later = people.upload(account_id, ["anna", "carl"])
    row = people.row(later)
    assert (row.state, row.content) == (DatasetState.READY, f"{later}.1")
    assert len(people.records(later)) == 1
    assert people.contents(later) == [row.content]
    key = people.context.vault.key_path(later)
    key.write_bytes(new_key())  # another machine has a copy of the old key
    deletion.destroy_copies(people.settings, people.factory)
    assert not key.exists()
    assert len(people.records(later)) == 1
    with known_refused("known_subjects"):  # no second budget
        people.upload(people.account("patients of 2026"), ["anna"])
    assert people.findings() == ()


def test_what_cannot_be_written_anew_at_once_is_not_trained_on_before_it_is(people, monkeypatch):
    account_id = people.account("patients")
    people.upload(account_id, ["bert"])
    people.withdraw(account_id, "anna")
    with monkeypatch.context() as patch:
        patch.setattr(Vault, "rewrite", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
        later = people.upload(account_id, ["anna", "carl"], **FACTS)
    assert people.row(later).state is DatasetState.WITHDRAWING, "accepted all the same"
    with pytest.raises(Conflict, match="subjects who withdrew are removed"):
        people.train(later)
    people.go_on()
    assert people.row(later).state is DatasetState.READY
    assert len(people.records(later)) == 1
    people.train(later)


def test_where_nobody_is_recognised_it_says_how_to_withdraw(people, open_account):
    records = open_account(people.factory, name="records")
    with pytest.raises(InvalidInput, match=r"protects single records.*push it again without the image"):
        people.withdraw(records, "anna")
    account_id = people.account("patients")
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"recognises subjects.*Delete each dataset.*Push it again"):
            people.withdraw(account_id, "anna")
        people.upload(account_id, ["anna"], subjects_recognised=False)
    with pytest.raises(NotFound):
        people.withdraw("acc_" + "a" * 20, "anna")
    known = people.upload(account_id, ["anna", "bert"])
    for nobody in ("unknown", "N/A", ""):
        with pytest.raises(InvalidInput, match="is a placeholder"):
            people.withdraw(account_id, nobody)
    done = people.withdraw(account_id, "anna")
    assert done.dataset_ids == (known,)
    assert len(done.not_recognised) == 2


def test_from_then_on_a_dataset_of_the_account_recognises_subjects(people):
    """Otherwise whoever has withdrawn could come back unseen: declared now, or declared before."""
    account_id = people.account("patients")
    people.upload(account_id, ["bert"])
    before = people.declare(account_id, subjects_declared=10)
    people.withdraw(account_id, "anna")
    with pytest.raises(InvalidInput, match="recognise subjects"):
        people.declare(account_id, subjects_declared=10)
    with pytest.raises(InvalidInput, match="recognise subjects"):
        people.send(before, pictures(1), subjects=["anna"])
    assert people.row(before).state is DatasetState.DECLARED
    people.upload(people.account("others"), ["x"], subjects_recognised=False)


def test_an_upload_that_arrives_while_somebody_withdraws_is_written_anew(people):
    account_id = people.account("patients")
    people.upload(account_id, ["bert"])
    dataset_id = people.declare(account_id, subjects_declared=10, subjects_recognised=True)
    images = pictures(2, seed=9)
    people.send(dataset_id, images, subjects=["anna", "carl"], during=lambda: people.withdraw(account_id, "anna"))
    assert people.records(dataset_id) == [images[1].tobytes()]


def test_trainings_are_waited_for_or_stopped_and_what_they_charged_stays(people):
    account_id = people.account("patients")
    dataset_id = people.upload(account_id, ["anna", "bert"], **FACTS)
    job_id = people.train(dataset_id)
    with pytest.raises(Conflict, match=job_id):
        people.withdraw(account_id, "anna")
    assert people.row(dataset_id).state is DatasetState.READY, "nothing is half done"
    assert people.do(lambda session: session.scalars(select(WithdrawnSubject)).all()) == []
    people.spend(job_id, 1000)
    assert people.withdraw(account_id, "anna", cancel_jobs=True).waiting
    assert (people.row(dataset_id).state, len(people.records(dataset_id))) == (DatasetState.WITHDRAWING, 2)
    with pytest.raises(Conflict, match="subjects who withdrew are removed"):
        people.train(dataset_id)
    people.go_on()
    assert people.row(dataset_id).state is DatasetState.WITHDRAWING, "its process may have them in memory"
    people.finish_cancelled(job_id)
    people.go_on()
    assert (people.row(dataset_id).state, len(people.records(dataset_id))) == (DatasetState.READY, 1)
    assert people.do(ledger.get_account, account_id).spent_nano == 1000
    people.train(dataset_id)


def test_who_withdraws_while_it_is_written_anew_is_left_out_as_well(people, monkeypatch):
    account_id = people.account("patients")
    dataset_id = people.upload(account_id, ["anna", "bert", "carl"])
    with dying_at(monkeypatch, "withdraw.after"):
        people.withdraw(account_id, "anna")
    write, meanwhile = Vault.rewrite, ["bert"]

    def slow(*given: Any) -> Any:
        rewritten = write(*given)
        if meanwhile:
            with monkeypatch.context() as patch:
                patch.setattr(withdrawal, "complete", lambda *_, **__: False)  # another process, which waits its turn
                people.withdraw(account_id, meanwhile.pop())
        return rewritten

    monkeypatch.setattr(Vault, "rewrite", slow)
    people.go_on()
    assert len(people.records(dataset_id)) == 1
    assert people.contents(dataset_id) == [people.row(dataset_id).content]


def test_a_deletion_takes_all_that_there_is(people, monkeypatch):
    account_id = people.account("patients")
    ready, broken = people.upload(account_id, ["anna", "bert"]), people.upload(account_id, ["carl"])
    people.withdraw(account_id, "anna")
    with dying_at(monkeypatch, "anew.before"):
        people.withdraw(account_id, "bert")
    for dataset_id in (ready, broken):
        assert people.contents(dataset_id)
        gone = people.delete(dataset_id, cancel_jobs=False)
        assert (gone.state, people.contents(dataset_id)) == (DatasetState.DELETED, [])
    people.go_on()
    assert people.findings() == ()


@pytest.mark.parametrize("key_returns", [False, True])
def test_a_database_of_a_backup_from_before_is_told_who_has_withdrawn(people, key_returns):
    """Files, and the list beside the journals, have survived; of the keys, perhaps an old copy comes back."""
    account_id = people.account("patients")
    dataset_id = people.upload(account_id, ["anna", "bert"])
    old, folder = people.context.vault.key_path(dataset_id), people.settings.data_dir / "datasets" / dataset_id
    key, files = old.read_bytes(), {path.name: path.read_bytes() for path in folder.iterdir()}
    people.withdraw(account_id, "anna")
    with transaction(people.factory) as session:
        row = session.get_one(Dataset, dataset_id)
        row.content_name = row.content_key_id = None
        for noted in session.scalars(select(WithdrawnSubject)):
            session.delete(noted)
    if key_returns:
        old.write_bytes(key)
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        assert len(people.records(dataset_id)) == 2
    for _ in range(2):
        withdrawal.recall(people.settings, people.factory, now=datetime.now(UTC))
        people.go_on()
        assert people.row(dataset_id).state is DatasetState.READY
        assert len(people.records(dataset_id)) == 1
        assert people.contents(dataset_id) == [people.row(dataset_id).content]


def test_a_list_of_another_database_is_passed_over(people):
    account_id = people.account("patients")
    people.upload(account_id, ["anna", "bert"])
    people.withdraw(account_id, "anna")
    lists = people.settings.data_dir / "journals"
    (name,) = (path.name for path in lists.glob("withdrawn.*"))
    shutil.copyfile(lists / name, lists / name.replace(account_id, "acc_" + "a" * 20))
    (lists / name).write_bytes((lists / name).read_bytes() + b'\n{"withdrawn": [1, 2\n')  # torn by a crash
    withdrawal.recall(people.settings, people.factory, now=datetime.now(UTC))
    assert people.datasets(DatasetState.READY) == 1
