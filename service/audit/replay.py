"""Replay an account's log from its entries alone: hash chain, states of holds, prices, balances, admission. Pure.

This shares the definition of the hash and the price functions with the code that writes, and nothing else: it is the
second opinion on every transition. A kind of entry gets its rules in `LogReplay._take`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as _quote
from typing import Any, NamedTuple, assert_never

from obscura.wire.words import EntryKind, HoldState
from privacy.accounting.filter import Filter, open_filter
from privacy.errors import PrivacyError
from service.audit.findings import Fault, FindingCode, require, truth, whole
from service.audit.prices import FLOAT_TOLERANCE, Prices
from service.ledger.chain import CHAIN_VERSION, GENESIS_HASH

TERMS = ("name", "owner", "delta", "unit", "adjacency")  # fixed at opening, for ever
_OF_HOLDS = frozenset({EntryKind.HOLD, EntryKind.ARM, EntryKind.CHARGE, EntryKind.CAPTURE, EntryKind.RETURN})


class Line(NamedTuple):
    """An entry as it is stored; `created_at` in the form that is hashed, `text` is what `details` was read from."""

    sequence: int
    kind: str
    hold_id: str | None
    job_id: str | None
    amount_nano: int
    capacity_nano: int
    spent_nano: int
    held_nano: int
    details: dict[str, Any]
    previous_hash: str
    hash: str
    created_at: str
    text: str


def check_hash(account_id: str, line: Line) -> None:
    """Assert that an entry's hash covers its contents, down to the spelling of its details.

    Raises:
        Fault: it does not.
    """
    sound = hashlib.sha256(_body(account_id, line).encode()).hexdigest() == line.hash
    require(sound, FindingCode.HASH_MISMATCH, "does not match its hash: it was changed after it was written")


def _body(account_id: str, line: Line) -> str:
    """Return the canonical JSON of `chain.Entry.body`, with the details as they are stored: canonical already.

    Nothing is parsed and written again, so no byte can change unseen, and most of the time of a verification is saved.
    """
    return (
        f'{{"account_id":{_quote(account_id)},"amount_nano":{line.amount_nano},"capacity_nano":{line.capacity_nano},'
        f'"created_at":{_quote(line.created_at)},"details":{line.text},"held_nano":{line.held_nano},'
        f'"hold_id":{_text(line.hold_id)},"job_id":{_text(line.job_id)},"kind":{_text(line.kind)},'
        f'"previous_hash":{_text(line.previous_hash)},"sequence":{line.sequence},"spent_nano":{line.spent_nano},'
        f'"version":{CHAIN_VERSION}}}'
    )


def _text(value: str | None) -> str:
    return "null" if value is None else _quote(str(value))


@dataclass(slots=True)
class HoldReplay:
    """A hold as its entries tell it.

    Attributes:
        sequence: of the entry that opened it.
        stages: the stages of its plan, by name; empty where the entry names none.
        released: how many releases its entries count, by stage, of stages that are priced as a whole.
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
    released: dict[str, int] = field(default_factory=dict)

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
        self._check_counts(line)

    def charge(self, line: Line, prices: Prices | None) -> None:
        """Take a CHARGE entry; without prices, its price was checked before."""
        require(self.state is HoldState.ARMED, FindingCode.TRANSITION_REFUSED, "charges a hold that is not armed")
        details = line.details
        require(
            details["attempt"] == self.armed_attempt,
            FindingCode.TRANSITION_REFUSED,
            "charges for an attempt that has not armed the hold",
        )
        made = self.released.get(details["stage"], 0)
        if details["stage"] in details.get("released", {}):
            self.released[details["stage"]] = made + whole(details["event"]["count"])
        self._check_counts(line)
        self.charged_nano += line.amount_nano
        require(
            (line.amount_nano == 0) == (made > 0) and details["charged_nano"] == self.charged_nano <= self.amount_nano,
            FindingCode.AMOUNT_MISMATCH,
            "charges an amount that its hold does not cover or does not add up to",
        )
        if prices is not None:
            prices.check_charge(line.amount_nano, line.details, self.stages, made)

    def _check_counts(self, line: Line) -> None:
        told = line.details.get("released", {})
        require(told == self.released, FindingCode.AMOUNT_MISMATCH, "counts other releases than its hold has made")

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

    def give_back(self, line: Line) -> None:
        """Take a RETURN entry."""
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
    reserved = None
    for line in lines:
        check_hash(account_id, line)
        if line.kind == EntryKind.HOLD and reserved is None:
            stages = {stage["name"]: stage for stage in line.details.get("stages") or ()}
            reserved = HoldReplay.opened_by(line, stages)
        elif reserved is None:
            return None
        elif line.kind == EntryKind.ARM:
            reserved.arm(line)
        elif line.kind == EntryKind.CHARGE:
            reserved.charge(line, None)
        else:
            return None  # it had ended by then
        reserved.last_sequence, reserved.updated_at = line.sequence, line.created_at
    return reserved


@dataclass
class LogReplay:
    """One account's log so far. `apply` takes the next entry or says why it cannot be the next.

    Args:
        sequence: of the last entry that was taken.
    """

    account_id: str
    prices: Prices
    sequence: int = 0
    hash: str = GENESIS_HASH
    terms: dict[str, Any] = field(default_factory=dict)
    created_at: str = ""
    epsilon: float = 0.0
    rate: float = 0.0
    base: float = 0.0
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
        expected = self.sequence + 1
        require(line.sequence == expected, FindingCode.ENTRY_MISSING, f"entry {expected} is missing")
        check_hash(self.account_id, line)
        require(line.previous_hash == self.hash, FindingCode.CHAIN_BROKEN, "does not link to the entry before it")
        try:
            self._take(line)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, PrivacyError) as error:
            raise Fault(FindingCode.ENTRY_MALFORMED, f"cannot be understood ({type(error).__name__})") from None
        require(
            (line.capacity_nano, line.spent_nano, line.held_nano)
            == (self.capacity_nano, self.spent_nano, self.held_nano),
            FindingCode.BALANCE_MISMATCH,
            "states other balances than the entries up to it add up to",
        )
        require(
            self.frozen or self.spent_nano + self.held_nano <= self.capacity_nano,  # I1, I13
            FindingCode.OVERSPENT,
            "leaves more spent and held than the capacity",
        )
        self.sequence, self.hash = line.sequence, line.hash

    def _take(self, line: Line) -> None:
        kind = EntryKind(line.kind)
        refused, amount = FindingCode.TRANSITION_REFUSED, FindingCode.AMOUNT_MISMATCH
        opens = kind is EntryKind.OPEN
        require(opens == (line.sequence == 1), refused, "opens the account again, or does not open it")
        require(kind in _OF_HOLDS or line.hold_id is None, refused, "concerns a hold and should not")
        match kind:
            case EntryKind.OPEN:
                self._open(line)
            case EntryKind.HOLD:
                self._hold(line)
            case EntryKind.ARM | EntryKind.CHARGE | EntryKind.CAPTURE | EntryKind.RETURN:
                self._move(kind, line)
            case EntryKind.LIMIT:
                self._limit(line)
            case EntryKind.FREEZE:
                self.frozen = truth(line.details["frozen"])
                require(line.amount_nano == 0, amount, "freezes with an amount")
            case EntryKind.ACCEPT:
                require(line.amount_nano >= 0, amount, "accepts a negative amount")
                self.spent_nano += line.amount_nano
                self.frozen = self.frozen or self.spent_nano + self.held_nano > self.capacity_nano  # I13
                told = truth(line.details["frozen"])
                require(told == self.frozen, refused, "turns the freeze switch with accepted spending")
            case _:
                assert_never(kind)

    def _open(self, line: Line) -> None:
        self.terms = {name: line.details[name] for name in TERMS}
        self.created_at, self.rate = line.created_at, rate_at_opening(line.details)
        wanted = open_filter(line.details["epsilon"], self.terms["delta"]).rate
        require(self.rate == 0 or _close(self.rate, wanted), FindingCode.CAPACITY_MISMATCH, "has another rate")
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
            "raises the limit without a request and two people who were admins by then",
        )
        wanted = self.use_filter().at_limit(details["epsilon"], self.spent_nano + self.held_nano)
        rate, base = details.get("rate", self.rate), details.get("base", self.base)
        require(
            _close(rate, wanted.rate) and _close(base, wanted.base),
            FindingCode.CAPACITY_MISMATCH,
            "has another rate than its limit gives it",
        )
        self.rate, self.base = rate, base
        self._set_limit(line, details["epsilon"])
        frozen = self.frozen or self.spent_nano + self.held_nano > self.capacity_nano  # I13
        told = truth(details["frozen"])
        require(told == frozen, FindingCode.TRANSITION_REFUSED, "turns the freeze switch with a limit")
        self.frozen = frozen

    def use_filter(self) -> Filter:
        """Price for this account from now on."""
        return self.prices.use(open_filter(self.epsilon, self.terms["delta"], self.rate, self.base))

    def _set_limit(self, line: Line, epsilon: float) -> None:
        self.epsilon = epsilon
        wanted_nano = self.use_filter().capacity_nano
        require(
            abs(line.capacity_nano - wanted_nano) <= 2 + FLOAT_TOLERANCE * wanted_nano
            and line.amount_nano == line.capacity_nano,
            FindingCode.CAPACITY_MISMATCH,
            f"has the capacity {line.capacity_nano} where its limit is worth {wanted_nano}",
        )
        self.capacity_nano = line.capacity_nano

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
        stages = self.prices.check_hold(line.amount_nano, line.details)
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
                reserved.give_back(line)
            self.held_nano -= reserved.amount_nano
            self.spent_nano += reserved.captured_nano
            self.ended.append(reserved)
            del self.open_holds[reserved.id]


def rate_at_opening(details: Mapping[str, Any]) -> float:
    """Return the rate that an OPEN entry gives its account; one from when accounts had a filter each has none."""
    if "rate" not in details:
        require(details["filter"] == "gdp", FindingCode.ENTRY_MALFORMED, "has a filter that is not known any more")
    return float(details.get("rate", 0.0))


def _close(told: float, wanted: float) -> bool:
    return abs(told - wanted) <= FLOAT_TOLERANCE * wanted


def _two_people_agreed(details: Mapping[str, Any]) -> bool:
    """Two keys, and two people behind them; the log of a time when keys were nobody's names keys alone."""
    pairs = [("requested_by", "approved_by")]
    if "requested_by_admin" in details or "approved_by_admin" in details:
        pairs.append(("requested_by_admin", "approved_by_admin"))
    named = [[details.get(name) for name in pair] for pair in pairs]
    return (
        isinstance(details.get("request_id"), str)
        and all(isinstance(asked, str) and isinstance(approved, str) and asked != approved for asked, approved in named)
        and _approver_was_there(details)
    )


def _approver_was_there(details: Mapping[str, Any]) -> bool:
    """Whoever approved was an admin when it was asked for; entries of before that was a rule give no times."""
    times = [details[name] for name in ("approver_admitted_at", "requested_at") if name in details]
    if not times:
        return True
    return len(times) == 2 and all(isinstance(at, str) for at in times) and times[0] <= times[1]  # in one spelling
