"""A wrong clock dates no entry, because the log is permanent."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from obscura.wire.words import HoldState
from service import ledger
from service.api.problems import RETRY_CODES, STATUSES
from service.db.base import new_id
from service.db.ledger_tables import Entry
from service.db.session import transaction
from service.errors import ClockRefused
from service.times import CLOCK_EARLIEST, CLOCK_LATEST, wrong_clock
from tests.service.holds import hold_at_present_rate

WRONG = {
    "1971": datetime(1971, 3, 1, tzinfo=UTC),
    "2200": datetime(2200, 3, 1, tzinfo=UTC),
    "behind": datetime(2030, 1, 1, 3, tzinfo=UTC),
}


@pytest.fixture
def held(factory, open_account, now):
    """Return an account with a hold that attempt 1 may arm."""
    account_id = open_account(factory)
    with transaction(factory) as session:
        reserved = hold_at_present_rate(session, account_id=account_id, job_id=new_id("job"), amount_nano=100, now=now)
        ledger.fence(session, hold_id=reserved.id, attempt=1, now=now)
    return account_id, reserved.id


def test_clocks_that_are_a_little_off_are_believed(now):
    assert wrong_clock(now, None) is None
    assert wrong_clock(now - timedelta(hours=23), now) is None
    assert wrong_clock(now + timedelta(days=3000), now) is None  # nobody used it for years
    assert wrong_clock(CLOCK_EARLIEST, None) is None
    assert "more than a day behind" in str(wrong_clock(now - timedelta(days=1, seconds=1), now))
    assert "before 2025 or after 2049" in str(wrong_clock(CLOCK_LATEST, None))
    assert wrong_clock(CLOCK_EARLIEST - timedelta(microseconds=1), None)


@pytest.mark.parametrize("clock", WRONG.values(), ids=WRONG)
def test_no_entry_is_dated_by_a_wrong_clock(factory, held, clock):
    account_id, hold_id = held
    acts = (
        lambda s: hold_at_present_rate(s, account_id=account_id, job_id=new_id("job"), amount_nano=1, now=clock),
        lambda s: ledger.arm(s, hold_id=hold_id, attempt=1, now=clock),
        lambda s: ledger.return_hold(s, hold_id=hold_id, reason="cancelled", now=clock),
        lambda s: ledger.set_frozen(s, account_id=account_id, frozen=True, reason="x", now=clock),
        lambda s: ledger.lower_limit(s, account_id=account_id, epsilon=1, reason="x", now=clock),
        lambda s: ledger.open_account(
            s, name="others", owner="x", epsilon=1, delta=1e-5, unit="record", adjacency="add_remove", now=clock
        ),
    )
    with transaction(factory, read_only=True) as session:
        before = session.scalar(select(func.count()).select_from(Entry))
    for act in acts:
        with pytest.raises(ClockRefused, match="Nothing was written"), transaction(factory) as session:
            act(session)
    with transaction(factory, read_only=True) as session:
        assert session.scalar(select(func.count()).select_from(Entry)) == before
        assert ledger.get_hold(session, hold_id).state is HoldState.HELD  # so nothing private was opened


def test_callers_are_told_that_the_service_cannot_and_to_try_again():
    assert STATUSES[ClockRefused.code][0] == 503
    assert ClockRefused.code in RETRY_CODES
