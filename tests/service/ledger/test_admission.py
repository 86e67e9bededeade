"""Admission on both databases: the filter, limits, the freeze switch."""

import dataclasses

import pytest

from obscura.wire.budgets import EPSILON_LEAST
from privacy.accounting.filter import attacker_certainty_max, open_filter
from service import ledger
from service.errors import AccountFrozen, Conflict, InsufficientBudget
from tests.service.ledger.account_book import CAPACITY


def test_a_hold_fits_exactly_or_is_refused_with_every_number(account_book):
    account_book.capture(account_book.armed(CAPACITY // 2, charged_nano=CAPACITY // 2), 1)
    held = CAPACITY // 4
    account_book.hold(held)
    left = CAPACITY - CAPACITY // 2 - held
    with pytest.raises(InsufficientBudget) as caught:
        account_book.hold(left + 1)
    balance = caught.value.balance
    assert (caught.value.requested_nano, balance.left_nano, balance.capacity_nano) == (left + 1, left, CAPACITY)
    assert (balance.spent_nano, balance.reserved_nano) == (CAPACITY // 2, held)
    assert balance.limit_epsilon == 8.0
    budget = open_filter(8.0, 1e-5)
    assert balance.left_epsilon == pytest.approx(budget.epsilon_of(left))
    assert balance.spent_epsilon == pytest.approx(budget.epsilon_of(CAPACITY // 2))
    assert 0 < budget.nano_of(balance.affordable_epsilon) <= left
    assert budget.nano_of(balance.affordable_epsilon + 0.01) > left
    numbers = balance.model_dump(exclude={"guaranteed_epsilon", "attacker_certainty_max"})
    assert {name: caught.value.numbers[name] for name in numbers} == numbers
    account_book.hold(left)
    assert account_book.money() == (CAPACITY // 2, CAPACITY - CAPACITY // 2, 0)


def test_a_price_of_another_rate_is_refused_whatever_it_is(account_book):
    opened = account_book.account()
    priced_by = ledger.filter_of(opened)
    facts = {"account_id": account_book.account_id, "job_id": "job_late", "amount_nano": 1, "details": {}}
    for other in (
        dataclasses.replace(priced_by, rate=priced_by.rate * 1.01),
        dataclasses.replace(priced_by, base=1e-9),
        open_filter(12.0, 1e-5),
    ):
        with pytest.raises(ledger.RateChanged, match=r"'patients' was raised while the cost of"):
            account_book.do(ledger.hold, priced_by=other, **facts)
    assert account_book.kinds() == ["open"]
    account_book.do(ledger.hold, priced_by=dataclasses.replace(priced_by, epsilon=3.0), **facts)  # prices are the same
    assert account_book.kinds() == ["open", "hold"]


def test_the_refusal_teaches_with_numbers(account_book):
    budget = open_filter(8.0, 1e-5)
    account_book.hold(CAPACITY - budget.nano_of(1.2))
    with pytest.raises(InsufficientBudget) as caught:
        account_book.hold(budget.nano_of(2.0))
    message = caught.value.suggesting("rel_abc").message
    assert message.startswith("This job needs epsilon 2.0. Account 'patients' has 1.2 left of 8.0 (0 spent, 7.8")
    assert message.endswith(
        "You can: ask for 1.2, sample release 'rel_abc' again at no cost, or ask the owner for a higher limit."
    )
    assert "You can: ask for 1.2, or ask the owner for a higher limit." in caught.value.message
    assert caught.value.numbers["affordable_epsilon"] == 1.2


def test_with_nothing_left_only_free_things_are_suggested(account_book):
    account_book.hold(CAPACITY)
    with pytest.raises(InsufficientBudget, match=r"has 0 left of 8\.0 .*") as caught:
        account_book.hold(1)
    assert caught.value.balance.affordable_epsilon == 0
    said = caught.value.suggesting("rel_abc").message
    assert "No further training fits; sampling and evaluating existing releases stays free." in said
    asking = "request a higher limit, which two admins decide."
    assert said.endswith(f"You can: sample release 'rel_abc' again at no cost, or {asking}")
    assert caught.value.message.endswith(f"You can: {asking}")


@pytest.mark.parametrize("left", [1, 100, 335, 336, 400])
def test_what_is_too_little_to_be_asked_for_is_not_offered(account_book, left):
    """A few nano-units are less than the least epsilon of a request."""
    account_book.hold(CAPACITY - left)
    balance = account_book.balance()
    assert balance.left_nano == left
    assert balance.left_epsilon > 0
    assert balance.affordable_epsilon == 0 or balance.affordable_epsilon >= EPSILON_LEAST
    assert (balance.affordable_epsilon == 0) == (left < open_filter(8.0, 1e-5).nano_of(EPSILON_LEAST))


def test_the_affordable_epsilon_is_admitted(account_book):
    budget = open_filter(8.0, 1e-5)
    for amount in (1, 12345, budget.nano_of(3.3), budget.nano_of(0.71)):
        account_book.hold(amount)
        affordable = account_book.balance().affordable_epsilon
        assert budget.nano_of(affordable) <= account_book.balance().left_nano
    account_book.hold(budget.nano_of(affordable))


def test_a_limit_below_the_spend_shows_zero_and_frozen_never_a_negative(account_book):
    running = account_book.armed(CAPACITY // 2, charged_nano=CAPACITY // 2)
    waiting = account_book.hold(CAPACITY // 4, attempt=1)
    account_book.lower(1.0)
    balance = account_book.balance()
    assert (balance.left_nano, balance.left_epsilon, balance.affordable_epsilon) == (0, 0.0, 0.0)
    assert account_book.account().frozen
    with pytest.raises(AccountFrozen):
        account_book.hold(1)
    with pytest.raises(AccountFrozen):  # what has not read the data yet may not start
        account_book.arm(waiting, 1)
    account_book.capture(running, 1)  # what has, ends
    account_book.give_back(waiting)
    assert account_book.balance().spent_nano == CAPACITY // 2
    with pytest.raises(Conflict, match="stays frozen"):
        account_book.freeze(False)


def test_what_is_promised_is_the_limit_or_what_is_spent_and_held_where_that_is_more(account_book):
    """An armed training continues under a limit that was lowered below it, so the earlier promise must hold."""
    opened = open_filter(8.0, 1e-5)
    assert account_book.balance().guaranteed_epsilon == 8.0
    account_book.capture(account_book.armed(CAPACITY // 4, charged_nano=CAPACITY // 4), 1)
    running = account_book.armed(CAPACITY // 4, charged_nano=1000)
    account_book.lower(7.0)
    assert account_book.balance().guaranteed_epsilon == 7.0
    account_book.lower(1.0)
    promised = account_book.balance()
    assert promised.limit_epsilon == 1.0
    assert promised.guaranteed_epsilon == pytest.approx(opened.epsilon_of(2 * (CAPACITY // 4)))
    assert promised.attacker_certainty_max == attacker_certainty_max(opened, 2 * (CAPACITY // 4))
    account_book.charge(running, 1, CAPACITY // 4 - 1000)
    account_book.capture(running, 1)
    later = account_book.balance()
    assert later.spent_epsilon == later.guaranteed_epsilon == promised.guaranteed_epsilon
    assert later.attacker_certainty_max == promised.attacker_certainty_max
