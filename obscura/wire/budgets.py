"""Units that a budget protects, and bounds on the budgets of accounts and jobs.

An epsilon below 0.001 yields no useful release, and an epsilon above 1,000 guarantees almost nothing. A delta above 0.1
may expose one person in ten. A delta below 1e-30 is less than the chance of guessing the noise key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

EPSILON_LEAST, EPSILON_MOST = 1e-3, 1e3
DELTA_LEAST, DELTA_MOST = 1e-30, 0.1
DELTA_USUAL_MOST = 1e-4  # a larger delta must be confirmed
PART_PROPOSED = 1 / 3  # of the remaining epsilon, for one training
PART_CONFIRMED = 1 / 2  # of the remaining epsilon; a higher cost needs a confirmation

Unit = Literal["record", "subject"]  # whose presence the guarantee hides; declared when an account is opened
UNITS: tuple[Unit, ...] = ("record", "subject")
UNIT_WORDS: Mapping[str, str] = {"record": "one record", "subject": "all records of one subject"}


def usual_delta(units: int) -> float:
    """Return the largest power of ten that is at most 1 / (10 x units) and needs no confirmation."""
    return min(float(f"1e-{len(str(10 * units - 1))}"), DELTA_USUAL_MOST)
