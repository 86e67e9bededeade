"""A wrong clock dates no entry, because the log is permanent."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from obscura.wire.words import HoldState
from service.api.problems import RETRY_CODES, STATUSES
from service.db.ledger_tables import Entry
from service.errors import ClockRefused
from service.times import CLOCK_EARLIEST, CLOCK_LATEST, wrong_clock

WRONG = {
    "1971": datetime(1971, 3, 1, tzinfo=UTC),
    "2200": datetime(2200, 3, 1, tzinfo=UTC),
    "behind": datetime(2030, 1, 1, 3, tzinfo=UTC),
}


def test_clocks_that_are_a_little_off_are_believed(now):
    assert wrong_clock(now, None) is None
    assert wrong_clock(now - timedelta(hours=23), now) is None
    assert wrong_clock(now + timedelta(days=3000), now) is None  # nobody used it for years
    assert wrong_clock(CLOCK_EARLIEST, None) is None
    assert "more than a day behind" in str(wrong_clock(now - timedelta(days=1, seconds=1), now))
    assert "before 2025 or after 2049" in str(wrong_clock(CLOCK_LATEST, None))
    assert wrong_clock(CLOCK_EARLIEST - timedelta(microseconds=1), None)


@pytest.mark.parametrize("clock", WRONG.values(), ids=WRONG)
def test_no_entry_is_dated_by_a_wrong_clock(account_book, open_account, clock):
    hold_id = account_book.hold(100, attempt=1)
    account_book.now = clock
    for act in (
        lambda: account_book.hold(1),
        lambda: account_book.arm(hold_id, 1),
        lambda: account_book.give_back(hold_id),
        lambda: account_book.freeze(True),
        lambda: account_book.lower(1.0),
        lambda: open_account(account_book.factory, name="others", now=clock),
    ):
        with pytest.raises(ClockRefused, match="Nothing was written"):
            act()
    assert account_book.kinds() == ["open", "hold"]
    assert account_book.read(lambda session: session.scalar(select(func.count()).select_from(Entry))) == 2
    assert account_book.hold_row(hold_id).state is HoldState.HELD  # so nothing private was opened


def test_callers_are_told_that_the_service_cannot_and_to_try_again():
    assert STATUSES[ClockRefused.code][0] == 503
    assert ClockRefused.code in RETRY_CODES
