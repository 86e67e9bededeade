"""Replay a hold from the entries about it: states, amounts, attempts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.audit.findings import FindingCode
from service.audit.lines import Line, check_hash, require, whole
from service.audit.prices import Prices
from service.db.words import EntryKind, HoldState


@dataclass(slots=True)
class HoldReplay:
    """A hold as its entries tell it.

    Attributes:
        sequence: of the entry that opened it.
        stages: the events of its plan, by stage; empty where the entry names none.
        created_at: when it was opened, in the form that is hashed.
        updated_at: when the newest entry about it was written.
    """

    id: str
    job_id: str
    sequence: int
    amount_nano: int
    stages: dict[str, Mapping[str, Any]]
    created_at: str
    updated_at: str
    last_sequence: int
    state: HoldState = HoldState.HELD
    charged_nano: int = 0
    captured_nano: int = 0
    armed_attempt: int = 0

    @classmethod
    def opened_by(cls, line: Line, stages: dict[str, Mapping[str, Any]]) -> HoldReplay:
        """Return the hold that a HOLD entry opens."""
        sequence, at = line.sequence, line.created_at
        return cls(str(line.hold_id), str(line.job_id), sequence, line.amount_nano, stages, at, at, sequence)

    def arm(self, line: Line) -> None:
        """Take an ARM entry."""
        require(self.state in (HoldState.HELD, HoldState.ARMED), FindingCode.TRANSITION_REFUSED, "arms a closed hold")
        require(line.amount_nano == 0, FindingCode.AMOUNT_MISMATCH, "arms with an amount")
        attempt = whole(line.details["attempt"])
        require(attempt > self.armed_attempt, FindingCode.TRANSITION_REFUSED, "arms for an attempt that has passed")
        self.state, self.armed_attempt = HoldState.ARMED, attempt

    def charge(self, line: Line, prices: Prices) -> None:
        """Take a CHARGE entry."""
        require(self.state is HoldState.ARMED, FindingCode.TRANSITION_REFUSED, "charges a hold that is not armed")
        details = line.details
        require(
            details["attempt"] == self.armed_attempt,
            FindingCode.TRANSITION_REFUSED,
            "charges for an attempt that has not armed the hold",
        )
        self.charged_nano += line.amount_nano
        require(
            line.amount_nano > 0 and details["charged_nano"] == self.charged_nano <= self.amount_nano,
            FindingCode.AMOUNT_MISMATCH,
            "charges an amount that its hold does not cover or does not add up to",
        )
        prices.check_charge(line, self.stages)

    def capture(self, line: Line) -> None:
        """Take a CAPTURE entry."""
        details = line.details
        require(self.state is HoldState.ARMED, FindingCode.TRANSITION_REFUSED, "captures a hold that is not armed")
        require(
            line.amount_nano == self.charged_nano
            and details["returned_nano"] == self.amount_nano - self.charged_nano
            and whole(details["attempt"]) >= self.armed_attempt,
            FindingCode.AMOUNT_MISMATCH,
            "captures another amount than was charged",
        )
        require(
            details["artifact_sha256"] is None or self.charged_nano > 0,
            FindingCode.TRANSITION_REFUSED,
            "captures an artifact for which nothing was charged",
        )
        self.state, self.captured_nano = HoldState.CAPTURED, self.charged_nano

    def release(self, line: Line) -> None:
        """Take a RELEASE entry."""
        require(self.state is HoldState.HELD, FindingCode.TRANSITION_REFUSED, "returns a hold that was armed")
        require(
            line.amount_nano == self.amount_nano, FindingCode.AMOUNT_MISMATCH, "returns another amount than was held"
        )
        self.state = HoldState.RETURNED


def replay_hold(account_id: str, lines: list[Line]) -> HoldReplay | None:
    """Return a hold as the entries of its job tell it, oldest first; None when they do not begin with it.

    Used to go on from a checkpoint: amounts and states are followed, prices were checked when it was written.

    Raises:
        Fault: the entries contradict each other.
    """
    prices, reserved = Prices(required=False), None
    for line in lines:
        check_hash(account_id, line)
        if line.kind == EntryKind.HOLD and reserved is None:
            events = {stage["name"]: stage["event"] for stage in line.details.get("stages") or ()}
            reserved = HoldReplay.opened_by(line, events)
        elif reserved is None:
            return None
        elif line.kind == EntryKind.ARM:
            reserved.arm(line)
        elif line.kind == EntryKind.CHARGE:
            details = {name: value for name, value in line.details.items() if name != "event"}
            reserved.charge(line._replace(details=details), prices)
        else:
            return None  # it had ended by then
        reserved.last_sequence, reserved.updated_at = line.sequence, line.created_at
    return reserved
