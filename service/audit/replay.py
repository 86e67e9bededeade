"""Replay an account's log from its entries alone: hash chain, states of holds, prices, balances, admission. Pure.

This shares the definition of the hash and the price functions with the code that writes, and nothing else: it is the
second opinion on every transition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from privacy.errors import PrivacyError
from service.audit.findings import Fault, FindingCode
from service.audit.lines import Line, check_hash, require, truth
from service.audit.prices import FLOAT_TOLERANCE, Prices
from service.audit.replay_holds import HoldReplay
from service.db.words import EntryKind, HoldState
from service.ledger.chain import GENESIS_HASH

TERMS = ("name", "owner", "delta", "unit", "adjacency", "filter", "filter_order")  # fixed at opening, for ever
_OF_HOLDS = frozenset({EntryKind.ARM, EntryKind.CHARGE, EntryKind.CAPTURE, EntryKind.RETURN})


@dataclass
class LogReplay:
    """One account's log so far. `apply` takes the next entry or says why it cannot be the next.

    Args:
        account_id: whose log.
        prices: shared by the logs of one verification.
        sequence: of the last entry that was taken.
    """

    account_id: str
    prices: Prices
    sequence: int = 0
    hash: str = GENESIS_HASH
    terms: dict[str, Any] = field(default_factory=dict)
    created_at: str = ""
    epsilon: float = 0.0
    frozen: bool = False
    capacity_nano: int = 0
    spent_nano: int = 0
    held_nano: int = 0
    open_holds: dict[str, HoldReplay] = field(default_factory=dict)
    ended: list[HoldReplay] = field(default_factory=list)
    find_hold: Callable[[Line], HoldReplay | None] = lambda _line: None

    def apply(self, line: Line) -> None:
        """Take the next entry.

        Raises:
            Fault: it is not a sound continuation of the log.
        """
        if line.sequence != self.sequence + 1:
            raise Fault(FindingCode.ENTRY_MISSING, f"entry {self.sequence + 1} is missing")
        check_hash(self.account_id, line)
        if line.previous_hash != self.hash:
            raise Fault(FindingCode.CHAIN_BROKEN, "does not link to the entry before it")
        try:
            self._take(line)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, PrivacyError) as error:
            raise Fault(FindingCode.ENTRY_MALFORMED, f"cannot be understood ({type(error).__name__})") from None
        balances = (line.capacity_nano, line.spent_nano, line.held_nano)
        if balances != (self.capacity_nano, self.spent_nano, self.held_nano):
            raise Fault(FindingCode.BALANCE_MISMATCH, "states other balances than the entries up to it add up to")
        if self.spent_nano + self.held_nano > self.capacity_nano and not self.frozen:  # I1, I13
            raise Fault(FindingCode.OVERSPENT, "leaves more spent and held than the capacity")
        self.sequence, self.hash = line.sequence, line.hash

    def _take(self, line: Line) -> None:
        kind = EntryKind(line.kind)
        if (kind is EntryKind.OPEN) != (line.sequence == 1):
            raise Fault(FindingCode.TRANSITION_REFUSED, "opens the account again, or does not open it")
        if kind is EntryKind.HOLD:
            self._hold(line)
        elif kind in _OF_HOLDS:
            self._move(kind, line)
        else:
            require(line.hold_id is None, FindingCode.TRANSITION_REFUSED, "concerns a hold and should not")
            if kind is EntryKind.OPEN:
                self._open(line)
            elif kind is EntryKind.LIMIT:
                self._limit(line)
            elif kind is EntryKind.FREEZE:
                self.frozen = truth(line.details["frozen"])
                require(line.amount_nano == 0, FindingCode.AMOUNT_MISMATCH, "freezes with an amount")
            elif kind is EntryKind.FACT:
                require(line.amount_nano == 0, FindingCode.AMOUNT_MISMATCH, "charges for writing a fact down")
            elif kind is EntryKind.SAMPLE:
                require(line.amount_nano == 0, FindingCode.AMOUNT_MISMATCH, "charges for a free sample")
                require(line.job_id is not None, FindingCode.TRANSITION_REFUSED, "samples without a job")

    def _open(self, line: Line) -> None:
        self.terms = {name: line.details[name] for name in TERMS}
        self.created_at = line.created_at
        self._set_limit(line, line.details["epsilon"])

    def _limit(self, line: Line) -> None:
        details = line.details
        require(
            details["epsilon_before"] == self.epsilon,
            FindingCode.CAPACITY_MISMATCH,
            "changes the limit from another one than there was",
        )
        require(
            details["epsilon"] < self.epsilon or _two_people_agreed(details),
            FindingCode.RAISE_UNAPPROVED,
            "raises the limit without a request and two people",
        )
        self._set_limit(line, details["epsilon"])
        frozen = self.frozen or self.spent_nano + self.held_nano > self.capacity_nano  # I13
        require(
            truth(details["frozen"]) == frozen,
            FindingCode.TRANSITION_REFUSED,
            "turns the freeze switch with a limit",
        )
        self.frozen = frozen

    def _set_limit(self, line: Line, epsilon: float) -> None:
        terms = self.terms
        privacy_filter = self.prices.use(terms["filter"], epsilon, terms["delta"], terms["filter_order"])
        wanted_nano = privacy_filter.capacity_nano
        require(
            abs(line.capacity_nano - wanted_nano) <= 2 + FLOAT_TOLERANCE * wanted_nano
            and line.amount_nano == line.capacity_nano,
            FindingCode.CAPACITY_MISMATCH,
            f"has the capacity {line.capacity_nano} where its limit is worth {wanted_nano}",
        )
        self.epsilon, self.capacity_nano = epsilon, line.capacity_nano

    def _hold(self, line: Line) -> None:
        require(not self.frozen, FindingCode.TRANSITION_REFUSED, "holds on a frozen account")
        require(
            line.hold_id is not None and line.job_id is not None and line.hold_id not in self.open_holds,
            FindingCode.TRANSITION_REFUSED,
            "opens a hold that is open already, or names none",
        )
        require(line.amount_nano > 0, FindingCode.AMOUNT_MISMATCH, "holds nothing")
        self.held_nano += line.amount_nano
        require(
            self.spent_nano + self.held_nano <= self.capacity_nano,
            FindingCode.OVERSPENT,
            "holds more than the account has left",
        )
        stages = self.prices.check_hold(line)
        reserved = HoldReplay.opened_by(line, stages)
        self.open_holds[reserved.id] = reserved

    def _move(self, kind: EntryKind, line: Line) -> None:
        reserved = self.open_holds.get(line.hold_id or "") or self.find_hold(line)
        if reserved is None:
            raise Fault(FindingCode.TRANSITION_REFUSED, "concerns a hold that is not open")
        require(line.job_id == reserved.job_id, FindingCode.TRANSITION_REFUSED, "concerns another job than its hold")
        reserved.last_sequence, reserved.updated_at = line.sequence, line.created_at
        if kind is EntryKind.ARM:
            require(
                not self.frozen or reserved.state is not HoldState.HELD,
                FindingCode.TRANSITION_REFUSED,
                "opens private data on a frozen account",
            )
            reserved.arm(line)
        elif kind is EntryKind.CHARGE:
            reserved.charge(line, self.prices)
        else:
            if kind is EntryKind.CAPTURE:
                reserved.capture(line)
            else:
                reserved.release(line)
            self.held_nano -= reserved.amount_nano
            self.spent_nano += reserved.captured_nano
            self.ended.append(reserved)
            del self.open_holds[reserved.id]


def _two_people_agreed(details: Mapping[str, Any]) -> bool:
    """Two keys, and two people behind them; the log of a time when keys were nobody's names keys alone."""
    pairs = [("requested_by", "approved_by")]
    if "requested_by_admin" in details or "approved_by_admin" in details:
        pairs.append(("requested_by_admin", "approved_by_admin"))
    named = [[details.get(name) for name in pair] for pair in pairs]
    return isinstance(details.get("request_id"), str) and all(
        isinstance(asked, str) and isinstance(approved, str) and asked != approved for asked, approved in named
    )
