"""How epsilons are shown: three digits, what is left never rounded up, what is spent never rounded down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InsufficientBudget, show_epsilon


@pytest.mark.parametrize(
    ("epsilon", "up", "down"),
    [
        (0.0, "0", "0"),
        (2.0, "2.0", "2.0"),
        (1.2, "1.2", "1.2"),
        (1.1999999995, "1.2", "1.2"),  # 1.2 converted to nano-units and back
        (1.2345, "1.24", "1.23"),
        (0.999, "0.999", "0.999"),
        (9.999, "10.0", "9.99"),
        (0.00012345, "0.000124", "0.000123"),
        (1234.5, "1240", "1230"),
    ],
)
def test_three_digits(epsilon: float, up: str, down: str) -> None:
    assert (show_epsilon(epsilon, up=True), show_epsilon(epsilon, up=False)) == (up, down)


@given(st.floats(min_value=1e-6, max_value=1e4))
def test_the_direction_of_rounding_is_kept(epsilon: float) -> None:
    slack = 1e-7 * epsilon
    assert float(show_epsilon(epsilon, up=False)) <= epsilon + slack
    assert float(show_epsilon(epsilon, up=True)) >= epsilon - slack
    assert float(show_epsilon(epsilon, up=True)) <= epsilon * 1.011


def test_a_refusal_may_name_a_release_later() -> None:
    error = InsufficientBudget(
        account="patients",
        requested_nano=4,
        left_nano=2,
        capacity_nano=10,
        spent_nano=7,
        held_nano=1,
        requested_epsilon=2.0,
        left_epsilon=1.2,
        limit_epsilon=8.0,
        spent_epsilon=6.3,
        held_epsilon=0.5,
        affordable_epsilon=1.2,
    )
    assert error.message.startswith(
        "This job needs epsilon 2.0. Account *patients* has 1.2 left of 8.0 (6.3 spent, 0.5 held"
    )
    named = error.suggesting("rel_a")
    assert named.message.endswith("You can: ask for 1.2, sample release *rel_a* again at no cost, or ask the owner.")
    assert named.numbers == {**error.numbers, "release_id": "rel_a"}
    assert error.release_id is None
