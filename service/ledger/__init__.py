"""The ledger: the only writer of accounts, holds and entries.

Whoever writes gives a session in a writing transaction and commits it; times are aware.
"""

from obscura.wire.words import HoldState, Unit
from service.db.ledger_tables import EVERYWHERE, Account, Entry, Hold
from service.ledger.accounts import (
    Balance,
    affordable_epsilon,
    balance,
    balance_of,
    entries,
    filter_of,
    insufficient,
    keep_subjects_key_check,
    open_account,
    require_open,
    require_unfrozen,
    set_closed,
)
from service.ledger.facts import order_of, require_as_held
from service.ledger.holds import (
    RateChanged,
    arm,
    capture,
    charge,
    fence,
    hold,
    lock_to_hold,
    released,
    return_hold,
    settle,
)
from service.ledger.limits import (
    CARRIED,
    LIMIT_EFFECTS,
    lower_limit,
    request_raise,
    set_frozen,
)
from service.ledger.rows import (
    audited_accounts,
    audited_holds,
    entry_of_hold,
    filter_of_hold,
    get_account,
    get_hold,
    lock_account,
    newest_at,
    require_clock,
)

__all__ = [
    "CARRIED",
    "EVERYWHERE",
    "LIMIT_EFFECTS",
    "Account",
    "Balance",
    "Entry",
    "Hold",
    "HoldState",
    "RateChanged",
    "Unit",
    "affordable_epsilon",
    "arm",
    "audited_accounts",
    "audited_holds",
    "balance",
    "balance_of",
    "capture",
    "charge",
    "entries",
    "entry_of_hold",
    "fence",
    "filter_of",
    "filter_of_hold",
    "get_account",
    "get_hold",
    "hold",
    "insufficient",
    "keep_subjects_key_check",
    "lock_account",
    "lock_to_hold",
    "lower_limit",
    "newest_at",
    "open_account",
    "order_of",
    "released",
    "request_raise",
    "require_as_held",
    "require_clock",
    "require_open",
    "require_unfrozen",
    "return_hold",
    "set_closed",
    "set_frozen",
    "settle",
]
