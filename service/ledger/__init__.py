"""The ledger: the only writer of accounts, holds and entries."""

from service.db.ledger_tables import HoldState, Unit
from service.ledger.accounts import accounts, entries, open_account
from service.ledger.balances import (
    Balance,
    affordable_epsilon,
    balance,
    balance_of,
    filter_of,
    insufficient,
)
from service.ledger.holds import arm, capture, charge, fence, hold, record_sample, release_hold, settle
from service.ledger.limits import (
    REQUEST_LIFETIME,
    approve_raise,
    decline_raise,
    get_limit_request,
    has_expired,
    lower_limit,
    request_raise,
    set_frozen,
)
from service.ledger.records import Account, Entry, Hold
from service.ledger.rows import get_account, get_hold, lock_account

__all__ = [
    "REQUEST_LIFETIME",
    "Account",
    "Balance",
    "Entry",
    "Hold",
    "HoldState",
    "Unit",
    "accounts",
    "affordable_epsilon",
    "approve_raise",
    "arm",
    "balance",
    "balance_of",
    "capture",
    "charge",
    "decline_raise",
    "entries",
    "fence",
    "filter_of",
    "get_account",
    "get_hold",
    "get_limit_request",
    "has_expired",
    "hold",
    "insufficient",
    "lock_account",
    "lower_limit",
    "open_account",
    "record_sample",
    "release_hold",
    "request_raise",
    "set_frozen",
    "settle",
]
