"""Images that come again: found by their pixels whatever the file, kept on one budget, and nobody is told more."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, select

from obscura.wire.words import Adjacency, DatasetState, Unit
from service.datasets import deletion, fingerprints, receiving
from service.datasets.fingerprints import DIGESTS_PER_TRANSACTION, KnownRefused
from service.datasets.reading import Content, Sent
from service.db.dataset_tables import Dataset, Fingerprint
from service.db.ledger_tables import Account
from service.db.session import transaction
from service.errors import Conflict
from tests.service.datasets.world import World, begun, known_refused, pictures
from tests.together import at_once

KEY = bytes(range(32))


def prints(images: np.ndarray, key: bytes = KEY) -> frozenset[bytes]:
    return fingerprints.fingerprint([images], key)


class Desk(World):
    """Where content is accepted of which only the fingerprints are known."""

    def receiving(self, account_id: str | None) -> str:
        """Write the row of a dataset that is receiving its content; without an account it is public."""
        return self.write(
            account_id, state=DatasetState.RECEIVING, upload_attempt=1, ready_at=None, content_sha256=None
        )

    def accept(self, dataset_id: str, digests: frozenset[bytes], attempt: int = 1) -> Dataset:
        """Accept content with these fingerprints, as the service does once it has read it."""
        row, sent = begun(id=dataset_id, upload_attempt=attempt), Sent(iter(()), "npz")
        return receiving.accept(self.context, Content(row, sent, "0" * 64, 1, digests, "ab" * 32, lambda: None))

    def upload(self, account_id: str | None, images: np.ndarray) -> Dataset:
        return self.accept(self.receiving(account_id), prints(images))

    def stored(self) -> set[tuple[bytes, str | None]]:
        """The fingerprints that count, each with the account that it is known in."""
        query = select(Fingerprint.digest, Dataset.account_id).join(Dataset, Dataset.id == Fingerprint.dataset_id)
        with transaction(self.factory, read_only=True) as session:
            return {(row.digest, row.account_id) for row in session.execute(query.where(Dataset.ready_at.is_not(None)))}

    def destroy(self, dataset_id: str) -> None:
        self.do(deletion.begin, dataset_id, cancel_jobs=False, now=self.context.clock())
        assert deletion.complete(self.settings, self.factory, dataset_id).state is DatasetState.DELETED


@pytest.fixture
def desk(make_world) -> Desk:
    return make_world(Desk)


# --- what a fingerprint sees ----------------------------------------------------------------------------------------


def test_every_image_has_one_that_depends_on_the_secret():
    images = pictures(50)
    assert len(prints(images)) == 50
    assert all(len(digest) == fingerprints.DIGEST_BYTES for digest in prints(images))
    assert prints(images) == prints(images[::-1]) == fingerprints.fingerprint(iter([images[:7], images[7:]]), KEY)
    assert not prints(images) & prints(images, bytes(32))
    assert prints(images[[0, 0, 0]]) == prints(images[:1])


def test_a_gray_picture_that_comes_in_colour_is_the_same():
    gray = pictures(6)
    assert prints(np.repeat(gray[..., None], 3, axis=3)) == prints(gray)


def test_shape_channel_order_and_a_single_step_of_one_pixel_make_another_image():
    colour = pictures(1, shape=(5, 7, 3))
    found = [prints(colour[..., list(order)]) for order in permutations(range(3))]
    changed = colour.copy()
    changed[0, 2, 3, 1] ^= 1
    found += [prints(changed), prints(colour.transpose(0, 2, 1, 3)), prints(colour.reshape(1, 7, 5, 3))]
    assert len(frozenset().union(*found)) == len(found)


def test_blank_images_join_nobody():
    blank = np.stack([np.full((5, 7), value, np.uint8) for value in (0, 7, 255)])
    assert prints(blank) == frozenset()
    assert prints(np.broadcast_to(np.array([200, 10, 10], np.uint8), (2, 5, 7, 3))) == frozenset()
    almost = blank.copy()
    almost[:, 4, 6] ^= 1
    assert len(prints(almost)) == 3


# --- who pays -------------------------------------------------------------------------------------------------------


def test_images_that_are_new_stay_where_they_were_declared_also_when_they_come_again(desk):
    accounts = {desk.account("first"): 1, desk.account("second"): 2}
    for account_id, seed in (*accounts.items(), *accounts.items()):
        dataset = desk.upload(account_id, pictures(20, seed=seed))
        assert (dataset.account_id, dataset.joined, dataset.state) == (account_id, False, DatasetState.READY)
    assert desk.stored() == {
        (digest, account_id) for account_id, seed in accounts.items() for digest in prints(pictures(20, seed=seed))
    }


@pytest.mark.parametrize("shared", [1, 20])
def test_one_known_image_is_enough_to_join(desk, shared):
    first, second = desk.account("first"), desk.account("second")
    known_images, new_images = pictures(20, seed=1), pictures(30, seed=2)
    desk.upload(first, known_images)
    joined = desk.upload(second, np.concatenate([new_images, known_images[:shared]]))
    assert (joined.account_id, joined.joined) == (first, True)
    # What came with the known images is the first account's from now on, also when the dataset is deleted.
    desk.destroy(joined.id)
    again = desk.upload(second, new_images[:3])
    assert (again.account_id, again.joined) == (first, True)
    assert {account_id for _, account_id in desk.stored()} == {first}


def test_an_image_of_another_project_is_refused_in_the_words_of_every_overlap(desk):
    desk.upload(desk.account("first", project_id="prj_heart"), pictures(20))
    own = desk.account("second")
    declared = desk.receiving(own)
    with known_refused("overlap") as refused:
        desk.accept(declared, prints(pictures(20)[:1]))
    assert str(refused.value) == str(KnownRefused("overlap"))
    dataset = desk.row(declared)
    assert (dataset.account_id, dataset.joined, dataset.ready_at) == (own, False, None)
    assert len(desk.stored()) == 20
    assert desk.upload(own, pictures(20, seed=2)).account_id == own


def test_images_of_several_accounts_are_refused_and_leave_no_trace(desk):
    ids = [desk.account(name) for name in ("first", "second", "third")]
    for seed, account_id in enumerate(ids[:2]):
        desk.upload(account_id, pictures(10, seed=seed))
    before = desk.stored()
    mixed = np.concatenate([pictures(1, seed=0), pictures(1, seed=1), pictures(5, seed=9)])
    for account_id in ids:  # also into one of those that have them: the other's images would be paid from there
        with known_refused("overlap"):
            desk.upload(account_id, mixed)
    assert desk.stored() == before


def test_accounts_of_different_units_share_no_dataset_and_the_answer_is_the_same(desk):
    records, subjects = desk.account("records"), desk.account("subjects", unit="subject")
    desk.upload(records, pictures(10, seed=0))
    desk.upload(subjects, pictures(10, seed=1))
    messages = set()
    for account_id, seed in ((subjects, 0), (records, 1)):
        with known_refused("overlap") as refused:
            desk.upload(account_id, pictures(10, seed=seed))
        messages.add(refused.value.message)
    assert len(messages) == 1


def test_subjects_with_records_in_their_own_account_are_not_given_a_second_budget(desk):
    first, second = (desk.account(name, unit="subject") for name in ("first", "second"))
    desk.upload(first, pictures(10, seed=0))
    assert desk.upload(second, pictures(10, seed=0)).account_id == first  # the second has had nothing yet
    desk.upload(second, pictures(10, seed=5))
    with known_refused("overlap"):
        desk.upload(second, np.concatenate([pictures(1, seed=0), pictures(10, seed=6)]))


def test_many_digests_go_through_in_several_statements(desk):
    count = 2 * DIGESTS_PER_TRANSACTION + 3
    digests = frozenset(number.to_bytes(fingerprints.DIGEST_BYTES, "little") for number in range(1, count + 1))
    first, second = desk.account("first"), desk.account("second")
    for account_id, sent, known in ((first, digests, False), (second, frozenset([max(digests)]), True)):
        with transaction(desk.factory) as session:
            assert fingerprints.any_recorded(session) is known
        assert desk.accept(desk.receiving(account_id), sent).account_id == first
    assert len(desk.stored()) == count


def test_a_look_up_reads_no_more_when_more_is_known_before_there_are_statistics(desk):
    """PostgreSQL read the whole table for each part of an upload, as long as it knew nothing of its digests."""
    account_id = desk.account("first")
    desk.accept(desk.receiving(account_id), digests := prints(pictures(20_000)))
    engine, plans = desk.factory.kw["bind"], list[str]()
    explain = "EXPLAIN" if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"

    def plan(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "positions" in statement:
            found = cursor.connection.execute(f"{explain} {statement}", parameters).fetchall()
            plans.append("\n".join(str(line[-1]) for line in found))

    event.listen(engine, "before_cursor_execute", plan)
    try:
        known = fingerprints.look_up(desk.factory, frozenset(sorted(digests)[:100]), frozenset())
    finally:
        event.remove(engine, "before_cursor_execute", plan)
    assert known.accounts == {account_id}
    assert len(plans) == 1
    assert "fingerprints" in plans[0]
    assert re.findall(r"(?i)\bscan (?:on )?fingerprints\b", plans[0].replace("Bitmap Heap Scan", "")) == []


def test_another_writer_gets_through_while_a_big_upload_is_recorded(desk):
    """A big upload took SQLite's only write lock for many seconds."""
    count, rng = 50_000, np.random.default_rng(0)
    digests = frozenset(rng.bytes(fingerprints.DIGEST_BYTES) for _ in range(count))
    account_id = desk.account("first")
    big, written = desk.receiving(account_id), list[float]()

    def record() -> float:
        desk.accept(big, digests)
        return time.monotonic()

    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(record)
        while not recording.done():
            desk.account(f"another {len(written)}")
            written.append(time.monotonic())
    accepted = recording.result()
    assert len(desk.stored()) == len(digests)
    during = [at for at in written if at < accepted]
    longest = max(later - earlier for earlier, later in pairwise([started, *during, accepted]))
    assert len(during) > count / DIGESTS_PER_TRANSACTION / 4
    assert longest < (accepted - started) / 2, "the big upload kept others from writing for most of its time"


def test_the_same_images_into_two_accounts_at_once_end_in_one(desk):
    ids = [desk.account(f"account {number}") for number in range(4)]
    images = pictures(200)
    rows = [desk.receiving(account_id) for account_id in ids for _ in range(2)]
    ends = at_once(*(lambda row=row: desk.accept(row, prints(images)) for row in rows))
    assert [type(end) for end in ends] == [Dataset] * len(rows)
    assert len({dataset.account_id for dataset in ends}) == 1
    assert sum(dataset.joined for dataset in ends) == len(rows) - 2
    assert len(desk.stored()) == 200


def test_an_image_that_comes_as_private_and_as_public_at_once_is_one_of_them(desk):
    account_id = desk.account("first")
    for seed in range(5):
        rows = [desk.receiving(owner) for owner in (account_id, None)]
        digests = prints(pictures(20, seed=seed))
        ends = at_once(*(lambda row=row, digests=digests: desk.accept(row, digests) for row in rows))
        (failure,) = (end for end in ends if isinstance(end, Exception))
        assert failure.numbers["fault"] in ("known_as_private", "known_as_public")


# --- which account may pay for another's images ---------------------------------------------------------------------


PROMISE = {"epsilon": 1.0, "delta": 1e-6, "unit": Unit.RECORD, "adjacency": Adjacency.ADD_REMOVE}
STRICT = [{}, {"epsilon": 0.5}, {"delta": 1e-7}, {"epsilon": 0.5, "delta": 1e-7}]
LAX = [{"epsilon": 1.0000001}, {"delta": 1.1e-6}, {"epsilon": 0.5, "delta": 1e-5}, {"epsilon": 2, "delta": 1e-9}]
LAX += [{"unit": Unit.SUBJECT}, {"epsilon": 0.1, "delta": 1e-9, "unit": Unit.SUBJECT}]


@pytest.mark.parametrize("terms", [*STRICT, *LAX], ids=str)
def test_as_strict_is_no_larger_epsilon_no_larger_delta_and_the_same_neighbours(terms):
    strict = fingerprints.at_least_as_strict(Account(**PROMISE | terms), Account(**PROMISE))
    assert strict is (terms in STRICT)


@pytest.mark.parametrize(
    "laxer", [{"epsilon": 1000.0}, {"delta": 1e-4}, {"epsilon": 1.0, "delta": 2e-5}, {"epsilon": 1.1}]
)
def test_one_shared_image_does_not_move_the_others_to_a_laxer_account(desk, laxer):
    lax, strict = desk.account("lax", **laxer), desk.account("strict", epsilon=1.0)
    placeholder = pictures(1, seed=7)
    desk.upload(lax, placeholder)
    before = desk.stored()
    with known_refused("overlap"):
        desk.upload(strict, np.concatenate([pictures(300), placeholder]))
    assert desk.stored() == before
    # The other way round the stricter account is the one that pays, and the same terms are strict enough.
    desk.upload(strict, pictures(5, seed=3))
    assert desk.upload(lax, pictures(5, seed=3)).account_id == strict
    # Its owner may decide otherwise, by declaring the dataset where the image is known.
    assert desk.upload(lax, np.concatenate([pictures(20, seed=9), placeholder])).account_id == lax


# --- what is public, and what is not --------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [1, 20])
def test_a_private_image_does_not_come_back_as_public(desk, shared):
    account_id = desk.account("first")
    private = desk.upload(account_id, pictures(20, seed=1))
    copy = np.concatenate([pictures(5, seed=2), pictures(20, seed=1)[:shared]])
    for _ in range(2):
        with known_refused("known_as_private"):
            desk.upload(None, copy)
        desk.destroy(private.id) if private.state is DatasetState.READY else None
    assert desk.upload(None, pictures(5, seed=2)).state is DatasetState.READY


def test_a_public_image_does_not_become_private_until_the_public_dataset_is_deleted(desk):
    account_id = desk.account("first")
    public = desk.upload(None, pictures(20, seed=1))
    again = desk.upload(None, pictures(20, seed=1))  # two public datasets may share images
    with known_refused("known_as_public"):
        desk.upload(account_id, np.concatenate([pictures(5, seed=2), pictures(1, seed=1)]))
    for each in (public, again):
        desk.destroy(each.id)
    assert desk.upload(account_id, pictures(20, seed=1)).account_id == account_id


# --- uploads that do not come to their end --------------------------------------------------------------------------


def test_fingerprints_of_an_upload_that_was_not_accepted_do_not_count_and_are_replaced(desk):
    first, second = desk.account("first"), desk.account("second")
    died = desk.receiving(first)
    fingerprints.record(desk.factory, died, 1, prints(pictures(20)))  # and then its process was killed
    assert desk.upload(second, pictures(20)).account_id == second
    desk.do(lambda session: setattr(session.get_one(Dataset, died), "upload_attempt", 2))
    other = prints(pictures(20, seed=1))
    with pytest.raises(Conflict, match="no longer"):  # the first attempt, late
        desk.accept(died, prints(pictures(20)))
    desk.accept(died, other, attempt=2)
    assert desk.stored() == {(digest, second) for digest in prints(pictures(20))} | {(d, first) for d in other}


def test_a_crash_between_two_transactions_changes_nothing_for_whoever_does_it_again(desk):
    account_id = desk.account("first")
    dataset_id, digests = desk.receiving(account_id), prints(pictures(50))
    fingerprints.record(desk.factory, dataset_id, 1, frozenset(sorted(digests)[:20]))
    for _ in range(2):  # the second time the answer to the first was lost
        assert desk.accept(dataset_id, digests).state is DatasetState.READY
    assert desk.stored() == {(digest, account_id) for digest in digests}
