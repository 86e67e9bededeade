"""Errors carry numbers and say what can be done."""

from __future__ import annotations

from privacy.errors import BudgetExceeded, EventRefused, InvalidParameter, PrivacyError


def test_every_error_is_a_privacy_error() -> None:
    for error in (BudgetExceeded(2, 1), EventRefused("votes", "x"), InvalidParameter("k", 0, "z")):
        assert isinstance(error, PrivacyError)
        assert isinstance(error, ValueError)


def test_budget_exceeded_names_both_amounts_and_a_way_out() -> None:
    error = BudgetExceeded(2000, 500, 2.0, 1.2)
    assert (error.requested_nano, error.remaining_nano) == (2000, 500)
    assert (error.requested_epsilon, error.remaining_epsilon) == (2.0, 1.2)
    for part in ("2000", "500", "epsilon 2", "epsilon 1.2", "sample an existing release"):
        assert part in str(error)


def test_invalid_parameter_names_parameter_value_and_reason() -> None:
    assert str(InvalidParameter("delta", 1.0, "too large")) == "delta=1.0 is refused: too large"
