"""Subjects that are known again: one number in every dataset of a project, no second budget, and ids that end here."""

from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from obscura.wire.words import DatasetState
from service.datasets.fingerprints import look_up, recognise, settle
from service.db.base import new_id
from service.db.dataset_tables import Dataset, Fingerprint
from service.db.session import transaction
from tests.service.datasets.world import known_refused

pytestmark = pytest.mark.usefixtures("read_here")

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
HASHES = np.array([7, 3, 7, 9], np.int64)


def test_a_subject_has_one_number_whoever_else_is_there():
    numbers, prints = recognise(HASHES, "prj_a", KEY)
    fewer, fewer_prints = recognise(HASHES[1:2], "prj_a", KEY)
    assert numbers[0] == numbers[2]
    assert len(set(numbers.tolist())) == len(prints) == 3
    assert fewer[0] == numbers[1]
    assert fewer_prints < prints
    assert min(numbers) >= 0


@pytest.mark.parametrize(("project", "key"), [("prj_b", KEY), ("prj_a", OTHER)])
def test_in_another_project_or_installation_it_is_somebody_else(project, key):
    here, elsewhere = recognise(HASHES, "prj_a", KEY), recognise(HASHES, project, key)
    assert not set(here[0].tolist()) & set(elsewhere[0].tolist())
    assert not here[1] & elsewhere[1]


def test_neither_number_nor_fingerprint_is_what_the_upload_said():
    """Who reads the database, or the arrays, and knows an id, cannot tell whether it is there."""
    numbers, prints = recognise(HASHES, "prj_a", KEY)
    assert not set(numbers.tolist()) & set(HASHES.tolist())
    halves = {int(number).to_bytes(8, "big") for number in numbers}
    assert all(half not in print for half in halves for print in prints)


def test_two_subjects_under_one_number_are_refused(monkeypatch):
    class Same:
        def copy(self) -> Any:
            return self

        def update(self, data: bytes) -> None:
            pass

        def digest(self) -> bytes:
            return bytes(32)

    monkeypatch.setattr("service.datasets.fingerprints.hmac.new", lambda *_: Same())
    with pytest.raises(ValueError, match=r"^$"):
        recognise(HASHES, "prj_a", KEY)


def test_who_comes_again_is_known_in_any_order_and_spelling(people):
    account_id = people.account("patients")
    first = people.numbers(people.upload(account_id, ["7", "12", "anna"]), ["7", "12", "anna"])
    second = people.numbers(people.upload(account_id, [12, 7, 40]), ["12", "7", "40"])
    assert {name: second[name] for name in ("7", "12")} == {name: first[name] for name in ("7", "12")}
    assert second["40"] not in first.values()


def test_where_nobody_is_to_be_recognised_numbers_are_drawn_afresh(people):
    account_id, ids = people.account("patients"), ["a", "b"]
    known = people.numbers(people.upload(account_id, ids), ids)
    fresh = [people.numbers(people.upload(account_id, ids, subjects_recognised=False), ids) for _ in range(2)]
    drawn = [set(numbers.values()) for numbers in (known, *fresh)]
    assert not drawn[0] & drawn[1]
    assert not drawn[1] & drawn[2]


def test_a_subject_of_another_account_is_refused_and_nothing_is_stored(people):
    people.upload(people.account("patients of 2025"), ["anna", "bert"])
    later = people.account("patients of 2026")
    before = people.books()
    with known_refused("known_subjects") as caught:
        people.upload(later, ["carl", "bert"])
    assert not any(name in str(caught.value) for name in ("bert", "carl", "2025", "1", "2"))
    assert people.datasets(DatasetState.READY) == 1
    assert people.books() == before
    refused = people.do(lambda session: session.scalar(select(Dataset.id).where(Dataset.state == "declared")))
    with pytest.raises(Exception, match="no content"):
        people.context.vault.open_dataset(refused)
    people.upload(later, ["carl"])
    assert people.datasets(DatasetState.READY) == 2


def test_a_subject_whose_dataset_was_deleted_is_still_known(people):
    """What was published from it stays published; unless nothing ever was, see test_deletion."""
    account_id = people.account("patients of 2025")
    dataset_id = people.upload(account_id, ["anna"])
    people.upload(account_id, ["bert"])
    people.delete(dataset_id)
    with known_refused("known_subjects"):
        people.upload(people.account("patients of 2026"), ["anna"])


def test_the_same_id_in_another_project_is_somebody_else(people):
    here, elsewhere = people.account("ours"), people.account("theirs", project_id="prj_heart")
    first, second = (people.numbers(people.upload(account_id, ["7"]), ["7"]) for account_id in (here, elsewhere))
    assert first != second


def test_a_look_that_is_older_than_another_upload_is_taken_again(people):
    """What was found before the lock counts only as long as nothing was accepted since."""
    _, prints = recognise(HASHES, "prj_default", KEY)
    known = look_up(people.factory, frozenset(), prints)
    first = people.upload(people.account("first"), ["x"])
    later = people.account("later")
    with transaction(people.factory) as session:
        session.add_all(Fingerprint(digest=each, dataset_id=first, upload_attempt=1) for each in prints)
        waiting = session.scalars(select(Dataset).where(Dataset.id == first)).one()
        again = Dataset(**{c.name: getattr(waiting, c.name) for c in Dataset.__table__.columns} | {"id": new_id("ds")})
        again.account_id = later
        session.add(again)
        session.flush()
        with known_refused("known_subjects"):
            settle(session, again, frozenset(), known, prints)
