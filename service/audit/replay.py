"""Replay an account's log from its entries alone: hash chain, states of holds, prices, balances, admission. Pure.

This is an independent second implementation of every transition. It shares only the definition of the hash and the
price functions with the code that writes. `LogReplay._take` has the rules for each kind of entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring_ascii as _quote
from math import isclose
from typing import Any, NamedTuple, assert_never

from obscura.wire.words import EntryKind, HoldState
from privacy.accounting.events import Event, event_from_json
from privacy.accounting.filter import PRICE_MARGIN, Filter, open_filter
from privacy.errors import PrivacyError
from service.audit.findings import Fault, FindingCode, exactly, require
from service.ledger.chain import CHAIN_VERSION, GENESIS_HASH

TERMS = ("name", "owner", "delta", "unit", "adjacency")  # fixed at opening, forever
# Prices of unsampled releases are rational and must agree exactly. Capacities and prices of sampled stages are computed
# in floating point: another machine, or another version of a library, may change the last digits within these margins.
FLOAT_TOLERANCE = 4e-9
_REFUSED, _AMOUNT = FindingCode.TRANSITION_REFUSED, FindingCode.AMOUNT_MISMATCH
_PRICE, _CAPACITY = FindingCode.PRICE_MISMATCH, FindingCode.CAPACITY_MISMATCH
_OF_HOLDS = frozenset({EntryKind.HOLD, EntryKind.ARM, EntryKind.CHARGE, EntryKind.CAPTURE, EntryKind.RETURN})


class Line(NamedTuple):
    """A stored entry. `created_at` has the form that is hashed; `details` is parsed from `text`."""

    sequence: int
    kind: str
    hold_id: str | None
    job_id: str | None
    amount_nano: int
    capacity_nano: int
    spent_nano: int
    reserved_nano: int
    details: dict[str, Any]
    previous_hash: str
    hash: str
    created_at: str
    text: str


def check_hash(account_id: str, line: Line) -> None:
    """Raise Fault unless an entry's hash covers its contents, including the exact bytes of its details."""
    body = (  # canonical JSON with the stored bytes of the details, so every changed byte counts
        f'{{"account_id":{_quote(account_id)},"amount_nano":{line.amount_nano},"capacity_nano":{line.capacity_nano},'
        f'"created_at":{_quote(line.created_at)},"details":{line.text},"hold_id":{_text(line.hold_id)},'
        f'"job_id":{_text(line.job_id)},"kind":{_text(line.kind)},"previous_hash":{_text(line.previous_hash)},'
        f'"reserved_nano":{line.reserved_nano},"sequence":{line.sequence},"spent_nano":{line.spent_nano},'
        f'"version":{CHAIN_VERSION}}}'
    )
    sound = hashlib.sha256(body.encode()).hexdigest() == line.hash
    require(sound, FindingCode.HASH_MISMATCH, "does not match its hash: it was changed after it was written")


def _text(value: str | None) -> str:
    return "null" if value is None else _quote(str(value))


@dataclass
class Prices:
    """Recomputes prices of events from their public parameters and the account's privacy filter, with a cache."""

    filter: Filter | None = None
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def check_hold(self, amount_nano: int, details: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Compare a hold's amount with the price of the stages of its plan; return the stages by name."""
        stages, total = details.get("stages") or (), 0
        require(bool(stages), FindingCode.PRICE_UNKNOWN, "does not name the stages that the hold pays for")
        for stage in stages:
            event = event_from_json(stage["event"])
            self._check(replace(event, count=event.count + exactly(int, stage.get("repeats", 0))), stage["cost_nano"])
            total += stage["cost_nano"]
        require(total == amount_nano, _PRICE, "holds an amount that differs from the cost of its stages")
        return {stage["name"]: stage for stage in stages}

    def check_charge(
        self, amount_nano: int, details: Mapping[str, Any], stages: Mapping[str, Mapping[str, Any]], made: int
    ) -> None:
        """Compare a charge with the price of its event, and the event with the planned event.

        For a stage priced as a whole, `made` is the number of its earlier releases.
        """
        require(details.get("event") is not None, FindingCode.PRICE_UNKNOWN, "does not name the event that it pays for")
        event, planned = event_from_json(details["event"]), stages.get(details["stage"])
        if planned is None or {**planned["event"], "count": 0} != {**details["event"], "count": 0}:
            raise Fault(_PRICE, "pays for a release that is not in its plan")
        if not event.is_sampled:
            self._check(event, amount_nano)
            return
        require(
            made + event.count <= planned["event"]["count"] + planned.get("repeats", 0)
            and details.get("released", {}).get(details["stage"]) == made + event.count
            and amount_nano == (0 if made else planned["cost_nano"]),
            _PRICE,
            "pays for more releases than its stage has, or does not pay exactly the stage's price",
        )

    def _check(self, event: Event, cost_nano: int) -> None:
        assert self.filter is not None
        # An unsampled release has the same price in every account.
        key = (event, self.filter.rate) if event.is_sampled else (replace(event, count=1),)
        if key not in self._known:
            self._known[key] = self.filter.cost_nano(key[0])
        wanted_nano = self._known[key] * (1 if event.is_sampled else event.count)
        slack_nano = 1 + PRICE_MARGIN * wanted_nano if event.is_sampled else 0
        require(
            abs(exactly(int, cost_nano) - wanted_nano) <= slack_nano,
            _PRICE,
            f"states the price {cost_nano}, but its event costs {wanted_nano}",
        )


@dataclass(slots=True)
class HoldReplay:
    """A hold, replayed from its entries."""

    id: str
    job_id: str
    sequence: int  # of the entry that opened it
    amount_nano: int
    stages: dict[str, Mapping[str, Any]]  # of its plan, by name
    created_at: str
    updated_at: str
    last_sequence: int
    state: HoldState = HoldState.HELD
    charged_nano: int = 0
    captured_nano: int = 0
    armed_attempt: int = 0
    released: dict[str, int] = field(default_factory=dict)  # number by stage, for stages priced as a whole

    @classmethod
    def opened_by(cls, line: Line, stages: dict[str, Mapping[str, Any]]) -> HoldReplay:
        sequence, at = line.sequence, line.created_at
        return cls(str(line.hold_id), str(line.job_id), sequence, line.amount_nano, stages, at, at, sequence)

    def arm(self, line: Line) -> None:
        require(self.state in (HoldState.HELD, HoldState.ARMED), _REFUSED, "arms a closed hold")
        require(line.amount_nano == 0, _AMOUNT, "arms a hold, but states an amount")
        attempt = exactly(int, line.details["attempt"])
        require(attempt > self.armed_attempt, _REFUSED, "arms a hold again for the same or an earlier attempt")
        self.state, self.armed_attempt = HoldState.ARMED, attempt
        self._check_counts(line)

    def charge(self, line: Line, prices: Prices | None) -> None:
        """Apply a CHARGE entry. Its price is checked only if `prices` is given."""
        require(self.state is HoldState.ARMED, _REFUSED, "charges a hold that is not armed")
        details = line.details
        require(details["attempt"] == self.armed_attempt, _REFUSED, "charges for an attempt that did not arm the hold")
        made = self.released.get(details["stage"], 0)
        if details["stage"] in details.get("released", {}):
            self.released[details["stage"]] = made + exactly(int, details["event"]["count"])
        self._check_counts(line)
        self.charged_nano += line.amount_nano
        require(
            (line.amount_nano == 0) == (made > 0) and details["charged_nano"] == self.charged_nano <= self.amount_nano,
            _AMOUNT,
            "charges more than its hold covers, a wrong sum, or an amount that does not fit earlier releases",
        )
        if prices is not None:
            prices.check_charge(line.amount_nano, line.details, self.stages, made)

    def _check_counts(self, line: Line) -> None:
        counts = line.details.get("released", {})
        require(counts == self.released, _AMOUNT, "states a wrong number of releases paid by its hold")

    def capture(self, line: Line) -> None:
        details = line.details
        require(self.state is HoldState.ARMED, _REFUSED, "captures a hold that is not armed")
        require(
            line.amount_nano == self.charged_nano
            and details["returned_nano"] == self.amount_nano - self.charged_nano
            and exactly(int, details["attempt"]) >= self.armed_attempt,
            _AMOUNT,
            "captures an amount that differs from the charges",
        )
        require(
            details["artifact_sha256"] is None or self.charged_nano > 0,
            _REFUSED,
            "captures an artifact for which nothing was charged",
        )
        self.state, self.captured_nano = HoldState.CAPTURED, self.charged_nano

    def give_back(self, line: Line) -> None:
        require(self.state is HoldState.HELD, _REFUSED, "returns a hold that was armed")
        require(line.amount_nano == self.amount_nano, _AMOUNT, "returns an amount that differs from the held amount")
        self.state = HoldState.RETURNED


def replay_hold(account_id: str, lines: list[Line]) -> HoldReplay | None:
    """Replay a job's entries, oldest first. Return the hold; None if it was closed or no HOLD entry comes first.

    Raise Fault if the entries contradict each other. Prices are not checked again: the checkpoint covers them.
    """
    hold = None
    for line in lines:
        check_hash(account_id, line)
        if line.kind == EntryKind.HOLD and hold is None:
            stages = {stage["name"]: stage for stage in line.details.get("stages") or ()}
            hold = HoldReplay.opened_by(line, stages)
        elif hold is None:
            return None
        elif line.kind == EntryKind.ARM:
            hold.arm(line)
        elif line.kind == EntryKind.CHARGE:
            hold.charge(line, None)
        else:
            return None
        hold.last_sequence, hold.updated_at = line.sequence, line.created_at
    return hold


@dataclass
class LogReplay:
    """The replayed part of one account's log, up to entry `sequence`."""

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
    reserved_nano: int = 0
    open_holds: dict[str, HoldReplay] = field(default_factory=dict)
    ended: list[HoldReplay] = field(default_factory=list)
    find_hold: Callable[[Line], HoldReplay | None] = lambda _line: None

    def apply(self, line: Line) -> None:
        """Apply the next entry; raise Fault unless it is a valid continuation of the log."""
        expected = self.sequence + 1
        require(line.sequence == expected, FindingCode.ENTRY_MISSING, f"entry {expected} is missing")
        check_hash(self.account_id, line)
        require(line.previous_hash == self.hash, FindingCode.CHAIN_BROKEN, "lacks the hash of the entry before it")
        try:
            self._take(line)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, PrivacyError) as error:
            raise Fault(FindingCode.ENTRY_MALFORMED, f"is malformed ({type(error).__name__})") from None
        require(
            (line.capacity_nano, line.spent_nano, line.reserved_nano)
            == (self.capacity_nano, self.spent_nano, self.reserved_nano),
            FindingCode.BALANCE_MISMATCH,
            "states balances that differ from the sums of the entries up to this one",
        )
        require(
            self.frozen or self.spent_nano + self.reserved_nano <= self.capacity_nano,  # I1, I13
            FindingCode.OVERSPENT,
            "leaves more budget spent and held than the capacity",
        )
        self.sequence, self.hash = line.sequence, line.hash

    def _take(self, line: Line) -> None:
        kind = EntryKind(line.kind)
        opens = kind is EntryKind.OPEN
        require(opens == (line.sequence == 1), _REFUSED, "opens the account twice, or is first and does not open it")
        require(kind in _OF_HOLDS or line.hold_id is None, _REFUSED, "names a hold, but entries of this kind have none")
        match kind:
            case EntryKind.OPEN:
                self.terms = {name: line.details[name] for name in TERMS}
                self.created_at, self.rate = line.created_at, float(line.details["rate"])
                wanted = open_filter(line.details["epsilon"], self.terms["delta"]).rate
                require(isclose(self.rate, wanted, rel_tol=FLOAT_TOLERANCE), _CAPACITY, "states a wrong rate")
                self._set_limit(line)
            case EntryKind.HOLD:
                self._hold(line)
            case EntryKind.ARM | EntryKind.CHARGE | EntryKind.CAPTURE | EntryKind.RETURN:
                self._move(kind, line)
            case EntryKind.LIMIT:
                self._limit(line)
            case EntryKind.FREEZE:
                self.frozen = exactly(bool, line.details["frozen"])
                require(line.amount_nano == 0, _AMOUNT, "freezes or unfreezes the account, but states an amount")
            case EntryKind.ACCEPT:
                require(line.amount_nano >= 0, _AMOUNT, "accepts a negative amount")
                self.spent_nano += line.amount_nano
                self.frozen = self.frozen or self.spent_nano + self.reserved_nano > self.capacity_nano  # I13
                require(
                    exactly(bool, line.details["frozen"]) == self.frozen,
                    _REFUSED,
                    "accepts spending, but states wrongly whether the account is frozen",
                )
            case _:
                assert_never(kind)

    def _limit(self, line: Line) -> None:
        details = line.details
        require(
            details["epsilon_before"] == self.epsilon, _CAPACITY, "changes the limit, but states a wrong earlier limit"
        )
        require(
            details["epsilon"] < self.epsilon or _two_people_agreed(details),
            FindingCode.RAISE_UNAPPROVED,
            "raises the limit without a request, or without two people who were admins when it was made",
        )
        wanted = self.use_filter().at_limit(details["epsilon"], self.spent_nano + self.reserved_nano)
        rate, base = details["rate"], details["base"]
        require(
            isclose(rate, wanted.rate, rel_tol=FLOAT_TOLERANCE) and isclose(base, wanted.base, rel_tol=FLOAT_TOLERANCE),
            _CAPACITY,
            "states a wrong rate for its limit",
        )
        self.rate, self.base = rate, base
        self._set_limit(line)
        frozen = self.frozen or self.spent_nano + self.reserved_nano > self.capacity_nano  # I13
        same = exactly(bool, details["frozen"]) == frozen
        require(same, _REFUSED, "changes the limit, but states wrongly whether the account is frozen")
        self.frozen = frozen

    def use_filter(self) -> Filter:
        """Open this account's privacy filter, and compute all later prices with it."""
        self.prices.filter = by = open_filter(self.epsilon, self.terms["delta"], self.rate, self.base)
        return by

    def _set_limit(self, line: Line) -> None:
        self.epsilon = line.details["epsilon"]
        wanted_nano = self.use_filter().capacity_nano
        require(
            abs(line.capacity_nano - wanted_nano) <= 2 + FLOAT_TOLERANCE * wanted_nano
            and line.amount_nano == line.capacity_nano,
            _CAPACITY,
            f"states the capacity {line.capacity_nano}, but its limit implies the capacity {wanted_nano}",
        )
        self.capacity_nano = line.capacity_nano

    def _hold(self, line: Line) -> None:
        require(not self.frozen, _REFUSED, "holds budget of a frozen account")
        require(
            line.hold_id is not None and line.job_id is not None and line.hold_id not in self.open_holds,
            _REFUSED,
            "opens a hold that is open already, or has no id",
        )
        require(line.amount_nano > 0, _AMOUNT, "holds no amount")
        self.reserved_nano += line.amount_nano
        require(
            self.spent_nano + self.reserved_nano <= self.capacity_nano,
            FindingCode.OVERSPENT,
            "holds more than the account has left",
        )
        stages = self.prices.check_hold(line.amount_nano, line.details)
        hold = HoldReplay.opened_by(line, stages)
        self.open_holds[hold.id] = hold

    def _move(self, kind: EntryKind, line: Line) -> None:
        hold = self.open_holds.get(line.hold_id or "") or self.find_hold(line)
        if hold is None:
            raise Fault(_REFUSED, "concerns a hold that is not open")
        require(line.job_id == hold.job_id, _REFUSED, "names another job than its hold")
        hold.last_sequence, hold.updated_at = line.sequence, line.created_at
        if kind is EntryKind.ARM:
            require(
                not self.frozen or hold.state is not HoldState.HELD, _REFUSED, "opens private data on a frozen account"
            )
            hold.arm(line)
        elif kind is EntryKind.CHARGE:
            hold.charge(line, self.prices)
        else:
            if kind is EntryKind.CAPTURE:
                hold.capture(line)
            else:
                hold.give_back(line)
            self.reserved_nano -= hold.amount_nano
            self.spent_nano += hold.captured_nano
            self.ended.append(hold)
            del self.open_holds[hold.id]


def _two_people_agreed(details: Mapping[str, Any]) -> bool:
    """Return whether two people agreed, each with a key, and the approver was an admin when the request was made."""
    pairs = ("requested_with", "approved_with"), ("requested_by", "approved_by")
    named = [(details.get(first), details.get(second)) for first, second in pairs]
    admitted_at, requested_at = details.get("approver_admitted_at"), details.get("requested_at")
    return (
        isinstance(details.get("request_id"), str)
        and all(isinstance(asked, str) and isinstance(approved, str) and asked != approved for asked, approved in named)
        and isinstance(admitted_at, str)
        and isinstance(requested_at, str)
        and admitted_at <= requested_at  # same text format
    )
