"""Holds and charges of any amount, for releases that cost one nano-unit each, and charges as a plan has them."""

import dataclasses
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind
from privacy.accounting.events import GaussianEvent
from privacy.plans.plan import stage_from_json
from service import ledger


def releases(count: int) -> dict[str, Any]:
    """Return an event that costs as many nano-units as it has releases."""
    return GaussianEvent(sensitivity=1.0, stddev=40_000.0, count=1).to_json() | {"count": count}


def hold_at_present_rate(session: Session, *, account_id: str, amount_nano: int, **facts: Any) -> ledger.Hold:
    """Hold an amount for a stage `votes`; `facts` are those of `ledger.hold`."""
    present = ledger.filter_of(ledger.get_account(session, account_id))
    stage = {"name": "votes", "event": releases(amount_nano), "cost_nano": amount_nano}
    priced: dict[str, Any] = {"amount_nano": amount_nano, "priced_by": present, "details": {"stages": [stage]}}
    return ledger.hold(session, account_id=account_id, **priced | facts)


def charge(session: Session, *, amount_nano: int, stage: str = "votes", **facts: Any) -> int:
    """Charge an amount; `facts` are those of `ledger.charge`."""
    return ledger.charge(session, amount_nano=amount_nano, stage=stage, event=releases(amount_nano), **facts)


def charge_planned(session: Session, *, hold_id: str, attempt: int, now: datetime, count: int = 1) -> int:
    """Charge for releases of the first stage that a hold was taken for, as a training does."""
    held = ledger.entry_of_hold(session, hold_id, EntryKind.HOLD).details
    stage = stage_from_json(held["stages"][0], {})
    return ledger.charge(
        session,
        hold_id=hold_id,
        attempt=attempt,
        amount_nano=stage.price_of(count),
        stage=stage.name,
        event=dataclasses.replace(stage.event, count=count).to_json(),
        paid_as_whole=stage.paid_as_whole,
        now=now,
    )
