"""The ledger: the only writer of accounts, holds and entries.

Whoever writes gives a session in a writing transaction and commits it; times are aware.
"""

from obscura.wire.words import HoldState, Unit
from service.db.ledger_tables import EVERYWHERE
from service.ledger.accounts import (
    Balance,
    affordable_epsilon,
    audited_by_id,
    balance,
    balance_of,
    entries,
    filter_of,
    insufficient,
    open_account,
    require_open,
    require_unfrozen,
    set_closed,
)
from service.ledger.chain import Entry
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
    LIMIT_EFFECTS,
    lower_limit,
    record_missing,
    request_raise,
    set_frozen,
)
from service.ledger.records import Account, Hold
from service.ledger.rows import (
    audited_holds,
    entry_of_hold,
    filter_of_hold,
    get_account,
    get_hold,
    lock_account,
    require_clock,
)
from service.ledger.statements import keep_subjects_key_check, newest_at

__all__ = [
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
    "audited_by_id",
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
    "record_missing",
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
