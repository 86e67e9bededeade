"""Several datasets read as one: nothing is copied where nothing is shared, and a record more changes one record."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from service.datasets.vault import destroy_file, key_path
from service.db.dataset_tables import Dataset
from service.errors import NotFound
from service.storage import storage_of
from service.storage.interface import key_of
from tests.workers.small_trainings import digits
from workers.train.orders import read_keys
from workers.train.unions import key_of_all, open_together, read_once

# For each image, by dataset, the label that it has there, or None where it is not.
SETS = st.lists(st.lists(st.none() | st.integers(0, 1), min_size=3, max_size=3), min_size=1, max_size=6)


def read(labels: list[list[int | None]]) -> Counter[tuple[int, int]]:
    """What is read of datasets in which image i has the labels labels[i]: images and labels, each as often as it is."""
    records = [(image, label, number) for image, of in enumerate(labels) for number, label in enumerate(of)]
    there = np.array([(image, label, number) for image, label, number in records if label is not None], np.int64)
    if not len(there):
        return Counter()
    images = there[:, 0].astype(np.uint8).reshape(-1, 1, 1)
    kept = read_once(images, there[:, 1], there[:, 2])
    return Counter((int(image), int(label)) for image, label, _ in there[kept])


@given(SETS, st.data())
def test_a_record_more_or_less_wherever_it_was_uploaded_changes_one_record(labels: Any, data: st.DataObject) -> None:
    """Of one image, some copies go: what is read changes by one record at most."""
    changed = [list(of) for of in labels]
    image = data.draw(st.integers(0, len(labels) - 1))
    kept = data.draw(st.lists(st.booleans(), min_size=3, max_size=3))
    changed[image] = [label if stays else None for label, stays in zip(labels[image], kept, strict=True)]
    before, after = read(labels), read(changed)
    assert ((before - after) + (after - before)).total() <= 1


@given(SETS)
def test_no_image_is_read_twice_and_one_that_is_alone_is_read(labels: Any) -> None:
    found = read(labels)
    assert all(count == 1 for count in found.values())
    for image, of in enumerate(labels):
        there = {label for label in of if label is not None}
        assert [(image, label) in found for label in there] == [len(there) == 1] * len(there)


def test_copies_of_an_image_in_one_dataset_are_records_of_their_own() -> None:
    images = np.array([7, 7, 7, 8, 8], np.uint8).reshape(-1, 1, 1)
    kept = read_once(images, np.array([0, 0, 0, 1, 0]), np.array([0, 0, 1, 0, 0]))
    assert kept.tolist() == [True, True, False, True, True]  # the dataset that has it most often; two labels of one


def test_plain_concatenation_would_count_a_record_twice() -> None:
    """The control: without `read_once`, a record that was uploaded into two datasets weighs two."""
    labels: list[list[int | None]] = [[0, 0, None]]
    assert read(labels).total() == 1
    assert sum(label is not None for label in labels[0]) == 2


def opened(workshop: Any, dataset_ids: list[str]) -> Any:
    datasets = [workshop.do(Session.get_one, Dataset, dataset_id) for dataset_id in dataset_ids]
    keys = read_keys(workshop.settings, datasets)
    return open_together(storage_of(workshop.settings), keys, with_subjects=False)


def test_datasets_are_one_behind_the_other(workshop: Any) -> None:
    _, second = workshop.add_cohort("later", digits(1700, first=1500))
    both = [workshop.dataset_id, second]
    images, labels, subjects = opened(workshop, both)
    parts = digits(1500), digits(1700, first=1500)
    distinct = np.unique(np.concatenate([part.private_images for part in parts]), axis=0)
    assert subjects is None
    assert len(images) == len(labels)
    assert len(np.unique(images, axis=0)) == len(distinct)
    alone = opened(workshop, both[:1])
    assert (alone[0] == parts[0].private_images).all()
    assert (alone[1] == parts[0].private_labels).all()


def test_a_dataset_that_is_read_twice_adds_nothing(workshop: Any) -> None:
    again = workshop.add_dataset(workshop.account_id, digits(300))
    images, labels, _ = opened(workshop, [workshop.dataset_id, again])
    assert (images == digits(1500).private_images).all()
    assert (labels == digits(1500).private_labels).all()


def test_without_any_one_of_them_nothing_is_opened(workshop: Any) -> None:
    _, second = workshop.add_cohort("later", digits(1700, first=1500))
    both = [workshop.dataset_id, second]
    storage_of(workshop.settings).remove(key_of(second))
    with pytest.raises(NotFound, match="no content"):
        opened(workshop, both)
    destroy_file(key_path(workshop.settings, second))
    with pytest.raises(NotFound, match="key"):
        opened(workshop, both)


def test_the_key_of_several_needs_all_of_them_and_that_of_one_is_its_own() -> None:
    a, b, c = (bytes([number]) * 32 for number in range(3))
    assert key_of_all([a]) == a
    made = {key_of_all(keys) for keys in ([a, b], [b, a], [a, c], [a, b, c])}
    assert len(made | {a, b, c}) == 7
