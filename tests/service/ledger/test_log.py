"""The log of an account on both databases: its pages, what the database refuses, and the edits that reading finds."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from obscura.wire.words import HoldState
from service import ledger
from service.api.problems import RETRY_CODES, STATUSES
from service.db.ledger_tables import Account, Entry
from service.db.session import transaction
from service.errors import ClockRefused, InvalidInput, LedgerCorruption
from service.ledger.chain import canonical_json
from service.times import CLOCK_EARLIEST, CLOCK_LATEST, wrong_clock
from tests.service.ledger.account_book import CAPACITY, SHA
from tests.service.steps import hold_amount


def test_the_log_is_paged_and_each_page_checks_its_link(account_book):
    for _ in range(6):
        account_book.hold(1)
    with transaction(account_book.factory, read_only=True) as session:
        pages = [ledger.entries(session, account_book.account_id, after, 3) for after in (0, 3, 6, 7, 99)]
        for limit in (0, 1001):
            with pytest.raises(InvalidInput):
                ledger.entries(session, account_book.account_id, 0, limit)
    assert [[entry.sequence for entry in page] for page in pages] == [[1, 2, 3], [4, 5, 6], [7], [], []]


def test_canonical_json_has_one_spelling():
    assert canonical_json({"b": 1e-5, "a": "é", "c": [None, True]}) == b'{"a":"\\u00e9","b":1e-05,"c":[null,true]}'
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))


def test_details_survive_the_database_exactly(account_book):
    details = {"small": 1e-300, "whole": 1.0, "big": 1e20, "int": 2**62, "text": "ü\u0000\U0001f600", "none": None}
    facts = {"account_id": account_book.account_id, "job_id": "job_d", "amount_nano": 1, "details": details}
    account_book.do(hold_amount, **facts)
    stored = account_book.entries()[-1].details  # reading checks the hash too
    assert stored == details
    assert all(type(stored[name]) is type(value) for name, value in details.items())


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE entries SET amount_nano = 0", "append-only"),
        ("UPDATE entries SET sequence = 99 WHERE sequence = 1", "append-only"),
        ("DELETE FROM entries WHERE sequence = 2", "append-only"),
        ("replace or truncate", "append-only"),
        ("UPDATE accounts SET reserved_nano = capacity_nano + 1", "(?i)check constraint"),
        ("UPDATE accounts SET spent_nano = -1", "(?i)check constraint"),
        ("UPDATE accounts SET unit = 'none'", "(?i)check constraint"),
        ("UPDATE holds SET charged_nano = amount_nano + 1, state = 'armed'", "(?i)check constraint"),
        ("UPDATE holds SET charged_nano = 1", "(?i)check constraint"),
        ("UPDATE holds SET state = 'gone'", "(?i)check constraint"),
        ("UPDATE holds SET amount_nano = 0", "(?i)check constraint"),
    ],
)
def test_entries_are_append_only_and_impossible_rows_are_refused(account_book, statement, why):
    account_book.hold(7)
    if statement == "replace or truncate":
        replace = "INSERT OR REPLACE INTO entries SELECT * FROM entries"
        statement = replace if account_book.sqlite else "TRUNCATE entries"
    with pytest.raises(DBAPIError, match=why):
        account_book.sql(statement)
    assert account_book.kinds() == ["open", "hold"]
    assert account_book.money() == (0, 7, CAPACITY - 7)


def test_a_second_terminal_entry_for_a_hold_is_refused(account_book):
    account_book.give_back(account_book.hold(7))
    columns = ", ".join(column.name for column in Entry.__table__.columns if column.name != "sequence")
    copied = f"INSERT INTO entries (sequence, {columns}) SELECT 4, {columns} FROM entries WHERE sequence = 3"
    with pytest.raises(IntegrityError):
        account_book.sql(copied)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE accounts SET spent_nano = spent_nano + 1",
        "UPDATE accounts SET reserved_nano = 0",
        "UPDATE accounts SET capacity_nano = capacity_nano + 1",
        "UPDATE accounts SET head_sequence = 1",
        "UPDATE accounts SET head_sequence = 9",
        f"UPDATE accounts SET head_hash = '{SHA}'",
    ],
)
def test_an_edited_account_is_found_on_read_and_on_write(account_book, statement):
    account_book.hold(7)
    account_book.sql(statement)
    with pytest.raises(LedgerCorruption):
        account_book.balance()
    with pytest.raises(LedgerCorruption):
        account_book.hold(1)


@pytest.mark.parametrize(
    "change", ["amount_nano = 8", "details = '{}'", "job_id = 'job_x'", "created_at = '2031-01-01 00:00:00+00'"]
)
def test_an_edited_entry_is_found(account_book, change):
    account_book.hold(7)
    account_book.hold(7)
    if account_book.sqlite:
        change = change.replace("+00", "")
    account_book.corrupt(f"UPDATE entries SET {change} WHERE sequence = 2")
    assert account_book.balance().reserved_nano == 14  # the head is sound; the page is not
    with pytest.raises(LedgerCorruption, match="entry 2"):
        account_book.entries()


def test_a_deleted_entry_is_found(account_book):
    for _ in range(3):
        account_book.hold(7)
    account_book.corrupt("DELETE FROM entries WHERE sequence = 3")
    with pytest.raises(LedgerCorruption, match="entry 3"):
        account_book.entries()
    account_book.corrupt("DELETE FROM entries WHERE sequence = 4")
    with pytest.raises(LedgerCorruption, match="head"):
        account_book.balance()


def test_an_impossible_hold_is_found(account_book):
    hold_id = account_book.hold(7, attempt=1)
    account_book.sql("UPDATE holds SET state = 'armed'")
    for step in (lambda: account_book.hold_row(hold_id), lambda: account_book.charge(hold_id, 1, 1)):
        with pytest.raises(LedgerCorruption):
            step()


def test_reading_cannot_write(account_book):
    with pytest.raises(DBAPIError), transaction(account_book.factory, read_only=True) as session:
        session.execute(text("UPDATE accounts SET frozen = frozen"))
    account_book.hold(1)  # the same connection writes again afterwards
    with transaction(account_book.factory, read_only=True) as session:
        assert session.get(Account, account_book.account_id) is not None


def test_clocks_that_are_a_little_off_are_believed(now):
    assert wrong_clock(now, None) is None
    assert wrong_clock(now - timedelta(hours=23), now) is None
    assert wrong_clock(now + timedelta(days=3000), now) is None  # nobody used it for years
    assert wrong_clock(CLOCK_EARLIEST, None) is None
    assert "more than a day behind" in str(wrong_clock(now - timedelta(days=1, seconds=1), now))
    assert "before 2025 or after 2049" in str(wrong_clock(CLOCK_LATEST, None))
    assert wrong_clock(CLOCK_EARLIEST - timedelta(microseconds=1), None)


@pytest.mark.parametrize("clock", [datetime(year, 1, 1, 3, tzinfo=UTC) for year in (1971, 2030, 2200)])
def test_no_entry_is_dated_by_a_wrong_clock(account_book, open_account, clock):
    hold_id = account_book.hold(100, attempt=1)
    account_book.now = clock  # in 2030 a day behind
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
    assert STATUSES[ClockRefused.code] == 503
    assert ClockRefused.code in RETRY_CODES
