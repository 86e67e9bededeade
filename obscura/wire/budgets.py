"""What a budget protects, and which budgets an account or a job may be given: those that mean something.

The filters compute far beyond these bounds. But an epsilon below a thousandth buys no release that anybody could use,
and one above a thousand promises nothing; a delta above a tenth lets one person in ten be exposed outright, and one
below 1e-30 is less likely than that the noise's cipher is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

EPSILON_LEAST, EPSILON_MOST = 1e-3, 1e3
DELTA_LEAST, DELTA_MOST = 1e-30, 0.1
DELTA_USUAL_MOST = 1e-4  # a larger one must be confirmed

Unit = Literal["record", "subject"]  # whose presence the guarantee hides, declared when an account is opened
UNITS: tuple[Unit, ...] = ("record", "subject")
UNIT_WORDS: Mapping[str, str] = {"record": "one record", "subject": "all records of one subject"}
