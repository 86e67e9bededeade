"""A stage that is priced as a whole is charged once, counted to its end, and recomputed."""

import pytest

from service import ledger
from service.audit.findings import FindingCode
from service.errors import HoldExhausted
from tests.conftest import NOW
from tests.service.audit.book import STEPS, LedgerBook
from tests.service.audit.forgery import in_details, rewritten

REPEATS = 1


@pytest.fixture(scope="module")
def shared(module_factory, tmp_path_factory):
    return LedgerBook(module_factory, tmp_path_factory.mktemp("book") / "var", NOW)


def train(book: LedgerBook, name: str) -> LedgerBook:
    """Open an account with a training of sampled steps that has lost an attempt."""
    book = LedgerBook(book.factory, book.data_dir, book.now)
    book.open(name)
    job_id, hold_id = book.start(name, sampled=True)
    book.charge(hold_id, 4)
    book.retry(job_id, hold_id)
    book.charge(hold_id, 4, 2)
    return book


@pytest.fixture(scope="module")
def book(shared):
    """A ledger that tests only read, or change and restore."""
    return train(shared, "sampled")


@pytest.fixture
def account_id(book):
    return book.accounts["sampled"]


def told(book: LedgerBook) -> list[tuple[int, dict[str, int]]]:
    """Return amounts and counts of the charges."""
    log = book.read(ledger.entries, next(iter(book.accounts.values())), 0, 100)
    return [(entry.amount_nano, entry.details["released"]) for entry in log if entry.kind.value == "charge"]


def of_account(book: LedgerBook, *statements: str) -> list[tuple[FindingCode, int | None]]:
    return [found for found in book.found_after(*statements) if found[1] is not None]


def test_all_of_the_price_is_charged_with_the_first_step_and_later_ones_are_counted(book, account_id):
    first, second = told(book)
    assert first[0] > 0 == second[0]
    assert (first[1], second[1]) == ({"steps": 4}, {"steps": 8})
    assert ledger.released(book.read(ledger.get_hold, book.hold_ids[0])) == {"steps": 8}
    assert book.read(ledger.get_hold, book.hold_ids[0]).charged_nano == first[0]
    assert of_account(book) == []


def test_no_more_is_released_than_was_priced_however_often_it_is_tried(shared):
    """The log counts planned and repeated steps over all attempts."""
    book = train(shared, "exhausted")
    hold_id = book.hold_ids[0]
    for count in (STEPS.count + REPEATS - 7, STEPS.count):
        with pytest.raises(HoldExhausted, match="covers 11 releases"):
            book.charge(hold_id, count, 2)
    book.charge(hold_id, STEPS.count + REPEATS - 8, 2)
    with pytest.raises(HoldExhausted):
        book.charge(hold_id, 1, 2)
    assert [counts["steps"] for _, counts in told(book)] == [4, 8, 11]
    assert of_account(book) == []


def add(facts, name, amount):
    facts[name] += amount


BEYOND = STEPS.count + REPEATS + 1
FORGED = {
    "cheaper": lambda details: add(details["stages"][0]["event"], "noise_multiplier", -0.01),
    "longer": lambda details: add(details["stages"][0]["event"], "count", 1),
    "repeated": lambda details: add(details["stages"][0], "repeats", 1),
    "miscounted": lambda details: add(details["released"], "steps", -1),
    "uncounted": lambda details: details.pop("released"),
    "beyond": lambda details: details.update(event=details["event"] | {"count": BEYOND}, released={"steps": BEYOND}),
}


@pytest.mark.parametrize(
    ("kind", "which", "change", "code"),
    [
        ("hold", 0, "cheaper", FindingCode.PRICE_MISMATCH),
        ("hold", 0, "longer", FindingCode.PRICE_MISMATCH),
        ("hold", 0, "repeated", FindingCode.PRICE_MISMATCH),
        ("charge", 0, "miscounted", FindingCode.AMOUNT_MISMATCH),
        ("charge", 1, "miscounted", FindingCode.AMOUNT_MISMATCH),
        ("charge", 0, "uncounted", FindingCode.PRICE_MISMATCH),
        ("charge", 1, "uncounted", FindingCode.AMOUNT_MISMATCH),
        ("charge", 0, "beyond", FindingCode.PRICE_MISMATCH),
        ("arm", 1, "miscounted", FindingCode.AMOUNT_MISMATCH),
        ("arm", 1, "uncounted", FindingCode.AMOUNT_MISMATCH),
    ],
)
def test_a_forged_price_or_count_is_found(book, account_id, kind, which, change, code):
    forged = rewritten(book, account_id, in_details(kind, FORGED[change], which))
    assert of_account(book, *forged)[0][0] is code


@pytest.mark.parametrize("name", ["rate", "base"])
def test_a_forged_rate_is_found(shared, name):
    """A higher rate would make every sampled stage too cheap."""
    book = train(shared, name)
    book.raise_limit(name, 12.0)

    generous = in_details(
        "open" if name == "rate" else "limit", lambda details: add(details, name, details[name] + 1e-9)
    )
    forged = rewritten(book, book.accounts[name], generous)
    assert of_account(book) == []
    assert of_account(book, *forged)[0][0] is FindingCode.CAPACITY_MISMATCH
