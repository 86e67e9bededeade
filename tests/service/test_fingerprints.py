"""Images that come again: found by their pixels whatever the file, kept on one budget, and nobody is told more."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from datetime import datetime
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sqlalchemy import select

from service import datasets, deletion, vault
from service.db.base import new_id
from service.db.session import SessionFactory, transaction
from service.db.tables import Dataset, DatasetState, Fingerprint, Visibility
from service.fingerprints import DIGEST_BYTES, OverlapRefused, fingerprint, known, settle
from service.settings import Settings
from service.uploads import ReceivedContent

KEY = bytes(range(32))
Open = Callable[..., str]


def pictures(count: int, *, seed: int = 0, channels: int = 1) -> np.ndarray:
    shape = (count, 5, 7) if channels == 1 else (count, 5, 7, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def prints(images: np.ndarray, key: bytes = KEY) -> frozenset[bytes]:
    return fingerprint([images], key)


@pytest.fixture
def declare(now: datetime) -> Callable[..., str]:
    """Write the row of a private dataset that is receiving its content, and return its id."""

    def declared(factory: SessionFactory, account_id: str, **changes: object) -> str:
        facts = {"classes": ["a"], "height": 5, "width": 7, "channels": 1, "records_declared": 1000, **changes}
        dataset = Dataset(
            id=new_id("ds"),
            account_id=account_id,
            name="pictures",
            visibility=Visibility.PRIVATE,
            state=DatasetState.RECEIVING,
            created_at=now,
            **facts,
        )
        with transaction(factory) as session:
            session.add(dataset)
        return dataset.id

    return declared


@pytest.fixture
def upload(declare: Callable[..., str], now: datetime) -> Callable[..., Dataset]:
    """Accept content with these images into a new dataset of an account."""

    def uploaded(factory: SessionFactory, account_id: str, images: np.ndarray) -> Dataset:
        dataset_id = declare(factory, account_id)
        received = ReceivedContent(dataset_id, "npz", "0" * 64, 1, prints(images))
        with transaction(factory) as session:
            return datasets.accept_upload(session, received, now=now)

    return uploaded


def stored(factory: SessionFactory) -> set[tuple[bytes, str]]:
    with transaction(factory, read_only=True) as session:
        return {(row.digest, row.account_id) for row in session.scalars(select(Fingerprint))}


# --- what a fingerprint sees ----------------------------------------------------------------------------------------


def test_every_image_has_one_that_depends_on_the_secret() -> None:
    images = pictures(50)
    assert len(prints(images)) == 50
    assert all(len(digest) == DIGEST_BYTES for digest in prints(images))
    assert prints(images) == prints(images[::-1]) == fingerprint(iter([images[:7], images[7:]]), KEY)
    assert not prints(images) & prints(images, bytes(32))
    assert prints(images[[0, 0, 0]]) == prints(images[:1])


def test_the_file_format_makes_no_difference() -> None:
    image = pictures(1)[0]
    for options in ({"format": "PNG"}, {"format": "PNG", "compress_level": 0}, {"format": "BMP"}):
        file = io.BytesIO()
        Image.fromarray(image).save(file, **options)  # type: ignore[arg-type]
        assert prints(np.asarray(Image.open(file))[None]) == prints(image[None])


def test_a_gray_picture_that_comes_in_colour_is_the_same() -> None:
    gray = pictures(6)
    assert prints(np.repeat(gray[..., None], 3, axis=3)) == prints(gray)


def test_shape_channel_order_and_a_single_step_of_one_pixel_make_another_image() -> None:
    colour = pictures(1, channels=3)
    found = [prints(colour[..., list(order)]) for order in permutations(range(3))]
    changed = colour.copy()
    changed[0, 2, 3, 1] ^= 1
    found += [prints(changed), prints(colour.transpose(0, 2, 1, 3)), prints(colour.reshape(1, 7, 5, 3))]
    assert len(frozenset().union(*found)) == len(found)


def test_blank_images_join_nobody() -> None:
    blank = np.stack([np.full((5, 7), value, np.uint8) for value in (0, 7, 255)])
    assert prints(blank) == frozenset()
    one_colour = np.broadcast_to(np.array([200, 10, 10], np.uint8), (2, 5, 7, 3))
    assert prints(one_colour) == frozenset()
    almost = blank.copy()
    almost[:, 4, 6] ^= 1
    assert len(prints(almost)) == 3


# --- who pays -------------------------------------------------------------------------------------------------------


def test_images_that_are_new_stay_where_they_were_declared(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset]
) -> None:
    first, second = open_account(factory, name="first"), open_account(factory, name="second")
    for account_id, seed in ((first, 1), (second, 2)):
        dataset = upload(factory, account_id, pictures(20, seed=seed))
        assert (dataset.account_id, dataset.joined, dataset.state) == (account_id, False, DatasetState.READY)
    assert stored(factory) == {
        (digest, account_id)
        for account_id, seed in ((first, 1), (second, 2))
        for digest in prints(pictures(20, seed=seed))
    }


@pytest.mark.parametrize("shared", [1, 5, 20])
def test_one_known_image_is_enough_to_join(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset], shared: int
) -> None:
    first, second = open_account(factory, name="first"), open_account(factory, name="second")
    known_images, new_images = pictures(20, seed=1), pictures(30, seed=2)
    upload(factory, first, known_images)
    joined = upload(factory, second, np.concatenate([new_images, known_images[:shared]]))
    assert (joined.account_id, joined.joined) == (first, True)
    # What came with the known images is the first account's from now on.
    again = upload(factory, second, new_images[:3])
    assert (again.account_id, again.joined) == (first, True)
    assert {account_id for _, account_id in stored(factory)} == {first}


def test_uploading_again_into_the_same_account_moves_nothing(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset]
) -> None:
    account_id = open_account(factory)
    for _ in range(2):
        dataset = upload(factory, account_id, pictures(20))
        assert (dataset.account_id, dataset.joined) == (account_id, False)
    assert len(stored(factory)) == 20


def test_images_stay_known_after_the_dataset_is_deleted(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset], now: datetime
) -> None:
    first, second = open_account(factory, name="first"), open_account(factory, name="second")
    dataset = upload(factory, first, pictures(20))
    with transaction(factory) as session:
        deletion.begin(session, dataset.id, cancel_jobs=False, now=now)
    with transaction(factory) as session:
        assert deletion.finish(session, dataset.id).state is DatasetState.DELETED
    assert upload(factory, second, pictures(20)).account_id == first


def test_images_of_several_accounts_are_refused_and_leave_no_trace(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset]
) -> None:
    ids = [open_account(factory, name=name) for name in ("first", "second", "third")]
    for seed, account_id in enumerate(ids[:2]):
        upload(factory, account_id, pictures(10, seed=seed))
    before = stored(factory)
    mixed = np.concatenate([pictures(1, seed=0), pictures(1, seed=1), pictures(5, seed=9)])
    for account_id in ids:  # also into one of those that have them: the other's images would be paid from there
        with pytest.raises(OverlapRefused) as refused:
            upload(factory, account_id, mixed)
        assert refused.value.numbers == {"fault": "overlap"}
    assert stored(factory) == before


def test_accounts_of_different_units_share_no_dataset_and_the_answer_is_the_same(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset]
) -> None:
    records, subjects = open_account(factory, name="records"), open_account(factory, name="subjects", unit="subject")
    upload(factory, records, pictures(10, seed=0))
    upload(factory, subjects, pictures(10, seed=1))
    messages = set()
    for account_id, seed in ((subjects, 0), (records, 1)):
        with pytest.raises(OverlapRefused) as refused:
            upload(factory, account_id, pictures(10, seed=seed))
        messages.add(refused.value.message)
    assert len(messages) == 1


def test_subjects_with_records_in_their_own_account_are_not_given_a_second_budget(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset]
) -> None:
    first = open_account(factory, name="first", unit="subject")
    second = open_account(factory, name="second", unit="subject")
    upload(factory, first, pictures(10, seed=0))
    assert upload(factory, second, pictures(10, seed=0)).account_id == first  # the second has had nothing yet
    upload(factory, second, pictures(10, seed=5))
    with pytest.raises(OverlapRefused):
        upload(factory, second, np.concatenate([pictures(1, seed=0), pictures(10, seed=6)]))


def test_many_digests_go_through_in_several_statements(
    factory: SessionFactory, open_account: Open, declare: Callable[..., str]
) -> None:
    count = 2**16 + 3
    digests = frozenset(number.to_bytes(DIGEST_BYTES, "little") for number in range(1, count + 1))
    first, second = open_account(factory, name="first"), open_account(factory, name="second")
    here, there = declare(factory, first), declare(factory, second)
    with transaction(factory) as session:
        assert not known(session)
        assert settle(session, session.get_one(Dataset, here), digests) == first
        assert known(session)
    with transaction(factory) as session:
        assert settle(session, session.get_one(Dataset, there), frozenset([max(digests)])) == first
    assert len(stored(factory)) == count


def test_the_same_images_into_two_accounts_at_once_end_in_one(
    factory: SessionFactory, open_account: Open, declare: Callable[..., str], now: datetime
) -> None:
    ids = [open_account(factory, name=f"account {number}") for number in range(4)]
    images = pictures(200)
    rows = [declare(factory, account_id) for account_id in ids for _ in range(2)]
    ready, failures = threading.Barrier(len(rows)), []

    def accept(dataset_id: str) -> None:
        received = ReceivedContent(dataset_id, "npz", "0" * 64, 1, prints(images))
        ready.wait(60)
        try:
            with transaction(factory) as session:
                datasets.accept_upload(session, received, now=now)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=accept, args=(dataset_id,)) for dataset_id in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    with transaction(factory, read_only=True) as session:
        found = session.scalars(select(Dataset)).all()
    assert len({dataset.account_id for dataset in found}) == 1
    assert sum(dataset.joined for dataset in found) == len(rows) - 2
    assert len(stored(factory)) == 200


def test_a_refused_upload_goes_back_and_its_content_is_destroyed(
    factory: SessionFactory, open_account: Open, declare: Callable[..., str], tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    dataset_id = declare(factory, open_account(factory))
    vault.write_key(vault.key_path(settings, dataset_id), KEY)
    with transaction(factory) as session:
        datasets.refuse_upload(session, settings, dataset_id)
    assert not vault.key_path(settings, dataset_id).exists()
    vault.write_key(vault.key_path(settings, dataset_id), KEY)
    with transaction(factory) as session:  # it is not receiving any more, so this is not its upload
        datasets.refuse_upload(session, settings, dataset_id)
        assert session.get_one(Dataset, dataset_id).state is DatasetState.DECLARED
    assert vault.key_path(settings, dataset_id).exists()
