"""Limits: raised by two people with a reason, lowered by one, frozen and opened by hand, changed by nothing else."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from math import inf, nan
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from obscura.wire.words import DecisionState, EntryKind
from privacy.accounting.filter import open_filter
from service import ledger
from service.db.access_tables import Admin, ApiKey, Decision
from service.db.session import SessionFactory, transaction
from service.errors import AccountFrozen, Conflict, Forbidden, InvalidInput
from service.identity import decisions
from service.ledger.chain import utc_text
from service.times import to_the_hour
from tests.service.ledger.account_book import AccountBook
from tests.service.steps import make_key
from tests.together import at_once

LATER = timedelta(hours=1)


class Board(AccountBook):
    """An account and its admins: `alice`, who has another key in `alices`, and `bob`."""

    def __init__(
        self, factory: SessionFactory, now: datetime, open_account: Callable[..., str], **account: Any
    ) -> None:
        super().__init__(factory, open_account(factory, **account), now)
        self.alice, self.bob = self.key(), self.key()
        self.alices = self.key(self.alice)

    def key(self, of: str | None = None, *, now: datetime | None = None) -> str:
        """Return a key of a new admin, or another key of an admin."""
        with transaction(self.factory) as session:
            admin_id = None if of is None else session.get_one(ApiKey, of).admin_id
            at = now or self.now - LATER
            return make_key(session, name="admin", scopes=["admin"], now=at, admin_id=admin_id)[0].id

    def person(self, key_id: str) -> Admin:
        return self.row(Admin, self.row(ApiKey, key_id).admin_id)

    def ask(self, epsilon: float = 12.0, *, by: str | None = None, reason: str = "a second study") -> str:
        facts = {"account_id": self.account_id, "epsilon": epsilon, "reason": reason}
        return self.do(ledger.limits.request_raise, requested_with=by or self.alice, **facts).id

    def approve(self, request_id: str, *, by: str | None = None, after: timedelta = LATER) -> Decision:
        facts = {"decided_with": by or self.bob, "now": self.now + after, "effects": ledger.limits.LIMIT_EFFECTS}
        return self.do(decisions.decide, request_id, **facts, approved=True)

    def spend(self, amount_nano: int) -> None:
        self.capture(self.armed(amount_nano, charged_nano=amount_nano), 1, sha=None)


@pytest.fixture
def board(factory: SessionFactory, now: datetime, open_account: Callable[..., str]) -> Board:
    return Board(factory, now, open_account)


def test_a_second_person_raises_the_limit_and_the_log_names_both(board):
    request_id = board.ask(12.0, reason="a second study")
    approved = board.approve(request_id)
    assert (approved.state, approved.decided_with) == (DecisionState.APPROVED, board.bob)
    raised = open_filter(8.0, 1e-5).at_limit(12.0, used_nano=0)
    balance = board.balance()
    assert (balance.limit_epsilon, balance.capacity_nano) == (12.0, raised.capacity_nano)
    entry, alice, bob = board.entries()[-1], board.person(board.alice), board.person(board.bob)
    assert (entry.kind, entry.amount_nano, entry.capacity_nano) == (EntryKind.LIMIT, *[raised.capacity_nano] * 2)
    assert entry.details == {
        "epsilon": 12.0,
        "epsilon_before": 8.0,
        "rate": raised.rate,
        "base": 0.0,
        "frozen": False,
        "reason": "a second study",
        "request_id": request_id,
        "requested_at": utc_text(to_the_hour(board.now)),
        "approver_admitted_at": utc_text(to_the_hour(bob.admitted_at)),
        "requested_with": board.alice,
        "approved_with": board.bob,
        "requested_by": alice.id,
        "requested_by_name": alice.name,
        "approved_by": bob.id,
        "approved_by_name": bob.name,
    }


def test_a_raise_changes_the_rate_for_what_comes_and_counts_what_was_given(factory, now, open_account):
    board = Board(factory, now, open_account, epsilon=2.0)
    opened = open_filter(2.0, 1e-5)
    board.spend(opened.capacity_nano)
    board.approve(board.ask(12.0))
    account = board.account()
    raised = opened.at_limit(12.0, opened.capacity_nano)
    assert ledger.filter_of(account) == raised
    assert (account.rate, account.base) == (raised.rate, raised.base)
    assert 0 < account.rate < opened.rate
    assert account.base > 0
    assert 0.98 < board.balance().capacity_nano / open_filter(12.0, 1e-5).capacity_nano < 1
    assert board.findings() == ()


@pytest.mark.parametrize(("asks", "approves"), [("alice", "alice"), ("alice", "alices"), ("alices", "alice")])
def test_one_person_with_two_keys_raises_nothing(board, asks, approves):
    request_id = board.ask(by=getattr(board, asks))
    with pytest.raises(Forbidden, match="Two people"):
        board.approve(request_id, by=getattr(board, approves))
    fresh = board.key(board.alice, now=board.now + timedelta(minutes=1))
    with pytest.raises(Forbidden, match="Two people"):
        board.approve(request_id, by=fresh)
    assert board.balance().limit_epsilon == 8.0
    assert board.approve(request_id).decided_with == board.bob


@pytest.mark.parametrize("approves", ["alice", "alices"])
def test_the_database_refuses_one_person_for_both_roles(board, approves):
    board.ask()
    forged = {"state": DecisionState.APPROVED, "decided_with": getattr(board, approves), "decided_at": board.now}
    with pytest.raises(IntegrityError), transaction(board.factory) as session:
        session.execute(update(Decision).values(decided_by=Decision.requested_by, **forged))


@pytest.mark.parametrize("epsilon", [8.0, 7.0, 9.0, 0.0, -1.0, 1000.1, nan, inf])
def test_only_a_higher_limit_within_bounds_can_be_asked_for_and_only_a_lower_one_set(board, epsilon):
    for step, admitted in ((board.ask, 9.0), (board.lower, 7.0)):
        if epsilon != admitted:
            with pytest.raises(InvalidInput):
                step(epsilon)
    assert board.kinds() == ["open"]


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501])
def test_a_raise_and_a_freeze_need_a_reason(board, reason):
    for step in (lambda: board.ask(reason=reason), lambda: board.freeze(True, reason=reason)):
        with pytest.raises(InvalidInput, match="reason"):
            step()


def test_a_request_is_approved_against_the_limit_it_was_asked_for(board):
    request_id = board.ask(12.0)
    board.lower(2.0)
    with pytest.raises(Conflict, match="Decline this request"):
        board.approve(request_id)
    assert board.balance().limit_epsilon == 2.0


def test_two_admins_at_once_raise_once(board):
    request_id = board.ask()
    others = [board.bob, board.key(), board.key()]
    ends = at_once(*(partial(board.approve, request_id, by=key_id) for key_id in others))
    assert sorted(type(end).__name__ for end in ends) == ["Conflict", "Conflict", "Decision"]
    assert board.kinds() == ["open", "limit"]


def test_an_account_frozen_by_a_lower_limit_stays_frozen_when_it_is_raised_again(board):
    board.spend(board.balance().capacity_nano // 2)
    board.lower(0.5)
    board.approve(board.ask(12.0))
    assert board.account().frozen, "budget is there again, but nobody has said that it may be used"
    assert board.entries()[-1].details["frozen"] is True
    with pytest.raises(AccountFrozen):
        board.hold(1)
    board.freeze(False)
    board.hold(1)


def test_a_frozen_account_holds_nothing_and_the_log_says_who_froze_and_who_lowered(board):
    for frozen in (True, True, False, False):  # idempotent
        board.freeze(frozen, by=board.bob)
        if frozen:
            with pytest.raises(AccountFrozen):
                board.hold(1)
    board.hold(1)
    board.lower(3.0, by=board.alice)
    board.freeze(True)
    told = [(entry.kind.value, entry.details.get("by")) for entry in board.entries()]
    ends = [("freeze", board.bob), ("freeze", board.bob), ("hold", None), ("limit", board.alice), ("freeze", None)]
    assert told == [("open", None), *ends]
    assert "by" not in board.entries()[-1].details


def test_nothing_but_a_limit_entry_changes_the_capacity_and_nothing_gives_spent_budget_back(board):
    board.spend(5000)
    board.give_back(board.hold(700))
    board.freeze(True)
    board.freeze(False)
    board.approve(board.ask(12.0))
    board.lower(9.0)
    board.now += timedelta(days=400)  # years pass; no month, quarter or year brings anything
    board.spend(60)
    with transaction(board.factory) as session:
        account = ledger.lock_account(session, board.account_id)
        ledger.limits.record_missing(session, account, amount_nano=40, details={"reason": "restored"}, now=board.now)
    entries = board.entries()
    changed = {after.kind for before, after in pairwise(entries) if after.capacity_nano != before.capacity_nano}
    assert changed == {EntryKind.LIMIT}
    assert {entry.kind for entry in entries} == set(EntryKind), "every kind of entry was looked at"
    assert all(after.spent_nano >= before.spent_nano for before, after in pairwise(entries))
    assert board.balance().spent_nano == 5100
    limits = [entry.details for entry in entries if entry.kind is EntryKind.LIMIT]
    raises = [details for details in limits if details["epsilon"] > details["epsilon_before"]]
    assert raises
    assert all(details["requested_by"] != details["approved_by"] for details in raises)
