"""Write accounts, holds and log entries: only this package does. Start with `holds`; `limits` has admins' actions.

Callers pass a session in a writing transaction and commit it themselves; datetimes are timezone-aware. Functions that
read an account, a hold or an entry raise NotFound if it is missing, and LedgerCorruption if it contradicts the log.
Functions that append an entry raise ClockRefused if the clock is wrong. No entry is ever changed or deleted.
"""

from service.db.ledger_tables import Account, Entry, Hold
from service.ledger import limits, stops
from service.ledger.accounts import (
    affordable_epsilon,
    balance_of,
    entries,
    entries_by_job,
    filter_of,
    insufficient,
    keep_subjects_key_check,
    open_account,
    require_open,
    require_unfrozen,
)
from service.ledger.holds import (
    RateChanged,
    arm,
    capture,
    charge,
    fence,
    hold,
    lock_to_hold,
    order_of,
    released,
    require_unchanged,
    return_hold,
    settle,
    stale_attempt,
)
from service.ledger.rows import (
    audited,
    entry_of_hold,
    filter_of_hold,
    get_account,
    get_hold,
    lock_account,
    newest_at,
    require_clock,
)
