"""Accounts and holds as the ledger hands them out, and what is asserted of them on every write and every reading.

They are plain values that no session watches or writes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from obscura.wire.words import Adjacency, EntryKind, HoldState, Unit
from service.errors import LedgerCorruption
from service.ledger.chain import Entry


@dataclass(slots=True)
class Account:
    """A row of `accounts`, field by column, and when the newest entry of its log was written."""

    id: str
    name: str
    owner: str
    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    rate: float
    base: float
    capacity_nano: int
    spent_nano: int
    held_nano: int
    frozen: bool
    closed: bool
    head_sequence: int
    head_hash: str
    created_at: datetime
    project_id: str
    newest_at: datetime | None = field(default=None, metadata={"column": False})

    @property
    def left_nano(self) -> int:
        """What may still be held; 0 where the limit was lowered below what is spent and held."""
        return max(self.capacity_nano - self.spent_nano - self.held_nano, 0)

    @property
    def promised_nano(self) -> int:
        """What all that is ever published costs at most.

        Under a limit that was lowered below it, what is spent stays spent, and what is held may still be.
        """
        return max(self.capacity_nano, self.spent_nano + self.held_nano)


@dataclass(slots=True)
class Hold:
    """A row of `holds`, field by column."""

    id: str
    account_id: str
    job_id: str
    state: HoldState
    amount_nano: int
    charged_nano: int
    captured_nano: int
    attempt: int
    armed_attempt: int
    last_sequence: int
    created_at: datetime
    updated_at: datetime


def check_account(account: Account, head: Entry | None) -> None:
    """Assert that cached balances equal the head of the log, that the head is intact, and that nothing is overspent.

    Raises:
        LedgerCorruption: an assertion failed (I1, I8, I13).
    """
    if head is None or head.hash != account.head_hash:
        raise corrupt("the head of the log is missing or is not the one the account names", account)
    check_entry(head)
    check_balances(account, head)


def check_balances(account: Account, head: Entry) -> None:
    """Assert that an account shows what the newest entry says, and stays within its capacity unless it is frozen.

    Raises:
        LedgerCorruption: an assertion failed (I1, I8, I13).
    """
    if (account.capacity_nano, account.spent_nano, account.held_nano, account.head_sequence, account.head_hash) != (
        head.capacity_nano,
        head.spent_nano,
        head.held_nano,
        head.sequence,
        head.hash,
    ):
        raise corrupt("the cached balances differ from the log", account)
    if account.spent_nano < 0 or account.held_nano < 0:
        raise corrupt("a balance is negative", account)
    if not account.frozen and account.spent_nano + account.held_nano > account.capacity_nano:
        raise corrupt("more is spent and held than the capacity", account)
    if head.kind in (EntryKind.LIMIT, EntryKind.FREEZE, EntryKind.ACCEPT) and head.details["frozen"] != account.frozen:
        raise corrupt("the freeze switch differs from the log", account)


def check_entry(entry: Entry) -> None:
    """Assert that an entry's hash covers its contents.

    Raises:
        LedgerCorruption: the entry was changed after it was written.
    """
    if not entry.is_intact():
        raise LedgerCorruption(
            f"Ledger: entry {entry.sequence} of account {entry.account_id} does not match its hash.",
            account_id=entry.account_id,
            sequence=entry.sequence,
        )


def check_hold(reserved: Hold, last: Entry | None, head: Entry | None = None) -> None:
    """Assert that a hold's amounts fit its state, and that both are what the log says.

    Args:
        reserved: as it was read.
        last: the newest entry about it.
        head: of the account's log, where it was checked already.

    Raises:
        LedgerCorruption: an assertion failed (I3, I5, I8).
    """
    if last is not None and last is not head:
        check_entry(last)
    if not (_fits_state(reserved) and last is not None and _fits_log(reserved, last)):
        raise LedgerCorruption(
            "Ledger: a hold's amounts do not fit its state, or the log.",
            hold_id=reserved.id,
            account_id=reserved.account_id,
            sequence=reserved.last_sequence,
        )


def _fits_state(reserved: Hold) -> bool:
    armed = reserved.state in (HoldState.ARMED, HoldState.CAPTURED)
    captured_nano = reserved.charged_nano if reserved.state is HoldState.CAPTURED else 0
    return (
        reserved.amount_nano > 0
        and 0 <= reserved.charged_nano <= reserved.amount_nano
        and reserved.captured_nano == captured_nano
        and (armed or reserved.charged_nano == 0)
        and (reserved.armed_attempt >= 1 if armed else reserved.armed_attempt == 0)
        and reserved.armed_attempt <= reserved.attempt
    )


def _fits_log(reserved: Hold, last: Entry) -> bool:
    """Tell whether the newest entry about a hold says the same as its row. `attempt` alone is not in the log."""
    if (last.hold_id, last.job_id, last.sequence) != (reserved.id, reserved.job_id, reserved.last_sequence):
        return False
    facts = last.details
    match last.kind:
        case EntryKind.HOLD:
            said = HoldState.HELD, last.amount_nano, 0, 0
        case EntryKind.ARM | EntryKind.CHARGE:
            said = HoldState.ARMED, facts["hold_nano"], facts["charged_nano"], facts["attempt"]
        case EntryKind.CAPTURE:
            amount_nano = last.amount_nano + facts["returned_nano"]
            said = HoldState.CAPTURED, amount_nano, last.amount_nano, reserved.armed_attempt
        case EntryKind.RETURN:
            said = HoldState.RETURNED, last.amount_nano, 0, 0
        case _:
            return False
    return said == (reserved.state, reserved.amount_nano, reserved.charged_nano, reserved.armed_attempt)


def corrupt(why: str, account: Account) -> LedgerCorruption:
    """Return the error for an account that contradicts its log."""
    return LedgerCorruption(
        f"Ledger: account {account.id}: {why}.", account_id=account.id, sequence=account.head_sequence
    )
