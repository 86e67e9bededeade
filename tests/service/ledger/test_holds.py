"""The ledger, step by step, on both databases: opening, the two phases, attempts."""

from collections.abc import Callable
from math import inf, nan

import pytest

from obscura.wire.words import EntryKind, HoldState
from privacy.accounting.filter import open_filter
from service.db.session import transaction
from service.errors import Conflict, HoldExhausted, InvalidInput, NotFound, StaleAttempt
from service.ledger.chain import GENESIS_HASH
from service.views.accounts import page
from tests.service.ledger.account_book import CAPACITY, SHA, AccountBook


def test_opening_writes_the_account_and_its_first_entry(account_book):
    (first,) = account_book.entries()
    assert first.kind is EntryKind.OPEN
    assert (first.sequence, first.previous_hash, first.amount_nano) == (1, GENESIS_HASH, CAPACITY)
    terms = {"name": "patients", "owner": "clinic", "epsilon": 8.0, "delta": 1e-5}
    terms |= {"unit": "record", "adjacency": "add_remove"}
    assert first.details == terms | {"rate": open_filter(8.0, 1e-5).rate}
    assert account_book.money() == (0, 0, CAPACITY)
    assert first.created_at == account_book.now


IMPOSSIBLE = {"epsilon": [0.0, -1.0, nan, inf], "delta": [0.0, 1.0, nan], "unit": ["household"]}
IMPOSSIBLE |= {"adjacency": ["replace_one"], "name": ["  ", "x" * 201], "owner": ["a\nb"]}


@pytest.mark.parametrize("change", [{name: value} for name, values in IMPOSSIBLE.items() for value in values])
def test_an_account_that_cannot_be_right_is_refused(factory, open_account, change):
    with pytest.raises(InvalidInput):
        open_account(factory, **change)
    with transaction(factory, read_only=True) as session:
        assert page(session, after=None, limit=10) == ([], None)


def test_two_accounts_cannot_share_a_name(account_book, open_account):
    with pytest.raises(Conflict, match="already exists"):
        open_account(account_book.factory)


def test_hold_arm_charge_capture_spends_what_was_charged_and_returns_the_rest(account_book):
    hold_id = account_book.hold(1000, attempt=1)
    assert account_book.money() == (0, 1000, CAPACITY - 1000)
    assert account_book.arm(hold_id, 1) is HoldState.ARMED
    assert account_book.charge(hold_id, 1, 300) == 300
    assert account_book.charge(hold_id, 1, 400) == 700
    assert account_book.money() == (0, 1000, CAPACITY - 1000)  # charged is journaled, not yet spent
    assert account_book.capture(hold_id, 1) is HoldState.CAPTURED
    assert account_book.money() == (700, 0, CAPACITY - 700)
    assert account_book.kinds() == ["open", "hold", "arm", "charge", "charge", "capture"]
    last = account_book.entries()[-1]
    assert (last.amount_nano, last.details["returned_nano"], last.details["artifact_sha256"]) == (700, 300, SHA)
    row = account_book.hold_row(hold_id)
    assert (row.charged_nano, row.captured_nano, row.amount_nano) == (700, 700, 1000)


def test_every_step_out_of_order_is_refused_and_changes_nothing(account_book):
    held, released = account_book.hold(10, attempt=1), account_book.hold(10, attempt=1)
    account_book.give_back(released)
    armed, captured = account_book.armed(10, charged_nano=1), account_book.armed(10, charged_nano=1)
    unpaid = account_book.armed(10)
    account_book.capture(captured, 1)
    before, length = account_book.money(), len(account_book.entries())
    steps: list[tuple[Callable[[str], object], str, type[Exception]]] = [
        (lambda h: account_book.charge(h, 1, 1), held, Conflict),
        (lambda h: account_book.capture(h, 1), held, Conflict),
        (lambda h: account_book.arm(h, 1), released, StaleAttempt),
        (lambda h: account_book.charge(h, 1, 1), released, StaleAttempt),
        (lambda h: account_book.capture(h, 1), released, Conflict),
        (lambda h: account_book.fence(h, 2), released, StaleAttempt),
        (lambda h: account_book.give_back(h), armed, Conflict),
        (lambda h: account_book.capture(h, 1), unpaid, Conflict),  # nothing was charged for the artifact
        (lambda h: account_book.arm(h, 1), captured, StaleAttempt),
        (lambda h: account_book.charge(h, 1, 1), captured, StaleAttempt),
        (lambda h: account_book.give_back(h), captured, Conflict),
        (lambda h: account_book.capture(h, 1, sha="cd" * 32), captured, Conflict),
        (lambda h: account_book.fence(h, 2), captured, StaleAttempt),
    ]
    for step, hold_id, error in steps:
        with pytest.raises(error):
            step(hold_id)
    assert (account_book.money(), len(account_book.entries())) == (before, length)


def test_unknown_rows_are_not_found(account_book, now):
    nowhere = AccountBook(account_book.factory, "acc_none", now)
    for look in (
        lambda: account_book.arm("hold_none", 1),
        lambda: account_book.fence("hold_none", 1),
        lambda: account_book.hold_row("hold_none"),
        lambda: nowhere.hold(1),
        nowhere.balance,
    ):
        with pytest.raises(NotFound):
            look()


@pytest.mark.parametrize("amount", [0, -1, 1.0, nan, True, "1", 2**63])
def test_prices_are_whole_numbers_above_zero(account_book, amount):
    with pytest.raises(InvalidInput):
        account_book.hold(amount)
    hold_id = account_book.armed(10)
    with pytest.raises(InvalidInput):
        account_book.charge(hold_id, 1, amount)
    assert account_book.money() == (0, 10, CAPACITY - 10)


def test_a_job_has_one_hold(account_book):
    account_book.hold(1)
    account_book.jobs -= 1
    with pytest.raises(Conflict, match="already"):
        account_book.hold(1)
    assert account_book.money() == (0, 1, CAPACITY - 1)


def test_a_later_attempt_shuts_out_the_earlier_one(account_book):
    hold_id = account_book.armed(1000, charged_nano=100)
    account_book.fence(hold_id, 2)
    for stale in (
        lambda: account_book.arm(hold_id, 1),
        lambda: account_book.charge(hold_id, 1, 1),
        lambda: account_book.capture(hold_id, 1),
        lambda: account_book.fence(hold_id, 1),
    ):
        with pytest.raises(StaleAttempt) as caught:
            stale()
        assert caught.value.numbers["current_attempt"] == 2
    with pytest.raises(Conflict):  # the new attempt has not opened the data yet
        account_book.charge(hold_id, 2, 1)
    account_book.arm(hold_id, 2)
    assert account_book.charge(hold_id, 2, 50) == 150  # replayed steps are charged again
    account_book.capture(hold_id, 2)
    assert account_book.money() == (150, 0, CAPACITY - 150)


def test_charges_never_exceed_the_hold(account_book):
    hold_id = account_book.armed(100, charged_nano=60)
    with pytest.raises(HoldExhausted) as caught:
        account_book.charge(hold_id, 1, 41)
    assert caught.value.numbers == {"requested_nano": 41, "left_nano": 40, "hold_nano": 100}
    assert account_book.charge(hold_id, 1, 40) == 100
    with pytest.raises(HoldExhausted):
        account_book.charge(hold_id, 1, 1)
    assert account_book.hold_row(hold_id).charged_nano == 100
