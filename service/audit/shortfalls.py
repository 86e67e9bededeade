"""What makes up for spending that a database has forgotten: a lower limit of the account."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import Row

from privacy.accounting.filter import open_filter
from privacy.errors import PrivacyError


def what_makes_up(row: Row[Any], missing_nano: int) -> str:
    """Say which limit makes up for budget that was spent and is not counted; nothing where the row is not believable.

    Args:
        row: of the account, with capacity_nano, epsilon, delta, rate and base.
        missing_nano: what is not counted, positive.
    """
    try:
        epsilon = limit_without(row, missing_nano)
    except (TypeError, ValueError, PrivacyError):
        return ""
    return f" A limit of epsilon {epsilon:g} or less makes up for that." if epsilon else " Nothing is left."


def limit_without(row: Row[Any], missing_nano: int) -> float:
    """Return the highest limit, in thousandths, that leaves an account no more than it has without an amount; or 0.

    Raises:
        TypeError, ValueError, PrivacyError: the row is not believable.
    """
    left_nano = row.capacity_nano - missing_nano
    privacy_filter = open_filter(row.epsilon, row.delta, row.rate, row.base)
    return math.floor(privacy_filter.epsilon_of(left_nano) * 1000) / 1000 if left_nano > 0 else 0.0


def epsilon_of(row: Row[Any], nano: int) -> str:
    """Say what an amount of an account's budget is worth when nothing else is spent; nothing if that is not known."""
    try:
        return f", epsilon {open_filter(row.epsilon, row.delta, row.rate, row.base).epsilon_of(nano):.3g}"
    except (TypeError, ValueError, PrivacyError):
        return ""
