"""Images that come again: found by their pixels whatever the file, kept on one budget, and nobody is told more."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import permutations

import numpy as np
import pytest
from PIL import Image
from sqlalchemy import select

from service.datasets import deletion, fingerprints, receiving
from service.datasets.fingerprints import (
    DIGEST_BYTES,
    DIGESTS_PER_TRANSACTION,
    KnownAsPrivate,
    KnownAsPublic,
    OverlapRefused,
    any_recorded,
    at_least_as_strict,
    fingerprint,
)
from service.datasets.reading import Content, Upload
from service.db.base import new_id
from service.db.dataset_tables import Dataset, Fingerprint
from service.db.session import SessionFactory, transaction
from service.db.words import Adjacency, DatasetState, Unit, Visibility
from service.errors import Conflict

KEY = bytes(range(32))
Open = Callable[..., str]


def pictures(count: int, *, seed: int = 0, channels: int = 1) -> np.ndarray:
    shape = (count, 5, 7) if channels == 1 else (count, 5, 7, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def prints(images: np.ndarray, key: bytes = KEY) -> frozenset[bytes]:
    return fingerprint([images], key)


@pytest.fixture
def declare(now: datetime) -> Callable[..., str]:
    """Write the row of a dataset that is receiving its content, and return its id; without an account it is public."""

    def declared(factory: SessionFactory, account_id: str | None, **changes: object) -> str:
        facts = {"classes": ["a"], "height": 5, "width": 7, "channels": 1, "records_declared": 1000, **changes}
        dataset = Dataset(
            id=new_id("ds"),
            account_id=account_id,
            name="pictures",
            visibility=Visibility.PUBLIC if account_id is None else Visibility.PRIVATE,
            state=DatasetState.RECEIVING,
            upload_attempt=1,
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

    def uploaded(factory: SessionFactory, account_id: str | None, images: np.ndarray) -> Dataset:
        return accept(factory, declare(factory, account_id), account_id, prints(images), now)

    return uploaded


def accept(
    factory: SessionFactory,
    dataset_id: str,
    account_id: str | None,
    digests: frozenset[bytes],
    now: datetime,
    attempt: int = 1,
) -> Dataset:
    """Accept content with these fingerprints, as the service does once it has read it."""
    upload = Upload(dataset_id, ("a",), 5, 7, 1, 1000, account_id=account_id, attempt=attempt)
    content = Content(upload, "npz", "0" * 64, 1, digests, "ab" * 32, lambda: None)
    return receiving.accept(factory, content, now=now)


def stored(factory: SessionFactory) -> set[tuple[bytes, str | None]]:
    """The fingerprints that count, each with the account that it is known in."""
    query = select(Fingerprint.digest, Dataset.account_id).join(Dataset, Dataset.id == Fingerprint.dataset_id)
    with transaction(factory, read_only=True) as session:
        return {(row.digest, row.account_id) for row in session.execute(query.where(Dataset.ready_at.is_not(None)))}


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
    delete(factory, dataset.id, now)
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


def delete(factory: SessionFactory, dataset_id: str, now: datetime) -> None:
    with transaction(factory) as session:
        deletion.begin(session, dataset_id, cancel_jobs=False, now=now)
    with transaction(factory) as session:
        assert deletion.finish(session, dataset_id).state is DatasetState.DELETED


def test_many_digests_go_through_in_several_statements(
    factory: SessionFactory, open_account: Open, declare: Callable[..., str], now: datetime
) -> None:
    count = 2 * DIGESTS_PER_TRANSACTION + 3
    digests = frozenset(number.to_bytes(DIGEST_BYTES, "little") for number in range(1, count + 1))
    first, second = open_account(factory, name="first"), open_account(factory, name="second")
    with transaction(factory) as session:
        assert not any_recorded(session)
    assert accept(factory, declare(factory, first), first, digests, now).account_id == first
    with transaction(factory) as session:
        assert any_recorded(session)
    assert accept(factory, declare(factory, second), second, frozenset([max(digests)]), now).account_id == first
    assert len(stored(factory)) == count


def test_another_writer_gets_through_while_a_big_upload_is_recorded(
    factory: SessionFactory, open_account: Open, declare: Callable[..., str], now: datetime
) -> None:
    """300,000 images took SQLite's only write lock for many seconds."""
    count = 300_000
    random = np.random.default_rng(0).bytes(DIGEST_BYTES * count)
    digests = frozenset(random[at : at + DIGEST_BYTES] for at in range(0, len(random), DIGEST_BYTES))
    account_id = open_account(factory)
    big, failures, accepted = declare(factory, account_id), list[Exception](), list[float]()

    def record() -> None:
        try:
            accept(factory, big, account_id, digests, now)
        except Exception as error:
            failures.append(error)
        accepted.append(time.monotonic())

    started, written = time.monotonic(), list[float]()
    thread = threading.Thread(target=record)
    thread.start()
    while thread.is_alive():
        open_account(factory, name=f"another {len(written)}")
        written.append(time.monotonic())
    thread.join()
    assert failures == []
    assert len(stored(factory)) == len(digests)
    during = [at for at in written if at < accepted[0]]
    longest = max(later - earlier for earlier, later in zip([started, *during], [*during, accepted[0]], strict=True))
    assert len(during) > count / DIGESTS_PER_TRANSACTION / 4
    assert longest < (accepted[0] - started) / 2, "the big upload kept others from writing for most of its time"


def test_the_same_images_into_two_accounts_at_once_end_in_one(
    factory: SessionFactory, open_account: Open, declare: Callable[..., str], now: datetime
) -> None:
    ids = [open_account(factory, name=f"account {number}") for number in range(4)]
    images = pictures(200)
    rows = [(declare(factory, account_id), account_id) for account_id in ids for _ in range(2)]
    failures = at_once([lambda row=row: accept(factory, *row, prints(images), now) for row in rows])
    assert failures == []
    with transaction(factory, read_only=True) as session:
        found = session.scalars(select(Dataset)).all()
    assert len({dataset.account_id for dataset in found}) == 1
    assert sum(dataset.joined for dataset in found) == len(rows) - 2
    assert len(stored(factory)) == 200


def test_an_image_that_comes_as_private_and_as_public_at_once_is_one_of_them(
    factory: SessionFactory, open_account: Open, declare: Callable[..., str], now: datetime
) -> None:
    account_id = open_account(factory)
    for seed in range(5):
        rows = [(declare(factory, owner), owner) for owner in (account_id, None)]
        digests = prints(pictures(20, seed=seed))
        failures = at_once([lambda row=row, digests=digests: accept(factory, *row, digests, now) for row in rows])
        assert len(failures) == 1
        assert isinstance(failures[0], KnownAsPrivate | KnownAsPublic)


def at_once(acts: Sequence[Callable[[], object]]) -> list[Exception]:
    """Do everything at the same time; returns what was raised."""
    ready, failures = threading.Barrier(len(acts)), list[Exception]()

    def run(act: Callable[[], object]) -> None:
        ready.wait(60)
        try:
            act()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return failures


# --- which account may pay for another's images ---------------------------------------------------------------------


@dataclass
class Promise:
    epsilon: float = 1.0
    delta: float = 1e-6
    unit: Unit = Unit.RECORD
    adjacency: Adjacency = Adjacency.ADD_REMOVE


@pytest.mark.parametrize(
    ("payer", "strict"),
    [
        (Promise(), True),
        (Promise(epsilon=0.5), True),
        (Promise(delta=1e-7), True),
        (Promise(epsilon=0.5, delta=1e-7), True),
        (Promise(epsilon=1.0000001), False),
        (Promise(delta=1.1e-6), False),
        (Promise(epsilon=0.5, delta=1e-5), False),
        (Promise(epsilon=2, delta=1e-9), False),
        (Promise(unit=Unit.SUBJECT), False),
        (Promise(epsilon=0.1, delta=1e-9, unit=Unit.SUBJECT), False),
    ],
)
def test_as_strict_is_no_larger_epsilon_no_larger_delta_and_the_same_neighbours(payer: Promise, strict: bool) -> None:
    assert at_least_as_strict(payer, Promise()) is strict


@pytest.mark.parametrize(
    "laxer",
    [{"epsilon": 1000.0}, {"delta": 1e-4}, {"epsilon": 1.0, "delta": 2e-5}, {"epsilon": 1.1}],
)
def test_one_shared_image_does_not_move_the_others_to_a_laxer_account(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset], laxer: dict[str, object]
) -> None:
    lax, strict = open_account(factory, name="lax", **laxer), open_account(factory, name="strict", epsilon=1.0)
    placeholder = pictures(1, seed=7)
    upload(factory, lax, placeholder)
    before = stored(factory)
    with pytest.raises(OverlapRefused) as refused:
        upload(factory, strict, np.concatenate([pictures(300), placeholder]))
    assert refused.value.numbers == {"fault": "overlap"}
    assert stored(factory) == before
    # The other way round the stricter account is the one that pays, and the same terms are strict enough.
    upload(factory, strict, pictures(5, seed=3))
    assert upload(factory, lax, pictures(5, seed=3)).account_id == strict
    # Its owner may decide otherwise, by declaring the dataset where the image is known.
    assert upload(factory, lax, np.concatenate([pictures(20, seed=9), placeholder])).account_id == lax


def test_the_filter_makes_no_difference_to_what_is_promised(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset]
) -> None:
    first = open_account(factory, name="first")
    second = open_account(factory, name="second")
    upload(factory, first, pictures(5))
    assert upload(factory, second, pictures(5)).account_id == first


# --- what is public, and what is not --------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [1, 20])
def test_a_private_image_does_not_come_back_as_public(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset], now: datetime, shared: int
) -> None:
    account_id = open_account(factory)
    private = upload(factory, account_id, pictures(20, seed=1))
    copy = np.concatenate([pictures(5, seed=2), pictures(20, seed=1)[:shared]])
    for _ in range(2):
        with pytest.raises(KnownAsPrivate) as refused:
            upload(factory, None, copy)
        assert refused.value.numbers == {"fault": "known_as_private"}
        delete(factory, private.id, now) if private.state is DatasetState.READY else None
    assert upload(factory, None, pictures(5, seed=2)).state is DatasetState.READY


def test_a_public_image_does_not_become_private_until_the_public_dataset_is_deleted(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset], now: datetime
) -> None:
    account_id = open_account(factory)
    public = upload(factory, None, pictures(20, seed=1))
    upload(factory, None, pictures(20, seed=1))  # two public datasets may share images
    with pytest.raises(KnownAsPublic) as refused:
        upload(factory, account_id, np.concatenate([pictures(5, seed=2), pictures(1, seed=1)]))
    assert refused.value.numbers == {"fault": "known_as_public"}
    with transaction(factory, read_only=True) as session:
        ids = list(session.scalars(select(Dataset.id).where(Dataset.account_id.is_(None))))
    for dataset_id in ids:
        delete(factory, dataset_id, now)
    assert public.id in ids
    assert upload(factory, account_id, pictures(20, seed=1)).account_id == account_id


def test_blank_pages_are_neither_private_nor_public(
    factory: SessionFactory, open_account: Open, upload: Callable[..., Dataset]
) -> None:
    blank = np.stack([np.full((5, 7), value, np.uint8) for value in (0, 255)])
    upload(factory, open_account(factory), np.concatenate([pictures(3, seed=1), blank]))
    upload(factory, None, np.concatenate([pictures(3, seed=2), blank]))


# --- uploads that do not come to their end --------------------------------------------------------------------------


def test_fingerprints_of_an_upload_that_was_not_accepted_do_not_count_and_are_replaced(
    factory: SessionFactory,
    open_account: Open,
    declare: Callable[..., str],
    upload: Callable[..., Dataset],
    now: datetime,
) -> None:
    first, second = open_account(factory, name="first"), open_account(factory, name="second")
    died = declare(factory, first)
    fingerprints.record(factory, died, 1, prints(pictures(20)))  # and then its process was killed
    assert upload(factory, second, pictures(20)).account_id == second
    with transaction(factory) as session:
        session.get_one(Dataset, died).upload_attempt = 2
    other = prints(pictures(20, seed=1))
    accept(factory, died, first, other, now, attempt=2)
    assert stored(factory) == {(digest, second) for digest in prints(pictures(20))} | {(d, first) for d in other}


def test_a_crash_between_two_transactions_changes_nothing_for_whoever_does_it_again(
    factory: SessionFactory, open_account: Open, declare: Callable[..., str], now: datetime
) -> None:
    account_id = open_account(factory)
    dataset_id, digests = declare(factory, account_id), prints(pictures(50))
    fingerprints.record(factory, dataset_id, 1, frozenset(sorted(digests)[:20]))
    for _ in range(2):  # the second time the answer to the first was lost
        assert accept(factory, dataset_id, account_id, digests, now).state is DatasetState.READY
    assert stored(factory) == {(digest, account_id) for digest in digests}


def test_a_late_writer_is_refused(
    factory: SessionFactory, open_account: Open, declare: Callable[..., str], now: datetime
) -> None:
    account_id = open_account(factory)
    dataset_id = declare(factory, account_id)
    with transaction(factory) as session:
        session.get_one(Dataset, dataset_id).upload_attempt = 2
    with pytest.raises(Conflict, match="no longer"):
        accept(factory, dataset_id, account_id, prints(pictures(5)), now)
    assert stored(factory) == set()
