"""Which budgets an account, or a job, may be given: those that mean something.

The filters compute far beyond. But an epsilon below a thousandth buys no release that anybody could use, and one above
a thousand promises nothing; a delta above a tenth lets one person in ten be exposed outright, and one below 1e-30 is
less likely than that the noise's cipher is guessed.
"""

from __future__ import annotations

EPSILON_LEAST, EPSILON_MOST = 1e-3, 1e3
DELTA_LEAST, DELTA_MOST = 1e-30, 0.1
