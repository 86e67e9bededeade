"""An account that is closed to new data takes none: declared or not, its own or what would join it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from obscura.wire.words import DatasetState
from service import ledger
from service.datasets import fingerprints, receiving
from service.datasets.fingerprints import KnownAsPublic, OverlapRefused
from service.datasets.reading import Sent
from service.datasets.vault import DatasetContext
from service.db.dataset_tables import Dataset, Fingerprint
from service.db.session import SessionFactory, transaction
from service.errors import AccountClosed
from service.settings import Settings
from tests.service.datasets.uploading import npz

KNOWN = np.random.default_rng(1).integers(0, 256, (6, 4, 4), dtype=np.uint8)
FRESH = np.random.default_rng(2).integers(0, 256, (6, 4, 4), dtype=np.uint8)


class Desk:
    """Where accounts are closed and datasets are uploaded."""

    def __init__(self, settings: Settings, factory: SessionFactory, declare: Any, open_account: Any) -> None:
        self.settings, self.factory, self.declare, self._open = settings, factory, declare, open_account

    def account(self, name: str) -> str:
        account_id: str = self._open(self.factory, name=name)
        return account_id

    def close(self, account_id: str, *, closed: bool = True) -> None:
        with transaction(self.factory) as session:
            ledger.set_closed(session, account_id, closed=closed)

    def upload(self, dataset_id: str, images: Any, *, during: Callable[[], None] = lambda: None) -> Dataset:
        """Upload pictures, and do something else once their last byte has come."""

        def body() -> Any:
            yield npz(images, np.zeros(len(images), np.int64))
            during()

        sent = Sent(body(), "npz")
        context = DatasetContext.of(self.settings, self.factory, lambda: datetime.now(UTC))
        return receiving.receive(context, dataset_id, sent)

    def nothing_was_stored(self, dataset_id: str) -> bool:
        with transaction(self.factory, read_only=True) as session:
            state = session.get_one(Dataset, dataset_id).state
            prints = session.scalars(select(Fingerprint).where(Fingerprint.dataset_id == dataset_id)).all()
        return state is DatasetState.DECLARED and not prints


@pytest.fixture
def desk(
    settings: Settings, factory: SessionFactory, declare: Callable[..., str], open_account: Callable[..., str]
) -> Desk:
    return Desk(settings, factory, declare, open_account)


def test_a_closed_account_takes_no_declaration_and_an_open_one_again(desk: Desk) -> None:
    account_id = desk.account("2025")
    desk.close(account_id)
    with pytest.raises(AccountClosed, match=r"\*2025\* is closed.*Open an account for the new people"):
        desk.declare(account_id)
    desk.declare(None), desk.declare(desk.account("2026"))
    desk.close(account_id, closed=False)
    desk.upload(desk.declare(account_id), KNOWN)


def test_what_was_declared_before_is_refused_before_a_byte_is_read(desk: Desk) -> None:
    account_id = desk.account("2025")
    dataset_id = desk.declare(account_id)
    desk.close(account_id)

    def body() -> Any:
        raise AssertionError("read")
        yield b""

    context = DatasetContext.of(desk.settings, desk.factory, lambda: datetime.now(UTC))
    with pytest.raises(AccountClosed):
        receiving.receive(context, dataset_id, Sent(body(), "npz"))
    assert desk.nothing_was_stored(dataset_id)


@pytest.mark.parametrize("images", [FRESH, KNOWN], ids=["new images", "images of a public dataset"])
def test_closing_while_an_upload_arrives_refuses_it_in_the_same_words(desk: Desk, images: Any) -> None:
    """Whether the images are known is not said, for nothing is looked up."""
    desk.upload(desk.declare(None), KNOWN)
    account_id = desk.account("2025")
    dataset_id = desk.declare(account_id)
    with pytest.raises(AccountClosed):
        desk.upload(dataset_id, images, during=lambda: desk.close(account_id))
    assert desk.nothing_was_stored(dataset_id)
    desk.close(account_id, closed=False)
    if images is KNOWN:
        with pytest.raises(KnownAsPublic):
            desk.upload(dataset_id, images)


def test_whoever_closes_at_the_last_moment_is_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the images and the lock on the account that pays, somebody else closes it."""
    account_id = desk.account("2025")
    dataset_id, looked = desk.declare(account_id), fingerprints.look_up

    def slow(*given: Any) -> Any:
        known = looked(*given)
        desk.close(account_id)
        return known

    monkeypatch.setattr(fingerprints, "look_up", slow)
    with pytest.raises(AccountClosed):
        desk.upload(dataset_id, FRESH)
    assert desk.nothing_was_stored(dataset_id)


def test_an_upload_that_would_join_a_closed_account_is_refused_as_where_none_may_pay(desk: Desk) -> None:
    first, second = desk.account("2025"), desk.account("2026")
    desk.upload(desk.declare(first), KNOWN)
    desk.close(first)
    dataset_id = desk.declare(second)
    with pytest.raises(OverlapRefused) as caught:
        desk.upload(dataset_id, np.concatenate([FRESH, KNOWN[:1]]))
    assert "2025" not in str(caught.value)
    assert str(caught.value) == str(OverlapRefused()), "the words are those of every other reason"
    assert desk.nothing_was_stored(dataset_id)
    desk.close(first, closed=False)
    assert desk.upload(dataset_id, np.concatenate([FRESH, KNOWN[:1]])).joined
