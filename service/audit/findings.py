"""What verification may find: a closed set of codes, each with the first bad entry where there is one."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

from service.db.ledger_tables import EVERYWHERE


class FindingCode(enum.StrEnum):
    """Why a ledger is not what it was."""

    # One account's log
    ENTRY_MISSING = "entry_missing"
    LOG_UNREADABLE = "log_unreadable"
    HASH_MISMATCH = "hash_mismatch"
    CHAIN_BROKEN = "chain_broken"
    ENTRY_MALFORMED = "entry_malformed"
    TRANSITION_REFUSED = "transition_refused"
    AMOUNT_MISMATCH = "amount_mismatch"
    BALANCE_MISMATCH = "balance_mismatch"
    OVERSPENT = "overspent"
    PRICE_MISMATCH = "price_mismatch"
    PRICE_UNKNOWN = "price_unknown"
    CAPACITY_MISMATCH = "capacity_mismatch"
    RAISE_UNAPPROVED = "raise_unapproved"
    # Rows beside the log
    ACCOUNT_MISMATCH = "account_mismatch"
    HOLD_MISMATCH = "hold_mismatch"
    HOLD_REPEATED = "hold_repeated"
    ORPHAN_ENTRIES = "orphan_entries"
    ORPHAN_HOLD = "orphan_hold"
    JOB_MISMATCH = "job_mismatch"
    RELEASE_UNPAID = "release_unpaid"
    RECEIPT_MISMATCH = "receipt_mismatch"
    ARTIFACT_MISMATCH = "artifact_mismatch"
    CARD_MISMATCH = "card_mismatch"
    RELEASE_MISMATCH = "release_mismatch"
    # What was signed
    CHECKPOINT_BROKEN = "checkpoint_broken"
    CHECKPOINT_MISSING = "checkpoint_missing"
    CHECKPOINT_FILE_REFUSED = "checkpoint_file_refused"
    RECEIPT_REFUSED = "receipt_refused"
    OLDER_THAN_CHECKPOINT = "older_than_checkpoint"
    OLDER_THAN_RECEIPT = "older_than_receipt"
    # The data folder beside the database
    INSTALLATION_MISMATCH = "installation_mismatch"
    JOURNAL_UNKNOWN = "journal_unknown"
    JOURNAL_AHEAD = "journal_ahead"
    RELEASE_UNKNOWN = "release_unknown"
    DATASET_UNKNOWN = "dataset_unknown"
    RESTORED = "restored"
    # The verification itself, and what it stands on
    NOT_VERIFIABLE = "not_verifiable"
    DATABASE_DAMAGED = "database_damaged"
    TRIGGER_MISSING = "trigger_missing"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: from the closed set.
        message: for an operator; public facts only.
        account_id: whose log or row; None where it concerns none or all.
        sequence: the first bad entry; None where no entry is concerned.
        stops: whether it stops arming; False for doubts about a file that somebody handed in.
    """

    code: FindingCode
    message: str
    account_id: str | None = None
    sequence: int | None = None
    stops: bool = True

    @property
    def scope(self) -> str:
        """What must not be armed: the account, or everything."""
        return self.account_id or EVERYWHERE

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return {**asdict(self), "code": self.code.value}


@dataclass(frozen=True)
class Report:
    """What a verification read and found.

    Attributes:
        full: every entry was read; otherwise those since the newest checkpoint.
        accounts: logs that were read.
        entries: entries that were read.
        holds: hold rows that were compared.
        releases: releases that were compared with the capture that paid for them.
        checkpoints: signed checkpoints that were checked.
        witnesses: receipts and heads from outside the log that were looked up in it.
        artifacts: release folders whose digest was recomputed.
        findings: what is wrong, at most FINDINGS_MAX; empty for a sound ledger.
        heads: by account, [sequence, hash, spent_nano] at the newest entry that was verified.
    """

    full: bool
    accounts: int = 0
    entries: int = 0
    holds: int = 0
    releases: int = 0
    checkpoints: int = 0
    witnesses: int = 0
    artifacts: int = 0
    findings: tuple[Finding, ...] = ()
    heads: dict[str, list[Any]] = field(default_factory=dict, repr=False)

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def stops(self) -> bool:
        """Whether something was found for which arming stops."""
        return any(finding.stops for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able description, without the heads."""
        counts = {name: value for name, value in vars(self).items() if name not in ("findings", "heads")}
        return {"clean": self.clean, **counts, "findings": [finding.to_json() for finding in self.findings]}


FINDINGS_MAX = 100


class Fault(Exception):
    """The first bad entry of a log: what the replay raises; the reader makes a finding of it.

    Args:
        code: from the closed set.
        message: what is wrong with the entry.
        sequence: of the entry; None for the next one of the log.
    """

    def __init__(self, code: FindingCode, message: str, sequence: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.sequence = code, message, sequence


def require(condition: bool, code: FindingCode, message: str) -> None:
    """Let a condition pass that holds.

    Raises:
        Fault: it does not hold.
    """
    if not condition:
        raise Fault(code, message)


def whole(value: Any) -> int:
    """Return a whole number.

    Raises:
        TypeError: the value is something else.
    """
    if type(value) is not int:
        raise TypeError
    return value


def truth(value: Any) -> bool:
    """Return a truth value.

    Raises:
        TypeError: the value is something else.
    """
    if type(value) is not bool:
        raise TypeError
    return value
