"""Datasets that are declared and received: states, leases of uploads, and accounts that are closed to new data."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, text

from obscura.wire.words import DatasetState
from service.datasets import fingerprints, receiving, states
from service.datasets.fingerprints import KnownRefused
from service.datasets.reading import Sent, UploadFailed
from service.datasets.vault import DatasetContext, Vault
from service.db.dataset_tables import Dataset
from service.db.session import DatabaseBusy, SessionFactory, open_sessions, transaction
from service.errors import AccountClosed, Conflict, InvalidInput, NotFound
from service.identity.access import find
from service.settings import Settings
from service.times import Clock
from tests.service.datasets.world import known_refused, npz, pictures
from tests.together import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.usefixtures("read_here")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"lease_seconds": 1, "heartbeat_seconds": 0.3})


def body_of(seed: int = 0) -> bytes:
    return npz(pictures(10, seed=seed), np.zeros(10, np.int64))


def upload(
    settings: Settings,
    factory: SessionFactory,
    dataset_id: str,
    chunks: Iterator[bytes],
    clock: Clock = lambda: datetime.now(UTC),
) -> Dataset:
    return receiving.receive(DatasetContext(settings, factory, clock), dataset_id, Sent(chunks, "npz"))


def left(settings: Settings) -> list[str]:
    """What uploads have left in quarantine and beside the datasets."""
    found = [*settings.data_dir.glob("quarantine/*"), *settings.data_dir.glob("datasets/*.tmp")]
    return [path.name for path in found]


class Slow:
    """A body whose second half comes when it is let go."""

    def __init__(self, body: bytes) -> None:
        self._body, self.half_sent, self.go_on = body, threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        half = len(self._body) // 2
        yield self._body[:half]
        self.half_sent.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        yield self._body[half:]


@contextmanager
def half_sent(settings: Settings, factory: SessionFactory, dataset_id: str, **more: Any) -> Iterator[tuple[Slow, Any]]:
    """An upload of which half has come: yields the body, which can be let go, and the end of the upload."""
    body = Slow(body_of())
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(upload, settings, factory, dataset_id, iter(body), **more)
        assert body.half_sent.wait(PATIENCE_SECONDS)
        yield body, done


def test_an_upload_under_way_is_nobody_elses_however_long_it_takes(factory, settings, world):
    dataset_id, time_is = world.declare(), [datetime.now(UTC)]
    settings = settings.model_copy(update={"lease_seconds": 60, "heartbeat_seconds": 0.02})

    def is_renewed() -> bool:
        return world.row(dataset_id).upload_lease_until >= time_is[0] + timedelta(seconds=60)

    with half_sent(settings, factory, dataset_id, clock=lambda: time_is[0]) as (body, done):
        for _ in range(3):  # two leases together
            time_is[0] += timedelta(seconds=40)
            wait_until(is_renewed)
            assert receiving.clean_up(settings, factory, now=time_is[0]) == 0
            with pytest.raises(Conflict, match="receiving"):
                upload(settings, factory, dataset_id, iter([body_of(1)]), clock=lambda: time_is[0])
        body.go_on.set()
        assert done.result(PATIENCE_SECONDS).state is DatasetState.READY
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(dataset_id)[0], pictures(10))
    assert left(settings) == []


@pytest.mark.parametrize("how", ["begun again", "ended"])
def test_a_late_writer_whose_lease_ran_out_is_refused_and_destroys_nothing(factory, settings, world, how):
    dataset_id = world.declare(world.account("first"))
    silent = settings.model_copy(update={"lease_seconds": 3600, "heartbeat_seconds": 1000})
    later = datetime.now(UTC) + timedelta(hours=2)
    with half_sent(silent, factory, dataset_id) as (body, late):
        if how == "ended":
            assert receiving.clean_up(settings, factory, now=later) == 1
            assert world.state(dataset_id) is DatasetState.DECLARED
        taken = upload(settings, factory, dataset_id, iter([body_of(1)]), clock=lambda: later)
        body.go_on.set()
        with pytest.raises((Conflict, UploadFailed)):
            late.result(PATIENCE_SECONDS)
    assert taken.state is world.state(dataset_id) is DatasetState.READY
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(dataset_id)[0], pictures(10, seed=1))
    assert left(settings) == []
    assert len(world.prints(dataset_id)) == 10


def test_a_writer_that_learns_that_it_was_given_up_stops_reading(factory, settings, declare):
    dataset_id, taken = declare(), []

    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(100)
            taken.append(1)
            if len(taken) == 3:
                receiving.clean_up(settings, factory, now=datetime.now(UTC) + timedelta(hours=1))
            time.sleep(0.02)
            assert len(taken) < 3000

    with pytest.raises(Conflict, match="aborted"):
        upload(settings, factory, dataset_id, endless())


@contextmanager
def database_away(database_url: str, engine: Engine) -> Iterator[None]:
    locking = "SELECT 1" if engine.dialect.name == "sqlite" else "LOCK TABLE datasets IN ACCESS EXCLUSIVE MODE"
    with open_sessions(database_url) as other, other() as session:
        session.execute(text(locking))  # on SQLite, to begin is enough
        yield


def test_a_database_that_is_locked_for_a_while_as_an_upload_ends_loses_nothing(
    database_url, engine, impatient, settings, declare, monkeypatch
):
    monkeypatch.setattr(receiving, "PAUSE_SECONDS", 0.05)
    patient = settings.model_copy(update={"lease_seconds": 60, "heartbeat_seconds": 20.0})
    dataset_id = declare()
    with half_sent(patient, impatient, dataset_id) as (body, done):
        with database_away(database_url, engine):
            body.go_on.set()
            time.sleep(0.6)  # longer than three tries
            assert not done.done()
        assert done.result(PATIENCE_SECONDS).state is DatasetState.READY
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(dataset_id)[0], pictures(10))


def test_a_database_that_stays_locked_as_an_upload_ends_strands_nothing(
    database_url, engine, factory, impatient, settings, world, monkeypatch
):
    """The dataset stayed RECEIVING, and answered 409 until a restart."""
    monkeypatch.setattr(receiving, "PAUSE_SECONDS", 0.1)
    dataset_id = world.declare()
    with (
        half_sent(settings, impatient, dataset_id) as (body, done),
        database_away(database_url, engine),
    ):
        body.go_on.set()
        with pytest.raises(DatabaseBusy):
            done.result(PATIENCE_SECONDS)
    assert world.state(dataset_id) is DatasetState.RECEIVING
    later = datetime.now(UTC) + timedelta(seconds=settings.lease_seconds)
    taken = upload(settings, factory, dataset_id, iter([body_of(1)]), clock=lambda: later)
    assert taken.state is DatasetState.READY
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(dataset_id)[0], pictures(10, seed=1))


def test_what_ended_uploads_left_is_removed_and_what_others_write_is_not(factory, settings, world):
    now, dead, live, stored = datetime.now(UTC), *(world.declare() for _ in range(3))
    upload(settings, factory, stored, iter([body_of()]))
    for dataset_id, began in ((dead, now - timedelta(hours=1)), (live, now)):
        with transaction(factory) as session:
            facts = states.begin_upload(session, dataset_id, now=began, lease_seconds=60)
        (settings.data_dir / "quarantine" / f"{dataset_id}.{facts.upload_attempt}").write_bytes(b"x")
        (settings.data_dir / "datasets" / f"{dataset_id}.{facts.upload_attempt}.tmp").mkdir()
    assert receiving.clean_up(settings, factory, now=now) == 1
    assert sorted(left(settings)) == sorted([f"{live}.1", f"{live}.1.tmp"])
    assert (world.state(dead), world.state(live)) == (DatasetState.DECLARED, DatasetState.RECEIVING)
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(stored)[0], pictures(10))


# --- accounts that are closed to new data ---------------------------------------------------------------------------

KNOWN, FRESH = (pictures(6, seed=seed) for seed in (1, 2))


def test_a_closed_account_takes_neither_declaration_nor_upload_until_it_is_open_again(world):
    account_id = world.account("2025")
    declared = world.declare(account_id)
    world.close(account_id)
    with pytest.raises(AccountClosed, match=r"'2025' is closed.*open a separate account"):
        world.declare(account_id)

    def body() -> Any:
        raise AssertionError("read")
        yield b""

    with pytest.raises(AccountClosed):
        receiving.receive(world.context, declared, Sent(body(), "npz"))
    assert world.has_nothing_of(declared)
    world.declare(None), world.declare(world.account("2026"))
    world.close(account_id, closed=False)
    world.send(declared, KNOWN)


@pytest.mark.parametrize("images", [FRESH, KNOWN], ids=["new images", "images of a public dataset"])
def test_closing_while_an_upload_arrives_refuses_it_in_the_same_words(world, images):
    """Whether the images are known is not said, for nothing is looked up."""
    world.send(world.declare(None), KNOWN)
    account_id = world.account("2025")
    dataset_id = world.declare(account_id)
    with pytest.raises(AccountClosed):
        world.send(dataset_id, images, during=lambda: world.close(account_id))
    assert world.has_nothing_of(dataset_id)
    world.close(account_id, closed=False)
    if images is KNOWN:
        with known_refused("known_as_public"):
            world.send(dataset_id, images)


def test_whoever_closes_at_the_last_moment_is_waited_for(world, monkeypatch):
    """Between the look at the images and the lock on the account that pays, somebody else closes it."""
    account_id = world.account("2025")
    dataset_id, looked = world.declare(account_id), fingerprints.look_up

    def slow(*given: Any) -> Any:
        known = looked(*given)
        world.close(account_id)
        return known

    monkeypatch.setattr(fingerprints, "look_up", slow)
    with pytest.raises(AccountClosed):
        world.send(dataset_id, FRESH)
    assert world.has_nothing_of(dataset_id)


def test_an_upload_that_would_join_a_closed_account_is_refused_as_where_none_may_pay(world):
    first, second = world.account("2025"), world.account("2026")
    world.send(world.declare(first), KNOWN)
    world.close(first)
    dataset_id = world.declare(second)
    with known_refused("overlap") as caught:
        world.send(dataset_id, np.concatenate([FRESH, KNOWN[:1]]))
    assert "2025" not in str(caught.value)
    assert str(caught.value) == str(KnownRefused("overlap")), "the words are those of every other reason"
    assert world.has_nothing_of(dataset_id)
    world.close(first, closed=False)
    assert world.send(dataset_id, np.concatenate([FRESH, KNOWN[:1]])).joined


# --- declarations and states ------------------------------------------------------------------------------------------


def test_datasets_of_subject_accounts_declare_at_most_one_subject_a_record(factory, open_account, declare, now):
    account_id = open_account(factory, unit="subject")
    for subjects in (1, 60, 500):
        dataset_id = declare(account_id, subjects_declared=subjects)
        with transaction(factory) as session:
            assert find(session, Dataset, dataset_id).subjects_declared == subjects
            assert states.begin_upload(session, dataset_id, now=now, lease_seconds=60).subjects_declared == subjects
    with pytest.raises(InvalidInput, match="a public upper bound on the number of subjects"):
        declare(account_id)
    with pytest.raises(InvalidInput, match="between 1 and records_declared") as refused:
        declare(account_id, subjects_declared=501)
    assert refused.value.numbers == {"subjects_declared": 501, "records_declared": 500}


def test_subjects_are_not_declared_where_nobody_would_protect_them(factory, open_account, declare):
    """A record account may hold data about subjects; saying so would promise what it does not keep."""
    account_id = open_account(factory, unit="record")
    with pytest.raises(InvalidInput, match=r"protects single records.*use an account whose unit is the subject"):
        declare(account_id, subjects_declared=60)
    with pytest.raises(InvalidInput, match="public"):
        declare(None, subjects_declared=60)
    with pytest.raises(NotFound):
        declare("acc_none", subjects_declared=60)
    with pytest.raises(InvalidInput, match="declares subjects"):
        declare(account_id, subjects_recognised=True)
    declare(account_id)
    declare(None)


# The table of docs/contribute/architecture.md.
FOLLOWING = {
    "declared": "receiving deleting",
    "receiving": "ready declared receiving",
    "failed": "ready deleting",
    "ready": "withdrawing deleting failed",
    "withdrawing": "ready withdrawing deleting failed",
    "deleting": "deleted",
    "deleted": "",
}


@pytest.mark.parametrize("before", DatasetState)
def test_a_dataset_goes_from_one_state_to_those_that_may_follow_and_to_no_other(factory, declare, before, now):
    dataset_id, following = declare(None), FOLLOWING[before.value].split()
    for after in DatasetState:
        with transaction(factory) as session:
            dataset = find(session, Dataset, dataset_id)
            dataset.state, dataset.content_sha256, dataset.ready_at = before, "0" * 64, now
            session.flush()
            assert states.move(session, dataset_id, after) is (after in following)
            assert not states.move(session, dataset_id, after, Dataset.name == "another")
            session.refresh(dataset)
            assert dataset.state is (after if after in following else before)
