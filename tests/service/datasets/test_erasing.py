"""A deleted dataset that nothing was trained on leaves no name behind, and its images may go where they belong."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pytest
from sqlalchemy import select

from obscura.wire.words import DatasetState
from service import jobs
from service.audit.verify import verify
from service.datasets import deletion, receiving
from service.datasets.fingerprints import KnownAsPrivate, OverlapRefused
from service.datasets.reading import Sent
from service.datasets.vault import DatasetContext
from service.db.dataset_tables import Dataset, Fingerprint
from service.db.session import SessionFactory, transaction
from service.errors import NotFound
from service.identity.access import find, on_behalf, visible
from service.settings import Settings
from tests.service.datasets.uploading import npz
from tests.service.orders import submit_training

PEOPLE = ["SURNAME_GIVEN_19610423", "SURNAME2_GIVEN_19551231"]


@dataclass
class Desk:
    """Where datasets are declared, sent, trained on and deleted."""

    factory: SessionFactory
    settings: Settings
    now: datetime
    open_account: Callable[..., str]
    declare: Callable[..., str]

    def account(self, name: str, **terms: object) -> str:
        return self.open_account(self.factory, name=name, **terms)

    def send(self, account_id: str | None, *, seed: int = 0, subjects: bool = False) -> Dataset:
        """Ten pictures, the same ones of a seed."""
        stated = {"subjects_declared": 20} if subjects else {}
        dataset_id = self.declare(account_id, name="pushed by mistake", classes=PEOPLE, **stated)
        pictures = np.random.default_rng(seed).integers(0, 256, (10, 4, 4), dtype=np.uint8)
        owners = {"subjects": np.arange(10) // 2} if subjects else {}
        sent = Sent(iter([npz(pictures, np.zeros(10, np.int64), **owners)]), "npz")
        return receiving.receive(DatasetContext.of(self.settings, self.factory, lambda: self.now), dataset_id, sent)

    def delete(self, dataset: Dataset) -> Dataset:
        return deletion.delete(self.settings, self.factory, dataset.id, cancel_jobs=True, now=self.now)

    def train(self, dataset: Dataset) -> str:
        with transaction(self.factory) as session:
            return submit_training(session, dataset.id, self.now, options={"teachers": 10, "top_k": 4, "images": 50})

    def listed(self) -> list[str]:
        """What anybody who asks is shown."""
        with transaction(on_behalf(self.factory, lambda: None), read_only=True) as session:
            return [row.id for row in session.scalars(visible(session, Dataset))]

    def faults(self) -> list[str]:
        """What a verification of the whole ledger finds."""
        with transaction(self.factory, read_only=True) as session:
            return [found.message for found in verify(session, trusted={}).findings]


@pytest.fixture
def desk(factory, settings, now, open_account, declare) -> Desk:
    return Desk(factory, settings, now, open_account, declare)


def stored_texts(desk: Desk) -> str:
    """Every text of every row."""
    from service.db.base import Base

    with transaction(desk.factory, read_only=True) as session:
        rows = [tuple(row) for table in Base.metadata.sorted_tables for row in session.execute(select(table))]
    return repr(rows)


def test_names_go_from_every_row_list_and_page_and_the_log_still_holds(desk):
    dataset = desk.send(desk.account("records"))
    assert desk.listed() == [dataset.id]
    assert "GIVEN" in stored_texts(desk)
    for _ in range(2):  # again changes nothing
        erased = desk.delete(dataset)
        assert (erased.state, erased.classes, erased.erased_at) == (DatasetState.DELETED, [], desk.now)
        assert "GIVEN" not in stored_texts(desk)
        assert "mistake" not in stored_texts(desk)
        assert desk.listed() == []
        assert desk.faults() == []


def test_a_declaration_without_content_goes_as_well(desk):
    account_id = desk.account("records")
    dataset_id = desk.declare(account_id, classes=PEOPLE)
    deletion.delete(desk.settings, desk.factory, dataset_id, cancel_jobs=False, now=desk.now)
    assert "GIVEN" not in stored_texts(desk)
    assert desk.faults() == []


def test_pictures_that_nothing_read_move_to_an_account_that_protects_people(desk):
    """The first upload to the wrong account locked them out of the right one for ever."""
    records, people = desk.account("records"), desk.account("people", unit="subject")
    first, second = desk.send(records), desk.send(records, seed=1)
    desk.delete(first)
    with pytest.raises(OverlapRefused):  # the account has other content, whose images may be among these
        desk.send(people, subjects=True)
    desk.delete(second)
    for seed in (0, 1):
        moved = desk.send(people, seed=seed, subjects=True)
        assert (moved.account_id, moved.joined) == (people, False)
    assert desk.faults() == []
    with pytest.raises(OverlapRefused):  # and are held there from now on
        desk.send(records)
    with pytest.raises(KnownAsPrivate):
        desk.send(None)


def test_pictures_of_an_account_that_was_read_stay_where_they_are(desk):
    """Fingerprints stay after a training on another dataset of the account; the declaration is erased."""
    records, people = desk.account("records"), desk.account("people", unit="subject")
    dataset = desk.send(records)
    desk.train(desk.send(records, seed=7))
    desk.delete(dataset)
    assert desk.listed().count(dataset.id) == 0
    with pytest.raises(OverlapRefused):
        desk.send(people, subjects=True)
    assert desk.faults() == []


def test_what_a_training_was_asked_for_keeps_its_declaration_for_ever(desk):
    dataset = desk.send(desk.account("records"))
    job_id = desk.train(dataset)
    deleted = desk.delete(dataset)
    assert (deleted.state, deleted.classes, deleted.erased_at) == (DatasetState.DELETED, PEOPLE, None)
    assert desk.listed() == [dataset.id]
    with transaction(desk.factory) as session:
        assert jobs.get_job(session, job_id).state.value == "cancelled"
    assert desk.faults() == []


def test_one_of_two_datasets_with_the_same_pictures_keeps_its_fingerprints(desk):
    account_id, people = desk.account("records"), desk.account("people", unit="subject")
    first, second = desk.send(account_id), desk.send(account_id)
    desk.delete(first)
    with transaction(desk.factory, read_only=True) as session:
        kept = session.scalars(select(Fingerprint.digest).where(Fingerprint.dataset_id == second.id)).all()
    assert len(kept) == 10
    with pytest.raises(OverlapRefused):
        desk.send(people, subjects=True)


def test_nobody_finds_what_was_erased(desk):
    dataset = desk.send(desk.account("records"))
    desk.delete(dataset)
    with transaction(on_behalf(desk.factory, lambda: None)) as session, pytest.raises(NotFound):
        find(session, Dataset, dataset.id)
